//! Ranks that disagree, do not come, or are aborted: every one of them is told.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use lasp::{Backward, Comm, Context, ContextOptions, Error, Forward, Plan, Problem, Result, Schedule, Status};

use crate::helpers::{is, refused, small_problem, SMALL};

/// What each rank gets for its problem, on a thread of its own.
fn plan_on_ranks(problems: Vec<Problem>) -> Vec<Result<(), Error>> {
    let comms = Comm::threads(problems.len()).unwrap();
    let ranks = comms.into_iter().zip(problems).map(|(comm, problem)| {
        thread::spawn(move || {
            let options = ContextOptions::new().cpu_threads(1).time_limit(Duration::from_secs(60));
            let plan = Plan::new(Context::with_options(comm, options)?, &problem)?;
            assert_eq!((plan.info().nranks, plan.context().comm().nranks()), (2, 2));
            Ok(())
        })
    });
    let ranks: Vec<_> = ranks.collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

#[test]
fn ranks_that_disagree() {
    for result in plan_on_ranks(vec![small_problem(), small_problem().heads(4)]) {
        refused(result, Status::DISAGREEMENT, "heads");
    }
    for result in plan_on_ranks(vec![small_problem(), small_problem().tokens(0)]) {
        result.unwrap();
    }
}

#[test]
fn a_rank_whose_problem_is_refused() {
    let mut results = plan_on_ranks(vec![small_problem(), small_problem().head_dims(9, 8)]);
    refused(results.pop().unwrap(), Status::UNSUPPORTED, "head_dim_k = 9");
    refused(results.pop().unwrap(), Status::PEER_REFUSED, "rank 1");
    // By this crate, before the library sees the problem.
    let mut results = plan_on_ranks(vec![small_problem(), small_problem().decay_dtype(lasp::Dtype::Float16)]);
    refused(results.pop().unwrap(), Status::INVALID_ARGUMENT, "decay_dtype: given");
    refused(results.pop().unwrap(), Status::PEER_REFUSED, "rank 1");
}

#[test]
fn a_rank_that_does_not_come() {
    let mut comms = Comm::threads(2).unwrap();
    let _absent = comms.pop();
    let options = ContextOptions::new().time_limit(Duration::from_millis(20));
    let context = Context::with_options(comms.pop().unwrap(), options).unwrap();
    refused(Plan::new(&context, &small_problem()), Status::PEER_LOST, "rank 1");
    refused(Plan::new(&context, &small_problem()), Status::PEER_LOST, "");
}

#[test]
fn an_abort_from_another_thread() {
    let mut comms = Comm::threads(2).unwrap();
    let _absent = comms.pop();
    let context = Context::with_options(comms.pop().unwrap(), ContextOptions::new().no_time_limit()).unwrap();
    let handle = context.abort_handle();
    let aborter = {
        let handle = handle.clone();
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            handle.abort().unwrap();
        })
    };
    refused(Plan::new(&context, &small_problem()), Status::ABORTED, "abort");
    aborter.join().unwrap();
    drop(context);
    is(&handle.abort().unwrap_err(), Status::INVALID_HANDLE, "it was dropped");
}

// The closure is asked on the thread of the call while it waits; what it says, and a panic in it, ends the call.
#[test]
fn an_interrupted_wait() {
    for panics in [false, true] {
        let mut comms = Comm::threads(2).unwrap();
        let _absent = comms.pop();
        let (asked, here) = (Arc::new(AtomicUsize::new(0)), thread::current().id());
        let count = Arc::clone(&asked);
        let options = ContextOptions::new().time_limit(Duration::from_secs(20)).interrupted(move || {
            assert_eq!(thread::current().id(), here);
            assert_eq!(Comm::single().unwrap_err().status(), Status::IN_USE);
            if count.fetch_add(1, Ordering::Relaxed) < 2 {
                return false;
            }
            if panics {
                std::panic::resume_unwind(Box::new("a panic, without its message"));
            }
            true
        });
        let context = Context::with_options(comms.pop().unwrap(), options).unwrap();
        let began = Instant::now();
        refused(Plan::new(&context, &small_problem()), Status::ABORTED, "interrupted");
        assert!(began.elapsed() < Duration::from_secs(10) && asked.load(Ordering::Relaxed) == 3);
        refused(Plan::new(&context, &small_problem()), Status::ABORTED, "");
    }
}

/// Rank 1 makes a call that this crate refuses, before the library sees it; rank 0 is told in its own.
fn told_of(refused_call: fn(&Plan) -> Result<()>, right: fn(&Plan) -> Result<()>, words: &'static str) {
    let both = Arc::new(Barrier::new(2));
    let ranks = Comm::threads(2).unwrap().into_iter().map(|comm| {
        let both = Arc::clone(&both);
        thread::spawn(move || {
            let options = ContextOptions::new().cpu_threads(1).time_limit(Duration::from_secs(20));
            let rank = comm.rank();
            let context = Context::with_options(comm, options).unwrap();
            let plan = Plan::new(context, &small_problem().schedule(Schedule::AllGather)).unwrap();
            forward(&plan).unwrap();
            both.wait();
            let began = Instant::now();
            if rank == 1 {
                refused(refused_call(&plan), Status::INVALID_ARGUMENT, words);
            } else {
                let error = (0..).find_map(|_| right(&plan).err()).unwrap();
                is(&error, Status::PEER_LOST, "rank 1");
            }
            assert!(began.elapsed() < Duration::from_secs(10));
            plan // lives on: rank 0 would also be told that rank 1 is gone
        })
    });
    let ranks: Vec<_> = ranks.collect();
    let plans: Vec<_> = ranks.into_iter().map(|rank| rank.join()).collect();
    assert!(plans.iter().all(|plan| plan.is_ok()));
}

fn forward(plan: &Plan) -> Result<()> {
    let (x, mut o) = (vec![1.0f32; SMALL], vec![0.0f32; SMALL]);
    let (mut cache, mut workspace) = (plan.state_cache()?, plan.forward_workspace()?);
    plan.forward(Forward::new(&x, &x, &x, &mut o).state_cache(&mut cache).workspace(&mut workspace))
}

fn backward(plan: &Plan, written: bool) -> Result<()> {
    let x = vec![1.0f32; SMALL];
    let (mut dq, mut dk, mut dv) = (x.clone(), x.clone(), x.clone());
    let (mut cache, mut workspace) = (plan.state_cache()?, plan.backward_workspace()?);
    if written {
        cache.assume_written();
    }
    let tensors = Backward::new(&x, &x, &x, &x, &mut dq, &mut dk, &mut dv);
    plan.backward(tensors.state_cache(&cache).workspace(&mut workspace))
}

#[test]
fn a_pass_that_is_refused_here_is_told_to_the_others() {
    let wrong = |plan: &Plan| {
        let (x, mut o) = (vec![lasp::F16::default(); SMALL], vec![0.0f32; SMALL]);
        plan.forward(Forward::new(&x, &x, &x, &mut o))
    };
    told_of(wrong, forward, "q: its elements are Float16");
    told_of(|plan| backward(plan, false), |plan| backward(plan, true), "state_cache: no forward has written it");
}
