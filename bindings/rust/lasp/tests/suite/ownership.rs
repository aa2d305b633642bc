//! Ranks that own several runs of tokens.
use lasp::{Comm, Context, ContextOptions, Forward, Ownership, Plan, Problem, Status, Step};

use crate::helpers::{context, noise, refused};

const TOKENS: usize = 12;
const WIDTH: usize = 2 * 8;

fn problem(tokens: usize) -> Problem {
    Problem::new().tokens(tokens).heads(2).head_dims(8, 8)
}

fn outputs(context: &Context, problem: &Problem, x: &[f32]) -> Vec<f32> {
    let plan = Plan::new(context, problem).unwrap();
    let (mut cache, mut workspace) = (plan.state_cache().unwrap(), plan.forward_workspace().unwrap());
    let mut o = vec![0.0f32; x.len()];
    plan.forward(Forward::new(x, x, x, &mut o).state_cache(&mut cache).workspace(&mut workspace)).unwrap();
    o
}

/// The output of two ranks, each with the tokens named.
fn of_two(problem: fn(usize) -> Problem, tokens: [Vec<usize>; 2], x: &[f32]) -> Vec<f32> {
    let row = |token: usize| x[token * WIDTH..(token + 1) * WIDTH].to_vec();
    let parts: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let ranks: Vec<_> = Comm::threads(2)
            .unwrap()
            .into_iter()
            .zip(&tokens)
            .map(|(comm, own)| {
                let x: Vec<f32> = own.iter().flat_map(|&token| row(token)).collect();
                scope.spawn(move || {
                    let context = Context::with_options(comm, ContextOptions::new().cpu_threads(1)).unwrap();
                    outputs(&context, &problem(x.len() / WIDTH), &x)
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let mut whole = vec![0.0; x.len()];
    for (part, own) in parts.iter().zip(&tokens) {
        for (row, &token) in part.chunks(WIDTH).zip(own) {
            whole[token * WIDTH..(token + 1) * WIDTH].copy_from_slice(row);
        }
    }
    whole
}

#[test]
fn ranks_have_several_runs() {
    let x = noise(TOKENS * WIDTH, 9);
    let one = outputs(&context(), &problem(TOKENS), &x);
    let near = |many: &[f32]| one.iter().zip(many).all(|(a, b)| (a - b).abs() <= 1e-5 * a.abs().max(1.0));
    let zigzag = of_two(
        |tokens| problem(tokens).ownership(Ownership::Zigzag),
        [[0, 1, 2, 9, 10, 11].to_vec(), (3..9).collect()],
        &x,
    );
    assert!(near(&zigzag));
    let listed = of_two(
        |tokens| problem(tokens).ownership(Ownership::Runs).runs(&[(4, 1), (0, 0), (5, 0), (3, 1)]),
        [(4..9).collect(), [0, 1, 2, 3, 9, 10, 11].to_vec()],
        &x,
    );
    assert!(near(&listed));
}

#[test]
fn each_packed_sequence_by_itself() {
    let (x, offsets, context) = (noise(TOKENS * WIDTH, 4), [0i64, 4, 4, 12], context());
    let of = |ownership: Ownership, offsets: &[i64]| {
        let plan =
            Plan::new(&context, &problem(TOKENS).ownership(ownership).max_sequences(3).backward(false)).unwrap();
        let (mut o, mut workspace) = (vec![0.0f32; x.len()], plan.forward_workspace().unwrap());
        plan.forward(Forward::new(&x, &x, &x, &mut o).workspace(&mut workspace).packing(offsets)).map(|()| o)
    };
    let (one, each) = (of(Ownership::Contiguous, &offsets).unwrap(), of(Ownership::ZigzagEach, &offsets).unwrap());
    assert!(one.iter().zip(&each).all(|(a, b)| (a - b).abs() <= 1e-5 * a.abs().max(1.0)));
    refused(of(Ownership::ZigzagEach, &[0, 3, 12]), Status::INVALID_ARGUMENT, "2 parts of one length");
    let unpacked = Plan::new(&context, &problem(TOKENS).ownership(Ownership::ZigzagEach));
    refused(unpacked, Status::INVALID_ARGUMENT, "max_sequences = 0");
}

#[test]
fn steps_of_fewer_tokens() {
    let (x, context) = (noise(TOKENS * WIDTH, 5), context());
    let plan = Plan::new(&context, &problem(TOKENS).backward(false)).unwrap();
    let (mut o, mut state) = (vec![0.0f32; x.len()], vec![0.0f32; 2 * 8 * 8]);
    plan.step(Step::new(&x, &x, &x, &mut state, &mut o)).unwrap();
    let (mut first, mut again) = (vec![-1.0f32; x.len()], vec![0.0f32; state.len()]);
    plan.step(Step::new(&x, &x, &x, &mut again, &mut first).tokens(5)).unwrap();
    assert_eq!(first[..5 * WIDTH], o[..5 * WIDTH]);
    assert!(first[5 * WIDTH..].iter().all(|&value| value == -1.0));
    let wrong = plan.step(Step::new(&x, &x, &x, &mut again, &mut first).tokens(TOKENS + 1));
    refused(wrong, Status::INVALID_ARGUMENT, "tokens = 13");
}

#[test]
fn wrong_runs() {
    let (context, own) = (context(), problem(5).ownership(Ownership::Runs));
    refused(Plan::new(&context, &own), Status::INVALID_ARGUMENT, "runs");
    refused(Plan::new(&context, &own.clone().runs(&[(2, 0), (4, 0)])), Status::INVALID_ARGUMENT, "runs");
    refused(Plan::new(&context, &own.runs(&[(2, 0), (3, 1)])), Status::INVALID_ARGUMENT, "runs");
}
