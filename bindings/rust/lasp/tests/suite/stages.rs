//! Stages on detached ranks, whose collective is a copy here; halos on ranks as threads.
use std::thread;

use lasp::{
    AlignedBytes, Backward, Comm, Context, ContextOptions, Decay, Dtype, Forward, Halo, HaloInfo, Mask, Ownership,
    Plan, PlanInfo, Problem, Schedule, Status,
};

use crate::helpers::{context, noise, refused};

const RANKS: usize = 3;
const SHARE: usize = 20;
const ROW: usize = 2 * 8; // heads times width
const STATE: usize = 2 * 8 * 8;

fn problem(tokens: usize) -> Problem {
    Problem::new().tokens(tokens).heads(2).head_dims(8, 8).decay(Decay::Scalar)
}

fn close(actual: &[f32], expected: &[f32]) {
    let square = |x: f64| x * x;
    let error: f64 = actual.iter().zip(expected).map(|(&a, &e)| square(f64::from(a) - f64::from(e))).sum();
    let size: f64 = expected.iter().map(|&e| square(f64::from(e))).sum();
    assert!(error.sqrt() <= 4e-6 * size.sqrt(), "{} of {}", error.sqrt(), size.sqrt());
    // both are right to 2e-6
}

struct Whole {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    g: Vec<f32>,
    d_o: Vec<f32>,
}

impl Whole {
    fn new() -> Whole {
        let tensor = |seed| noise(RANKS * SHARE * ROW, seed);
        let g = noise(RANKS * SHARE * 2, 9).iter().map(|x| -0.1 * x.abs()).collect();
        Whole { q: tensor(1), k: tensor(2), v: tensor(3), g, d_o: tensor(4) }
    }
}

/// o, dq, dk, dv and the decay's gradient.
type Results = [Vec<f32>; 5];

fn on_one_rank(x: &Whole) -> Results {
    let context = context();
    let plan = Plan::new(&context, &problem(RANKS * SHARE)).unwrap();
    let mut out = [x.q.clone(), x.q.clone(), x.q.clone(), x.q.clone(), x.g.clone()];
    let [o, dq, dk, dv, dg] = &mut out;
    let mut cache = plan.state_cache().unwrap();
    let forward = Forward::new(&x.q, &x.k, &x.v, o).decay(&x.g).state_cache(&mut cache);
    plan.forward(forward.workspace(&mut plan.forward_workspace().unwrap())).unwrap();
    let backward = Backward::new(&x.q, &x.k, &x.v, &x.d_o, dq, dk, dv).decay(&x.g).d_decay(dg).state_cache(&cache);
    plan.backward(backward.workspace(&mut plan.backward_workspace().unwrap())).unwrap();
    out
}

#[test]
fn stages_give_what_one_rank_gives() {
    let x = Whole::new();
    let mut out = [x.q.clone(), x.q.clone(), x.q.clone(), x.q.clone(), x.g.clone()];
    let plans: Vec<Plan> = (0..RANKS)
        .map(|rank| {
            let options = ContextOptions::new().cpu_threads(1);
            let context = Context::with_options(Comm::detached(rank, RANKS).unwrap(), options).unwrap();
            Plan::new(context, &problem(SHARE)).unwrap()
        })
        .collect();
    let part = |tensor: &[f32], rank: usize| -> Vec<f32> {
        let each = tensor.len() / RANKS;
        tensor[rank * each..(rank + 1) * each].to_vec()
    };
    let map_bytes = plans[0].info().map_bytes;
    let mut maps = plans[0].maps().unwrap();
    let mut stages: Vec<_> = plans.iter().map(|plan| plan.forward_stages().unwrap()).collect();
    let mut caches: Vec<_> = plans.iter().map(|plan| plan.state_cache().unwrap()).collect();
    for (rank, plan) in plans.iter().enumerate() {
        let (q, k, v, g) = (part(&x.q, rank), part(&x.k, rank), part(&x.v, rank), part(&x.g, rank));
        let mut unused = q.clone();
        let tensors = Forward::new(&q, &k, &v, &mut unused).decay(&g).state_cache(&mut caches[rank]);
        let mut workspace = plan.forward_workspace().unwrap();
        plan.forward_summarize(tensors.workspace(&mut workspace), &mut stages[rank]).unwrap();
        maps[rank * map_bytes..(rank + 1) * map_bytes].copy_from_slice(&stages[rank].map);
    }
    let mut composed = plans[0].forward_stages().unwrap();
    plans[0].maps_compose(&stages[1].map, &stages[0].map, &mut composed.map).unwrap();
    for (rank, plan) in plans.iter().enumerate() {
        let (q, k, v, g) = (part(&x.q, rank), part(&x.k, rank), part(&x.v, rank), part(&x.g, rank));
        let mut incoming = vec![7.0f32; STATE];
        plan.maps_apply(&maps, false, &mut incoming).unwrap();
        if rank == 2 {
            let state: Vec<f32> =
                composed.map[..4 * STATE].chunks(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect();
            close(&state, &incoming);
        }
        let mut o = q.clone();
        let tensors = Forward::new(&q, &k, &v, &mut o).decay(&g).state_cache(&mut caches[rank]);
        let mut workspace = plan.forward_workspace().unwrap();
        let tensors = tensors.workspace(&mut workspace);
        plan.forward_apply(tensors, Some((&incoming).into()), &mut stages[rank]).unwrap();
        out[0][rank * SHARE * ROW..(rank + 1) * SHARE * ROW].copy_from_slice(&o);
    }

    let mut stages: Vec<_> = plans.iter().map(|plan| plan.backward_stages().unwrap()).collect();
    for apply in [false, true] {
        for (rank, plan) in plans.iter().enumerate() {
            let (q, k, v, g) = (part(&x.q, rank), part(&x.k, rank), part(&x.v, rank), part(&x.g, rank));
            let d_o = part(&x.d_o, rank);
            let (mut dq, mut dk, mut dv, mut dg) = (q.clone(), q.clone(), q.clone(), g.clone());
            let tensors = Backward::new(&q, &k, &v, &d_o, &mut dq, &mut dk, &mut dv).decay(&g).d_decay(&mut dg);
            let mut workspace = plan.backward_workspace().unwrap();
            let tensors = tensors.state_cache(&caches[rank]).workspace(&mut workspace);
            if !apply {
                plan.backward_summarize(tensors, &mut stages[rank]).unwrap();
                maps[rank * map_bytes..(rank + 1) * map_bytes].copy_from_slice(&stages[rank].map);
                continue;
            }
            let mut incoming = vec![0.0f32; STATE];
            plan.maps_apply(&maps, true, &mut incoming).unwrap();
            plan.backward_apply(tensors, Some((&incoming).into()), &mut stages[rank]).unwrap();
            for (to, from) in out[1..].iter_mut().zip([dq, dk, dv, dg]) {
                let each = from.len();
                to[rank * each..(rank + 1) * each].copy_from_slice(&from);
            }
        }
    }
    for (actual, expected) in out.iter().zip(&on_one_rank(&x)) {
        close(actual, expected);
    }
}

#[test]
fn what_stages_refuse() {
    let context = context();
    let bidirectional = Problem::new().tokens(5).heads(2).head_dims(8, 8).mask(Mask::Bidirectional);
    let plan = Plan::new(&context, &bidirectional).unwrap();
    refused(plan.forward_stages(), Status::UNSUPPORTED, "no stages");
    refused(Comm::detached(3, 3), Status::INVALID_ARGUMENT, "rank = 3");
    let plan = Plan::new(&context, &problem(5)).unwrap();
    let maps = plan.maps().unwrap();
    let mut incoming = vec![0.0f32; STATE];
    refused(plan.maps_apply(&maps[1..], false, &mut incoming), Status::BUFFER_TOO_SMALL, "maps holds");
    let longer = AlignedBytes::zeroed(maps.len() + 1, plan.info().alignment).unwrap();
    refused(plan.maps_apply(&longer[1..], false, &mut incoming), Status::MISALIGNED, "maps");
    refused(plan.maps_apply(&maps, false, &mut incoming[1..]), Status::BUFFER_TOO_SMALL, "incoming: 127 elements");
    let detached = Context::new(Comm::detached(0, 2).unwrap()).unwrap();
    let plan = Plan::new(&detached, &problem(5)).unwrap();
    let (x, g, mut o) = (vec![0.0f32; 5 * ROW], vec![0.0f32; 10], vec![0.0f32; 5 * ROW]);
    let mut workspace = plan.forward_workspace().unwrap();
    let mut cache = plan.state_cache().unwrap();
    let tensors = Forward::new(&x, &x, &x, &mut o).decay(&g).state_cache(&mut cache).workspace(&mut workspace);
    refused(plan.forward(tensors), Status::UNSUPPORTED, "its comm is detached");
}

#[test]
fn sizes_without_a_group() {
    let problem = problem(SHARE).schedule(Schedule::Ring);
    let alone = PlanInfo::of(&problem, 0, 1).unwrap();
    let context = context();
    let mut made = Plan::new(&context, &problem).unwrap().info().clone();
    made.predicted_us = alone.predicted_us; // by the link, which a group knows
    assert_eq!(alone, made);
    assert_eq!(PlanInfo::of(&problem, 2, 3).unwrap().token_begin, 2 * SHARE);
    refused(PlanInfo::of(&problem, 3, 3), Status::INVALID_ARGUMENT, "rank = 3");
}

#[test]
fn sizes_of_halos_without_a_group() {
    let problem = problem(SHARE);
    let (of, types) = ((3, 5), (Dtype::BFloat16, Dtype::Float32));
    let alone = HaloInfo::of(&problem, of, types, (0, 1)).unwrap();
    let context = context();
    let plan = Plan::new(&context, &problem).unwrap();
    assert_eq!(alone, *Halo::new(&plan, 3, 5, types.0, types.1).unwrap().info());
    let zigzag = problem.ownership(Ownership::Zigzag);
    let between = HaloInfo::of(&zigzag, of, types, (1, 3)).unwrap();
    assert_eq!(between.before_bytes, 2 * alone.before_bytes); // of two runs
    assert_eq!(between.forward_messages_sent, 2);
    refused(HaloInfo::of(&zigzag, (65, 5), types, (0, 1)), Status::INVALID_ARGUMENT, "rows = 65");
}

#[test]
fn halos() {
    const TOKENS: [usize; 3] = [4, 1, 3];
    const CHANNELS: usize = 5;
    let found: Vec<(Vec<f32>, Vec<f32>)> = thread::scope(|scope| {
        let ranks: Vec<_> = Comm::threads(3).unwrap().into_iter().enumerate().collect();
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|(rank, comm)| {
                scope.spawn(move || {
                    let context = Context::with_options(comm, ContextOptions::new().cpu_threads(1)).unwrap();
                    let problem = Problem::new().tokens(TOKENS[rank]).head_dims(8, 8);
                    let plan = Plan::new(&context, &problem).unwrap();
                    refused(
                        Halo::new(&plan, 65, CHANNELS, Dtype::Float32, Dtype::Float32),
                        Status::INVALID_ARGUMENT,
                        "rows = 65",
                    );
                    let halo = Halo::new(&plan, 2, CHANNELS, Dtype::Float32, Dtype::Float32).unwrap();
                    let begin: usize = TOKENS[..rank].iter().sum();
                    let x: Vec<f32> = (0..TOKENS[rank] * CHANNELS).map(|i| (begin * CHANNELS + i) as f32).collect();
                    let (mut before, mut d_x) = (vec![-1.0f32; 2 * CHANNELS], vec![0.0f32; x.len()]);
                    let mut workspace = halo.workspace().unwrap();
                    assert_eq!(halo.info().before_bytes, 4 * before.len());
                    halo.forward(&x, &mut before, &mut workspace, None).unwrap();
                    let d_before = vec![10f32.powi(rank as i32); before.len()];
                    halo.backward(&d_before, &mut d_x, &mut workspace, None).unwrap();
                    (before, d_x.chunks(CHANNELS).map(|row| row[0]).collect())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let firsts: Vec<Vec<f32>> =
        found.iter().map(|(before, _)| before.chunks(CHANNELS).map(|row| row[0]).collect()).collect();
    assert_eq!(firsts, [vec![0.0, 0.0], vec![10.0, 15.0], vec![15.0, 20.0]]);
    // Tokens 2 and 3 are wanted by rank 1, tokens 3 and 4 by rank 2.
    let gradients: Vec<&[f32]> = found.iter().map(|(_, d_x)| &d_x[..]).collect();
    assert_eq!(gradients, [&[0.0, 0.0, 10.0, 110.0][..], &[100.0], &[0.0, 0.0, 0.0]]);
}

#[test]
fn what_halos_refuse() {
    let context = context();
    let plan = Plan::new(&context, &problem(3)).unwrap();
    let halo = Halo::new(&plan, 2, 4, Dtype::Float32, Dtype::Float32).unwrap();
    let (x, mut before, mut workspace) = (vec![0.0f32; 12], vec![0.0f32; 8], halo.workspace().unwrap());
    let short = Status::BUFFER_TOO_SMALL;
    refused(halo.forward(&x[1..], &mut before, &mut workspace, None), short, "x: 11 elements");
    refused(halo.forward(&x, &mut before[1..], &mut workspace, None), short, "before: 7 elements");
    let halves = vec![lasp::Bf16::default(); 12];
    let wrong = halo.forward(&halves, &mut before, &mut workspace, None);
    refused(wrong, Status::INVALID_ARGUMENT, "x: its elements are BFloat16");
    halo.forward(&x, &mut before, &mut workspace, None).unwrap();
}
