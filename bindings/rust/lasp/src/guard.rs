//! What the library calls back (a log, a transport) must not call it again. Safe code could, so every call asks
//! here first.
use std::cell::Cell;
use std::panic::{catch_unwind, AssertUnwindSafe};

use crate::error::{Error, Result, Status};

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Refuses a call from inside a callback.
#[inline]
pub(crate) fn enter() -> Result<()> {
    if in_callback() {
        return Err(Error::new(Status::IN_USE, "a log function or a transport must not call the library"));
    }
    Ok(())
}

/// Whether this thread is inside a callback.
pub(crate) fn in_callback() -> bool {
    IN_CALLBACK.try_with(Cell::get).unwrap_or(false)
}

/// Runs a callback; None when it panicked, for a panic must not cross C.
pub(crate) fn callback<R>(run: impl FnOnce() -> R) -> Option<R> {
    let before = IN_CALLBACK.try_with(|flag| flag.replace(true)).unwrap_or(false);
    let result = catch_unwind(AssertUnwindSafe(run));
    let result = result.map_err(|payload| {
        // What it panicked with may panic again, when it is dropped. That one is let go.
        if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(another);
        }
    });
    let _ = IN_CALLBACK.try_with(|flag| flag.set(before));
    result.ok()
}
