//! Gradients of a type of their own and those that are added to, a scale of zero, and check_values.
use lasp::{
    AlignedBytes, Backward, Bf16, Comm, Context, ContextOptions, Dtype, Error, Forward, Gradient, Operand, Plan,
    Problem, Result, StateCache, Status,
};

use crate::helpers::{context, noise, refused, small_problem, SMALL};

/// A plan with what its passes need, and a forward pass behind it.
struct Passes<'c> {
    plan: Plan<&'c Context>,
    cache: StateCache,
    workspace: AlignedBytes,
}

fn passes<'c>(context: &'c Context, problem: &Problem, x: &[Bf16]) -> Passes<'c> {
    let plan = Plan::new(context, problem).unwrap();
    let (mut cache, mut workspace) = (plan.state_cache().unwrap(), plan.forward_workspace().unwrap());
    let mut o = vec![Bf16::default(); SMALL];
    plan.forward(Forward::new(x, x, x, &mut o).state_cache(&mut cache).workspace(&mut workspace)).unwrap();
    let workspace = plan.backward_workspace().unwrap();
    Passes { plan, cache, workspace }
}

fn halves() -> Vec<Bf16> {
    noise(SMALL, 5).into_iter().map(Bf16::from_f32).collect()
}

/// dk alone, added to where it says so.
fn dk(at: &mut Passes<'_>, x: &[Bf16], dk: &mut [f32], add: &[Gradient]) -> Result<()> {
    let (mut dq, mut dv) = (vec![Bf16::default(); SMALL], vec![0.0f32; SMALL]);
    let mut tensors = Backward::new(x, x, x, x, &mut dq, dk, &mut dv[..]);
    for &gradient in add {
        tensors = tensors.add_to(gradient);
    }
    at.plan.backward(tensors.state_cache(&at.cache).workspace(&mut at.workspace))
}

fn mixed() -> Problem {
    let problem = small_problem().dtype(Dtype::BFloat16);
    problem.tensor_dtype(Operand::Dk, Dtype::Float32).tensor_dtype(Operand::Dv, Dtype::Float32)
}

#[test]
fn float32_gradients_are_added_to() {
    let (context, x) = (context(), halves());
    let mut at = passes(&context, &mixed(), &x);
    let (mut once, mut sum) = (vec![0.0f32; SMALL], vec![2.0f32; SMALL]);
    dk(&mut at, &x, &mut once, &[]).unwrap();
    assert!(once.iter().any(|&g| Bf16::from_f32(g).to_f32() != g), "it was rounded to bfloat16");
    dk(&mut at, &x, &mut sum, &[Gradient::Dk]).unwrap();
    // One float32 sum more than in a pass that writes, and the pass's own may be in another order.
    let near = |a: f32, b: f32| (a - b).abs() <= 4.0 * f32::EPSILON * b.abs().max(1.0);
    assert!(sum.iter().zip(&once).all(|(&found, &one)| near(found, one + 2.0)));
    dk(&mut at, &x, &mut sum, &[]).unwrap();
    assert_eq!(sum, once, "without add_to it is written");
}

#[test]
fn wrong_gradients() {
    let (context, x) = (context(), halves());
    let mut at = passes(&context, &mixed(), &x);
    let mut there = vec![7.0f32; SMALL];
    let absent = dk(&mut at, &x, &mut there, &[Gradient::DInitialState]);
    refused(absent, Status::INVALID_ARGUMENT, "LASP_ADD_D_INITIAL_STATE");
    assert!(there.iter().all(|&g| g == 7.0), "a refused call wrote");

    let (mut dq, mut dk, mut dv) = (x.clone(), x.clone(), vec![0.0f32; SMALL]);
    let narrow = Backward::new(&x, &x, &x, &x, &mut dq, &mut dk, &mut dv[..]);
    refused(
        at.plan.backward(narrow),
        Status::INVALID_ARGUMENT,
        "dk: its elements are BFloat16, the plan's Float32",
    );

    let halves = || small_problem().dtype(Dtype::BFloat16);
    let plan = |problem: Problem| -> Result<(), Error> { Plan::new(&context, &problem).map(|_| ()) };
    refused(plan(halves().tensor_dtype(Operand::Dk, Dtype::Float16)), Status::UNSUPPORTED, "dk");
    refused(plan(halves().tensor_dtype(Operand::V, Dtype::Float32)), Status::UNSUPPORTED, "v");
    refused(plan(halves().tensor_dtype(Operand::Dk, Dtype::Other(9))), Status::INVALID_ARGUMENT, "dk");
    refused(plan(halves().tensor_dtype(Operand::DBeta, Dtype::Float32)), Status::INVALID_ARGUMENT, "d_beta");
}

#[test]
fn a_scale_of_zero() {
    let (context, x) = (context(), noise(SMALL, 6));
    for (problem, is_zero) in [(small_problem(), false), (small_problem().scale(0.0), true)] {
        let plan = Plan::new(&context, &problem.backward(false)).unwrap();
        let mut o = vec![7.0f32; SMALL];
        let mut workspace = plan.forward_workspace().unwrap();
        plan.forward(Forward::new(&x, &x, &x, &mut o).workspace(&mut workspace)).unwrap();
        assert_eq!(o.iter().all(|&y| y == 0.0), is_zero);
    }
}

#[test]
fn values_are_checked() {
    let options = ContextOptions::new().cpu_threads(1).check_values(true);
    let context = Context::with_options(Comm::single().unwrap(), options).unwrap();
    let plan = Plan::new(&context, &small_problem().backward(false)).unwrap();
    let mut workspace = plan.forward_workspace().unwrap();
    let (x, mut wrong, mut o) = (noise(SMALL, 6), noise(SMALL, 6), vec![0.0f32; SMALL]);
    wrong[2 * 16 + 8 + 3] = f32::NAN;
    let found = plan.forward(Forward::new(&x, &wrong, &x, &mut o).workspace(&mut workspace));
    refused(found, Status::VALUES, "k: NaN at sequence 0, token 2, head 1");
    plan.forward(Forward::new(&x, &x, &x, &mut o).workspace(&mut workspace)).unwrap();
}
