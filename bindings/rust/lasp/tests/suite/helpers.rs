//! Small things the tests share.
use lasp::{Comm, Context, ContextOptions, Error, Problem, Result, Status};

/// A context of a group of one that computes on this thread.
pub fn context() -> Context {
    Context::with_options(Comm::single().unwrap(), ContextOptions::new().cpu_threads(1)).unwrap()
}

/// Two heads of width 8, five tokens in one row.
pub fn small_problem() -> Problem {
    Problem::new().tokens(5).heads(2).head_dims(8, 8)
}
pub const SMALL: usize = 5 * 2 * 8;

/// Holds when the call failed with this status and a sentence that has `words` in it.
#[track_caller]
pub fn refused<T>(result: Result<T>, status: Status, words: &str) {
    match result {
        Ok(_) => panic!("was not refused; expected {:?} and {:?}", status, words),
        Err(error) => is(&error, status, words),
    }
}

#[track_caller]
pub fn is(error: &Error, status: Status, words: &str) {
    assert!(
        error.status() == status && error.sentence().contains(words),
        "{:?}: {:?}; expected {:?} and {:?}",
        error.status(),
        error.sentence(),
        status,
        words
    );
}

/// Numbers in [-1, 1) that are the same each time.
pub fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}
