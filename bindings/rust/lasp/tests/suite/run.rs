//! Runs a vector forward and backward on a group of ranks, a thread for each, and puts the ranks' results together.
//! Inputs are views of the global tensors: a rank's tokens are a strided part of each.
use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use lasp::{
    Backward, Comm, Context, ContextOptions, Decay, Error, Forward, Operand, Plan, Problem, Schedule, Tensor,
    TensorMut, Write,
};

use crate::vectors::Vector;

/// Results by the vectors' names: o, final_state, dq, dk, dv, dg, dbeta, d_initial_state.
pub type Results = BTreeMap<&'static str, Vec<f32>>;

/// Tokens of each rank: two ranks share evenly, three have one that is empty, four have very different parts.
pub fn split(tokens: usize, nranks: usize) -> Vec<usize> {
    match nranks {
        1 => vec![tokens],
        2 => vec![tokens - tokens / 2, tokens / 2],
        3 => vec![tokens / 3, 0, tokens - tokens / 3],
        4 => vec![1, tokens / 2, tokens / 4 + 1, tokens - tokens / 2 - tokens / 4 - 2],
        _ => panic!("no split for {} ranks", nranks),
    }
}

pub fn problem(v: &Vector, schedule: Schedule) -> Problem {
    let mut p = Problem::new()
        .batch(v.batch)
        .grouped_heads(v.heads_q, v.heads_k, v.heads_v)
        .head_dims(v.dim_k, v.dim_v)
        .decay(v.decay)
        .scale(v.scale)
        .schedule(schedule);
    if v.delta {
        p = p.write(Write::Delta);
    }
    if !v.cu_seqlens.is_empty() {
        p = p.max_sequences(v.cu_seqlens.len() - 1);
    }
    p
}

/// Tokens [begin, begin + count) of a global [B, T, heads, dim], where it lies.
pub fn window<'a>(
    v: &Vector,
    values: &'a [f32],
    begin: usize,
    count: usize,
    heads: usize,
    dim: usize,
) -> Tensor<'a, f32> {
    let width = heads * dim;
    let shape = [v.batch, count, heads, dim];
    Tensor::strided(&values[begin * width..], &shape, &[v.tokens * width, width, dim, 1]).unwrap()
}

/// Copies a rank's contiguous [B, count, width] into the global [B, T, width].
fn place(v: &Vector, global: &mut [f32], local: &[f32], begin: usize, count: usize) {
    let width = global.len() / (v.batch * v.tokens);
    for b in 0..v.batch {
        let at = (b * v.tokens + begin) * width;
        global[at..at + count * width].copy_from_slice(&local[b * count * width..(b + 1) * count * width]);
    }
}

/// What a rank has to hand in.
struct Part {
    begin: usize,
    count: usize,
    tensors: Vec<(&'static str, Vec<f32>)>,
    d_decay: Vec<f32>,
    d_beta: Vec<f32>,
    final_state: Vec<f32>,
    d_initial_state: Vec<f32>,
    owners: Vec<(usize, usize)>, // of each sequence: the first rank and the last
}

fn run_rank(v: &Vector, context: &Context, begin: usize, count: usize, schedule: Schedule) -> Result<Part, Error> {
    let view = |name: &str, heads, dim| window(v, v.get(name).unwrap(), begin, count, heads, dim);
    let q = view("q", v.heads_q, v.dim_k);
    let k = view("k", v.heads_k, v.dim_k);
    let value = view("v", v.heads_v, v.dim_v);
    let d_o = view("do", v.heads(), v.dim_v);
    let mut p = problem(v, schedule).tokens(count);
    for (operand, tensor) in [(Operand::Q, q), (Operand::K, k), (Operand::V, value), (Operand::DO, d_o)] {
        p = p.strides(operand, tensor.strides());
    }
    let decay = decay_of(v, begin, count);
    if let (Decay::Scalar | Decay::Channel, Some(decay)) = (v.decay, &decay) {
        p = p.strides(Operand::Decay, decay.strides());
    }
    let beta = beta_of(v, begin, count);
    if let Some(beta) = &beta {
        p = p.strides(Operand::Beta, beta.strides());
    }
    let plan = Plan::new(context, &p)?;
    let zeros = |heads: usize, dim: usize| vec![0.0f32; v.batch * count * heads * dim];
    let mut part = Part {
        begin,
        count,
        tensors: vec![
            ("o", zeros(v.heads(), v.dim_v)),
            ("dq", zeros(v.heads_q, v.dim_k)),
            ("dk", zeros(v.heads_k, v.dim_k)),
            ("dv", zeros(v.heads_v, v.dim_v)),
        ],
        d_decay: match v.decay {
            Decay::Head => vec![0.0; v.heads()],
            Decay::Scalar => zeros(v.heads(), 1),
            Decay::Channel => zeros(v.heads(), v.dim_k),
            _ => vec![],
        },
        d_beta: if v.delta { zeros(v.heads(), 1) } else { vec![] },
        // What no rank may touch stays NaN.
        final_state: vec![f32::NAN; v.sequences() * v.heads() * v.dim_k * v.dim_v],
        d_initial_state: vec![f32::NAN; v.sequences() * v.heads() * v.dim_k * v.dim_v],
        owners: vec![],
    };
    for n in 0..v.sequences() {
        let packed = !v.cu_seqlens.is_empty();
        let (begin, end) =
            if packed { (v.cu_seqlens[n] as usize, v.cu_seqlens[n + 1] as usize) } else { (0, v.tokens) };
        let owners = plan.owners(begin, end)?;
        part.owners.push((owners.first_rank, owners.last_rank));
    }
    let [(_, o), (_, dq), (_, dk), (_, dv)] = <&mut [_; 4]>::try_from(&mut part.tensors[..]).unwrap();
    let (mut cache, mut workspace) = (plan.state_cache()?, plan.forward_workspace()?);
    let o = TensorMut::new(&mut o[..], &[v.batch, count, v.heads(), v.dim_v])?;
    let mut forward = Forward::new(q, k, value, o)
        .final_state(&mut part.final_state)
        .state_cache(&mut cache)
        .workspace(&mut workspace);
    let mut workspace = plan.backward_workspace()?;
    let mut backward = Backward::new(q, k, value, d_o, &mut dq[..], &mut dk[..], &mut dv[..])
        .d_initial_state(&mut part.d_initial_state)
        .workspace(&mut workspace);
    if let Some(decay) = decay {
        forward = forward.decay(decay);
        backward = backward.decay(decay).d_decay(&mut part.d_decay);
    }
    if let Some(beta) = beta {
        forward = forward.beta(beta);
        backward = backward.beta(beta).d_beta(&mut part.d_beta);
    }
    if let Some(state) = v.get("initial_state") {
        forward = forward.initial_state(state);
        backward = backward.initial_state(state);
    }
    if let Some(state) = v.get("d_final_state") {
        backward = backward.d_final_state(state);
    }
    if !v.cu_seqlens.is_empty() {
        forward = forward.packing(&v.cu_seqlens);
        backward = backward.packing(&v.cu_seqlens);
    }
    plan.forward(forward)?;
    plan.backward(backward.state_cache(&cache))?;
    Ok(part)
}

/// The same of a global [B, T, H].
fn per_token<'a>(v: &Vector, values: &'a [f32], begin: usize, count: usize) -> Tensor<'a, f32> {
    let heads = v.heads();
    let shape = [v.batch, count, heads];
    Tensor::strided(&values[begin * heads..], &shape, &[v.tokens * heads, heads, 1]).unwrap()
}

pub fn decay_of(v: &Vector, begin: usize, count: usize) -> Option<Tensor<'_, f32>> {
    let (g, heads) = (v.get("g")?, v.heads());
    Some(match v.decay {
        Decay::Scalar => per_token(v, g, begin, count),
        Decay::Channel => window(v, g, begin, count, heads, v.dim_k),
        _ => Tensor::new(g, &[heads]).unwrap(),
    })
}

pub fn beta_of(v: &Vector, begin: usize, count: usize) -> Option<Tensor<'_, f32>> {
    v.get("beta").map(|beta| per_token(v, beta, begin, count))
}

/// The whole vector on these comms, one thread for each; the error is each rank's.
pub fn run(v: &Vector, comms: Vec<Comm>, schedule: Schedule) -> Result<Results, Vec<Error>> {
    let options = || ContextOptions::new().cpu_threads(1).time_limit(Duration::from_secs(20));
    let context = |comm| Context::with_options(comm, options()).unwrap();
    let mut contexts: Vec<Context> = comms.into_iter().map(context).collect();
    let counts = split(v.tokens, contexts.len());
    let parts: Vec<Result<Part, Error>> = thread::scope(|scope| {
        let mut begin = 0;
        let mut ranks = Vec::new();
        for (context, &count) in contexts.iter_mut().zip(&counts) {
            let from = begin;
            ranks.push(scope.spawn(move || run_rank(v, context, from, count, schedule)));
            begin += count;
        }
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let (parts, errors): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| part.is_ok());
    if !errors.is_empty() {
        return Err(errors.into_iter().filter_map(Result::err).collect());
    }
    Ok(assemble(v, parts.into_iter().filter_map(Result::ok).collect()))
}

fn assemble(v: &Vector, parts: Vec<Part>) -> Results {
    let zeros = |heads: usize, dim: usize| vec![0.0f32; v.batch * v.tokens * heads * dim];
    let mut results = Results::new();
    results.insert("o", zeros(v.heads(), v.dim_v));
    results.insert("dq", zeros(v.heads_q, v.dim_k));
    results.insert("dk", zeros(v.heads_k, v.dim_k));
    results.insert("dv", zeros(v.heads_v, v.dim_v));
    let state_size = v.heads() * v.dim_k * v.dim_v;
    let mut states = [vec![0.0f32; v.sequences() * state_size], vec![0.0f32; v.sequences() * state_size]];
    let mut d_decay = match v.decay {
        Decay::Head => vec![0.0; v.heads()],
        Decay::Scalar => zeros(v.heads(), 1),
        Decay::Channel => zeros(v.heads(), v.dim_k),
        _ => vec![],
    };
    let mut d_beta = if v.delta { zeros(v.heads(), 1) } else { vec![] };
    for (rank, part) in parts.iter().enumerate() {
        if v.delta {
            place(v, &mut d_beta, &part.d_beta, part.begin, part.count);
        }
        for (name, local) in &part.tensors {
            place(v, results.get_mut(name).unwrap(), local, part.begin, part.count);
        }
        match v.decay {
            Decay::None => {}
            Decay::Head => d_decay.iter_mut().zip(&part.d_decay).for_each(|(sum, share)| *sum += share),
            _ => place(v, &mut d_decay, &part.d_decay, part.begin, part.count),
        }
        for (n, &(first, last)) in part.owners.iter().enumerate() {
            let range = n * state_size..(n + 1) * state_size;
            for (state, local, owner) in [(0, &part.final_state, last), (1, &part.d_initial_state, first)] {
                let local = &local[range.clone()];
                if owner == rank {
                    states[state][range.clone()].copy_from_slice(local);
                } else {
                    assert!(local.iter().all(|x| x.is_nan()), "rank {} wrote a state of rank {}", rank, owner);
                }
            }
        }
    }
    let [final_state, d_initial_state] = states;
    results.insert("final_state", final_state);
    results.insert("d_initial_state", d_initial_state);
    if v.decay != Decay::None {
        results.insert("dg", d_decay);
    }
    if v.delta {
        results.insert("dbeta", d_beta);
    }
    results
}
