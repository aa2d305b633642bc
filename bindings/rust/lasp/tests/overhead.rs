//! What a call costs on top of the C function: less than 5 microseconds, on a plan without work.
use std::ptr::null_mut;
use std::time::Instant;

use lasp::{Comm, Context, ContextOptions, Forward, Plan, Problem};
use lasp_sys as sys;

const CALLS: usize = 2000;

/// The median time of a call in microseconds.
fn median_us(mut call: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..CALLS)
        .map(|_| {
            let begin = Instant::now();
            call();
            begin.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[CALLS / 2]
}

// The raw loop fills the struct and calls lasp_forward as a C program does: the same function, the same bytes. On a
// busy machine single medians are worth little, so the smallest of several counts, of each loop.
#[test]
fn a_call_adds_less_than_five_microseconds() {
    let options = ContextOptions::new().cpu_threads(1);
    let context = Context::with_options(Comm::single().unwrap(), options).unwrap();
    let plan = Plan::new(&context, &Problem::new().heads(4).head_dims(8, 8).backward(false)).unwrap();
    let empty: Vec<f32> = vec![];
    let mut o: Vec<f32> = vec![];
    let state = vec![0.5f32; 4 * 8 * 8];
    let mut final_state = state.clone();
    let mut workspace = plan.forward_workspace().unwrap();
    let (mut raw, mut safe) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..5 {
        raw = raw.min(median_us(|| {
            let mut args = sys::LASP_FORWARD_ARGS_INIT;
            args.initial_state = sys::lasp_const_buffer { data: state.as_ptr().cast(), bytes: state.len() * 4 };
            args.final_state = sys::lasp_buffer { data: final_state.as_mut_ptr().cast(), bytes: state.len() * 4 };
            args.workspace = sys::lasp_buffer { data: workspace.as_mut_ptr().cast(), bytes: workspace.len() };
            assert_eq!(unsafe { sys::lasp_forward(plan.as_raw(), &args, null_mut()) }, sys::LASP_OK);
        }));
        safe = safe.min(median_us(|| {
            let tensors = Forward::new(&empty, &empty, &empty, &mut o)
                .initial_state(&state)
                .final_state(&mut final_state)
                .workspace(&mut workspace);
            plan.forward(tensors).unwrap();
        }));
    }
    println!("lasp_forward without work: {:.3} us from C's side, {:.3} us through lasp", raw, safe);
    assert!(safe - raw < 5.0, "the binding adds {:.3} us to {:.3} us", safe - raw, raw);
}
