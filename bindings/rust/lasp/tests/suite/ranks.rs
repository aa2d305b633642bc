//! Ranks that disagree, do not come, or are aborted: every one of them is told.
use std::thread;
use std::time::Duration;

use lasp::{Comm, Context, ContextOptions, Error, Plan, Problem, Status};

use crate::helpers::{is, refused, small_problem};

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
    let mut results = plan_on_ranks(vec![small_problem(), small_problem().scale(0.0)]);
    refused(results.pop().unwrap(), Status::INVALID_ARGUMENT, "scale = 0");
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
