//! Decoding after a prefill gives what one forward pass over everything gives.
use lasp::{Decay, Forward, Operand, Plan, Schedule, Step, Tensor, TensorMut};

use crate::conformance::error;
use crate::helpers::context;
use crate::run::{beta_of, decay_of, problem, window};
use crate::vectors::{all, Vector};

/// o and the final state of a prefill of half the tokens and single steps after it.
fn prefill_and_step(v: &Vector) -> lasp::Result<(Vec<f32>, Vec<f32>)> {
    let context = context();
    let (half, heads) = (v.tokens / 2, v.heads());
    let view = |name: &str, begin, count, heads, dim| window(v, v.get(name).unwrap(), begin, count, heads, dim);
    let mut o = vec![0.0f32; v.batch * v.tokens * heads * v.dim_v];
    let o_width = heads * v.dim_v;
    let o_strides = [v.tokens * o_width, o_width, v.dim_v, 1];
    let mut state = vec![0.0f32; v.sequences() * heads * v.dim_k * v.dim_v];

    // Every count of tokens is a plan of its own; all of them use views of the same tensors.
    let plan = |count: usize| {
        let mut p = problem(v, Schedule::Auto).tokens(count).backward(false);
        for (operand, name, heads, dim) in [
            (Operand::Q, "q", v.heads_q, v.dim_k),
            (Operand::K, "k", v.heads_k, v.dim_k),
            (Operand::V, "v", v.heads_v, v.dim_v),
        ] {
            p = p.strides(operand, view(name, 0, count, heads, dim).strides());
        }
        if let (Decay::Scalar | Decay::Channel, Some(decay)) = (v.decay, decay_of(v, 0, count)) {
            p = p.strides(Operand::Decay, decay.strides());
        }
        if let Some(beta) = beta_of(v, 0, count) {
            p = p.strides(Operand::Beta, beta.strides());
        }
        let o = Tensor::strided(v.get("o").unwrap(), &[v.batch, count, heads, v.dim_v], &o_strides)?;
        Plan::new(&context, &p.strides(Operand::O, o.strides()))
    };

    let prefill = plan(half)?;
    let mut workspace = prefill.forward_workspace()?;
    let first = TensorMut::strided(&mut o, &[v.batch, half, heads, v.dim_v], &o_strides)?;
    let mut forward = Forward::new(
        view("q", 0, half, v.heads_q, v.dim_k),
        view("k", 0, half, v.heads_k, v.dim_k),
        view("v", 0, half, v.heads_v, v.dim_v),
        first,
    )
    .final_state(&mut state)
    .workspace(&mut workspace);
    if let Some(decay) = decay_of(v, 0, half) {
        forward = forward.decay(decay);
    }
    if let Some(beta) = beta_of(v, 0, half) {
        forward = forward.beta(beta);
    }
    if let Some(initial) = v.get("initial_state") {
        forward = forward.initial_state(initial);
    }
    prefill.forward(forward)?;

    let one = plan(1)?;
    for t in half..v.tokens {
        let place = TensorMut::strided(&mut o[t * o_width..], &[v.batch, 1, heads, v.dim_v], &o_strides)?;
        let mut step = Step::new(
            view("q", t, 1, v.heads_q, v.dim_k),
            view("k", t, 1, v.heads_k, v.dim_k),
            view("v", t, 1, v.heads_v, v.dim_v),
            &mut state,
            place,
        );
        if let Some(decay) = decay_of(v, t, 1) {
            step = step.decay(decay);
        }
        if let Some(beta) = beta_of(v, t, 1) {
            step = step.beta(beta);
        }
        one.step(step)?;
    }
    Ok((o, state))
}

#[test]
fn prefill_and_steps_give_the_vectors_results() {
    let mut tried = [0, 0]; // of the delta write the second
    for v in all().iter().filter(|v| v.cu_seqlens.is_empty()) {
        let (o, state) = prefill_and_step(v).unwrap_or_else(|e| panic!("{}: {}", v.name, e));
        let errors = [error(v.get("o").unwrap(), &o, None), error(v.get("final_state").unwrap(), &state, None)];
        // The bound of the conformance tests: the sums are the same, in another order.
        assert!(errors.iter().all(|e| *e <= 2e-6), "{}: errors of o and final_state {:?}", v.name, errors);
        tried[usize::from(v.delta)] += 1;
    }
    assert!(tried[0] >= 20 && tried[1] >= 5, "only {:?} vectors were tried", tried);
}
