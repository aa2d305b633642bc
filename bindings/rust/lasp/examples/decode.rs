//! Prefill over three ranks, then decoding on one: the state that the prefill leaves is all that decoding needs.
//! cargo run --example decode
use std::error::Error;
use std::thread;

use lasp::{Comm, Context, ContextOptions, Decay, Forward, Plan, Problem, Step};

const PROMPT: usize = 300;
const STEPS: usize = 20;
const HEADS: usize = 2;
const DIM: usize = 64;
const WIDTH: usize = HEADS * DIM;

/// Decay given token by token: q, k and v [1, T, HEADS, DIM], g [1, T, HEADS].
struct Tokens {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    g: Vec<f32>,
}

fn problem(tokens: usize) -> Problem {
    Problem::new().tokens(tokens).heads(HEADS).head_dims(DIM, DIM).decay(Decay::Scalar).backward(false)
}

fn context(comm: Comm) -> Result<Context, lasp::Error> {
    Ok(Context::with_options(comm, ContextOptions::new().cpu_threads(1))?)
}

/// o and the final state of `count` tokens from `begin` on; the state is that of the whole group.
fn prefill(context: &Context, x: &Tokens, begin: usize, count: usize) -> Result<(Vec<f32>, Vec<f32>), lasp::Error> {
    let plan = Plan::new(context, &problem(count).broadcast_final_state(true))?;
    let (mut o, mut state) = (vec![0.0f32; count * WIDTH], vec![0.0f32; HEADS * DIM * DIM]);
    let mut workspace = plan.forward_workspace()?;
    let part = begin * WIDTH..(begin + count) * WIDTH;
    let forward = Forward::new(&x.q[part.clone()], &x.k[part.clone()], &x.v[part], &mut o)
        .decay(&x.g[begin * HEADS..(begin + count) * HEADS])
        .final_state(&mut state)
        .workspace(&mut workspace);
    plan.forward(forward)?;
    Ok((o, state))
}

fn wave(count: usize, speed: f32, shift: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * speed).sin() * 0.4 + shift).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let all = PROMPT + STEPS;
    let x = Tokens {
        q: wave(all * WIDTH, 0.7, 0.0),
        k: wave(all * WIDTH, 1.1, 0.0),
        v: wave(all * WIDTH, 1.7, 0.1),
        g: wave(all * HEADS, 0.9, -0.5),
    };

    // The prompt on three ranks of different lengths; the last one's copy of the state goes on.
    let lengths = [120, 50, 130];
    let mut contexts = Comm::threads(lengths.len())?.into_iter().map(context).collect::<Result<Vec<_>, _>>()?;
    let results: Vec<_> = thread::scope(|scope| {
        let (x, mut begin, mut ranks) = (&x, 0, Vec::new());
        for (context, count) in contexts.iter_mut().zip(lengths) {
            ranks.push(scope.spawn(move || prefill(context, x, begin, count)));
            begin += count;
        }
        ranks.into_iter().map(|rank| rank.join().expect("a rank panicked")).collect()
    });
    let (_o, mut state) = results.into_iter().last().expect("three ranks")?;

    // One token at a time, on one plan.
    let alone = context(Comm::single()?)?;
    let plan = Plan::new(&alone, &problem(1))?;
    let mut decoded = vec![0.0f32; STEPS * WIDTH];
    for (i, o) in decoded.chunks_exact_mut(WIDTH).enumerate() {
        let t = PROMPT + i;
        let part = t * WIDTH..(t + 1) * WIDTH;
        let step = Step::new(&x.q[part.clone()], &x.k[part.clone()], &x.v[part], &mut state, o);
        plan.step(step.decay(&x.g[t * HEADS..(t + 1) * HEADS]))?;
    }

    // The same from one forward pass over everything.
    let (whole, _state) = prefill(&alone, &x, 0, all)?;
    let largest = |values: &[f32]| values.iter().fold(0.0f32, |a, x| a.max(x.abs()));
    let difference: Vec<f32> = decoded.iter().zip(&whole[PROMPT * WIDTH..]).map(|(a, b)| a - b).collect();
    let error = largest(&difference) / largest(&whole);
    println!("{} tokens decoded after {} on three ranks: off by {:.1e}", STEPS, PROMPT, error);
    if error.is_nan() || error > 1e-5 {
        return Err("decoding and the forward pass differ".into());
    }
    Ok(())
}
