//! A sequence over four ranks, each a thread with a quarter of the tokens: forward and backward, with a state
//! carried in, compared with the whole sequence on one rank.     cargo run --example four_ranks
use std::error::Error;
use std::thread;

use lasp::{Backward, Comm, Context, ContextOptions, Decay, Forward, Plan, Problem};

const TOKENS: usize = 512;
const HEADS: usize = 4;
const DIM: usize = 32;
const WIDTH: usize = HEADS * DIM; // elements of one token of one tensor

/// The whole sequence's tensors [1, TOKENS, HEADS, DIM], the decay [HEADS] and the initial state [1, HEADS, DIM,
/// DIM].
struct Data {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    d_o: Vec<f32>,
    g: Vec<f32>,
    state: Vec<f32>,
}

/// What one rank computes: o and dq of its own tokens.
fn rank_main(context: &Context, data: &Data) -> Result<(Vec<f32>, Vec<f32>), lasp::Error> {
    let (rank, nranks) = (context.comm().rank(), context.comm().nranks());
    let tokens = TOKENS / nranks;
    let mine = rank * tokens * WIDTH..(rank + 1) * tokens * WIDTH;
    let (q, k, v, d_o) = (&data.q[mine.clone()], &data.k[mine.clone()], &data.v[mine.clone()], &data.d_o[mine]);

    let problem = Problem::new().tokens(tokens).heads(HEADS).head_dims(DIM, DIM).decay(Decay::Head);
    let plan = Plan::new(context, &problem)?; // all ranks meet here for the first time
    let zeros = || vec![0.0f32; tokens * WIDTH];
    let (mut o, mut dq, mut dk, mut dv, mut dg) = (zeros(), zeros(), zeros(), zeros(), vec![0.0f32; HEADS]);

    let mut cache = plan.state_cache()?;
    let mut workspace = plan.forward_workspace()?;
    let forward = Forward::new(q, k, v, &mut o).decay(&data.g).initial_state(&data.state);
    plan.forward(forward.state_cache(&mut cache).workspace(&mut workspace))?;

    let mut workspace = plan.backward_workspace()?;
    let backward = Backward::new(q, k, v, d_o, &mut dq, &mut dk, &mut dv).decay(&data.g).d_decay(&mut dg);
    plan.backward(backward.initial_state(&data.state).state_cache(&cache).workspace(&mut workspace))?;

    println!(
        "rank {} of {}: tokens from {}, {:?}, {} bytes sent",
        rank,
        nranks,
        plan.info().token_begin,
        plan.info().schedule,
        context.comm().traffic()?.bytes_sent
    );
    Ok((o, dq))
}

/// o and dq of all tokens, from a group of this many ranks.
fn run(nranks: usize, data: &Data) -> Result<(Vec<f32>, Vec<f32>), lasp::Error> {
    let context = |comm| Context::with_options(comm, ContextOptions::new().cpu_threads(1));
    let mut contexts = Comm::threads(nranks)?.into_iter().map(context).collect::<Result<Vec<_>, _>>()?;
    // One thread at a time uses a context: each is lent to its rank's thread alone.
    let parts: Vec<_> = thread::scope(|scope| {
        let mut ranks = Vec::new();
        for context in &mut contexts {
            ranks.push(scope.spawn(move || rank_main(context, data)));
        }
        ranks.into_iter().map(|rank| rank.join().expect("a rank panicked")).collect()
    });
    let (mut o, mut dq) = (Vec::new(), Vec::new());
    for part in parts {
        let (part_o, part_dq) = part?;
        o.extend(part_o);
        dq.extend(part_dq);
    }
    Ok((o, dq))
}

fn wave(count: usize, speed: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * speed).sin() * 0.5).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let data = Data {
        q: wave(TOKENS * WIDTH, 0.7),
        k: wave(TOKENS * WIDTH, 1.1),
        v: wave(TOKENS * WIDTH, 1.7),
        d_o: wave(TOKENS * WIDTH, 2.3),
        g: (0..HEADS).map(|h| -0.5f32.powi(h as i32 + 3)).collect(),
        state: wave(HEADS * DIM * DIM, 0.3),
    };
    let (alone, together) = (run(1, &data)?, run(4, &data)?);
    for (name, a, b) in [("o", &alone.0, &together.0), ("dq", &alone.1, &together.1)] {
        let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|x| x * x).sum::<f32>().sqrt();
        let error = norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut a.iter().copied());
        println!("{:2}: one rank and four differ by {:.1e}", name, error);
        if error.is_nan() || error > 4e-6 {
            return Err(format!("{} differs by {}", name, error).into());
        }
    }
    Ok(())
}
