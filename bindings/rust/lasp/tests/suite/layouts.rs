//! Where tensors lie and of what type: layouts give the same bits, 16-bit types what float32 gives, and memory is
//! used where it is.
use lasp::{Backward, Bf16, Cache, Dtype, Element, Forward, Operand, Plan, Problem, Tensor, TensorMut, F16};

use crate::conformance::error;
use crate::helpers::{context, noise, small_problem, SMALL};

const B: usize = 2;
const T: usize = 37;
const H: usize = 3;
const D: usize = 16;
const COUNT: usize = B * T * H * D;

fn base() -> Problem {
    Problem::new().batch(B).tokens(T).heads(H).head_dims(D, D)
}

struct Gradients {
    o: Vec<f32>,
    dq: Vec<f32>,
    dk: Vec<f32>,
    dv: Vec<f32>,
}

fn contiguous(q: &[f32], k: &[f32], v: &[f32], d_o: &[f32]) -> Gradients {
    let context = context();
    let plan = Plan::new(&context, &base()).unwrap();
    let mut g = Gradients { o: vec![0.0; COUNT], dq: vec![0.0; COUNT], dk: vec![0.0; COUNT], dv: vec![0.0; COUNT] };
    let (mut cache, mut forward, mut backward) =
        (plan.state_cache().unwrap(), plan.forward_workspace().unwrap(), plan.backward_workspace().unwrap());
    plan.forward(Forward::new(q, k, v, &mut g.o).state_cache(&mut cache).workspace(&mut forward)).unwrap();
    let tensors = Backward::new(q, k, v, d_o, &mut g.dq, &mut g.dk, &mut g.dv);
    plan.backward(tensors.state_cache(&cache).workspace(&mut backward)).unwrap();
    g
}

/// Contiguous [B, T, H, D] to element (b, t, h, d) at b*s[0] + t*s[1] + h*s[2] + d.
fn scatter(values: &[f32], to: &mut [f32], s: [usize; 3]) {
    for (i, &x) in values.iter().enumerate() {
        let (b, t, h, d) = (i / (T * H * D), i / (H * D) % T, i / D % H, i % D);
        to[b * s[0] + t * s[1] + h * s[2] + d] = x;
    }
}

fn gather(from: &[f32], s: [usize; 3]) -> Vec<f32> {
    (0..COUNT).map(|i| from[i / (T * H * D) * s[0] + i / (H * D) % T * s[1] + i / D % H * s[2] + i % D]).collect()
}

#[test]
fn packed_and_head_major_tensors_give_the_same_bits() {
    let (q, k, v, d_o) = (noise(COUNT, 1), noise(COUNT, 2), noise(COUNT, 3), noise(COUNT, 4));
    let expected = contiguous(&q, &k, &v, &d_o);

    // q, k and v in one [B, T, 3 H D] buffer, o and d_o as [B, H, T, D].
    let (width, packed_strides) = (3 * H * D, [T * 3 * H * D, 3 * H * D, D]);
    let head_major = [H * T * D, D, T * D];
    let mut qkv = vec![f32::NAN; B * T * width];
    for (i, values) in [&q, &k, &v].into_iter().enumerate() {
        scatter(values, &mut qkv[i * H * D..], packed_strides);
    }
    let mut moved_d_o = vec![0.0; COUNT];
    scatter(&d_o, &mut moved_d_o, head_major);

    let shape = [B, T, H, D];
    let part = |i: usize| Tensor::strided(&qkv[i * H * D..], &shape, &[T * width, width, D, 1]).unwrap();
    let [q, k, v] = [part(0), part(1), part(2)];
    let (mut o, mut gradients) = (vec![0.0; COUNT], vec![f32::NAN; B * T * width]);
    let [dq, dk, dv] = TensorMut::split_packed(&mut gradients, B, T, [(H, D); 3]).unwrap();
    let transposed = [head_major[0], head_major[1], head_major[2], 1];
    let o_view = TensorMut::strided(&mut o, &shape, &transposed).unwrap();
    let d_o_view = Tensor::strided(&moved_d_o, &shape, &transposed).unwrap();
    let p = base()
        .strides(Operand::Q, q.strides())
        .strides(Operand::K, k.strides())
        .strides(Operand::V, v.strides())
        .strides(Operand::O, o_view.strides())
        .strides(Operand::DO, d_o_view.strides())
        .strides(Operand::Dq, dq.strides())
        .strides(Operand::Dk, dk.strides())
        .strides(Operand::Dv, dv.strides());
    let context = context();
    let plan = Plan::new(&context, &p).unwrap();
    let (mut cache, mut workspace) = (plan.state_cache().unwrap(), plan.forward_workspace().unwrap());
    plan.forward(Forward::new(q, k, v, o_view).state_cache(&mut cache).workspace(&mut workspace)).unwrap();
    let mut workspace = plan.backward_workspace().unwrap();
    let tensors = Backward::new(q, k, v, d_o_view, dq, dk, dv);
    plan.backward(tensors.state_cache(&cache).workspace(&mut workspace)).unwrap();

    assert!(gather(&o, head_major) == expected.o);
    for (i, expected) in [&expected.dq, &expected.dk, &expected.dv].into_iter().enumerate() {
        assert!(&gather(&gradients[i * H * D..], packed_strides) == expected, "gradient {}", i);
    }
}

/// o of 16-bit tensors against o in float32 of the same numbers. Both round where they will inside (2e-6 each, see
/// conformance.rs); the 16-bit result rounds once more.
fn sixteen_bits<T16: Element>(from: impl Fn(f32) -> T16, to: impl Fn(T16) -> f32, rounding: f64) {
    let rounded = |seed| noise(COUNT, seed).into_iter().map(&from).collect::<Vec<_>>();
    let (q, k, v) = (rounded(1), rounded(2), rounded(3));
    let wide = |values: &[T16]| values.iter().map(|&x| to(x)).collect::<Vec<_>>();
    let expected = contiguous(&wide(&q), &wide(&k), &wide(&v), &noise(COUNT, 4)).o;

    let context = context();
    let plan = Plan::new(&context, &base().dtype(T16::DTYPE).backward(false)).unwrap();
    let (mut o, mut workspace) = (vec![from(0.0); COUNT], plan.forward_workspace().unwrap());
    plan.forward(Forward::new(&q, &k, &v, &mut o).workspace(&mut workspace)).unwrap();
    let e = error(&expected, &wide(&o), None);
    assert!(e > 0.0 && e <= rounding + 4e-6, "{:?}: error {:.2e}", T16::DTYPE, e);
}

// A rounding to p bits has relative mean square 2^(1-p) / sqrt(28): 2^-9.4 and 2^-12.4; a third is for the data's
// spread.
#[test]
fn sixteen_bit_types() {
    sixteen_bits(Bf16::from_f32, Bf16::to_f32, 2.0f64.powi(-9));
    sixteen_bits(F16::from_f32, F16::to_f32, 2.0f64.powi(-12));
    assert_eq!(Bf16::slice_from_bits(&[0x3f80, 0xbf80]), [Bf16::from_f32(1.0), Bf16::from_f32(-1.0)]);
    assert_eq!((Bf16::DTYPE, F16::DTYPE), (Dtype::BFloat16, Dtype::Float16));
}

#[test]
fn views_know_their_place() {
    let mut values = vec![0.0f32; 24];
    let at = values.as_ptr();
    let tensor = Tensor::strided(&values[2..], &[2, 3, 1, 2], &[11, 4, 2, 1]).unwrap();
    assert_eq!(tensor.as_ptr(), unsafe { at.add(2) });
    assert_eq!((tensor.shape(), tensor.strides().batch), (&[2usize, 3, 1, 2][..], 11));
    assert!(Tensor::strided(&values[3..], &[2, 3, 1, 2], &[11, 4, 2, 1]).is_ok(), "all 21 elements");
    assert!(Tensor::strided(&values[3..], &[2, 3, 1, 2], &[12, 4, 2, 1]).is_err(), "one element too many");
    assert!(Tensor::new(&values, &[2, 3, 4]).is_ok() && Tensor::new(&values, &[2, 3]).is_err());
    assert!(Tensor::new(&values, &[]).is_err() && Tensor::new(&values, &[1, 1, 1, 1, 24]).is_err());
    assert!(Tensor::strided(&values, &[usize::MAX, 2], &[usize::MAX, 1]).is_err(), "no overflow");
    assert!(Tensor::new(&values, &[usize::MAX, 2, 3]).is_err(), "no overflow");
    let parts = TensorMut::split_packed(&mut values, 2, 2, [(1, 4), (2, 1)]).unwrap();
    assert_eq!(parts.map(|part| part.as_ptr()), [at, unsafe { at.add(4) }]);
    assert!(TensorMut::split_packed(&mut values, 2, 3, [(1, 4), (2, 1)]).is_err());
}

#[test]
fn the_stride_of_a_dimension_of_one_means_nothing() {
    let context = context();
    let plan = Plan::new(&context, &small_problem().backward(false)).unwrap();
    let (x, mut o, mut again) = (noise(SMALL, 4), vec![0.0f32; SMALL], vec![0.0f32; SMALL]);
    let mut workspace = plan.forward_workspace().unwrap();
    plan.forward(Forward::new(&x, &x, &x, &mut o).workspace(&mut workspace)).unwrap();
    let strange = || Tensor::strided(&x, &[1, 5, 2, 8], &[3, 16, 8, 1]).unwrap();
    plan.forward(Forward::new(strange(), strange(), &x, &mut again).workspace(&mut workspace)).unwrap();
    assert!(o == again);
}

#[test]
fn a_cache_is_reused_without_an_exchange() {
    let context = context();
    let plan = Plan::new(&context, &base().cache(Cache::Incoming)).unwrap();
    let (q, k, v) = (noise(COUNT, 1), noise(COUNT, 2), noise(COUNT, 3));
    let (mut cache, mut workspace) = (plan.state_cache().unwrap(), plan.forward_workspace().unwrap());
    let (mut o, mut again) = (vec![0.0f32; COUNT], vec![0.0f32; COUNT]);
    plan.forward(Forward::new(&q, &k, &v, &mut o).state_cache(&mut cache).workspace(&mut workspace)).unwrap();
    let tensors = Forward::new(&q, &k, &v, &mut again).state_cache(&mut cache).workspace(&mut workspace);
    plan.forward(tensors.reuse_state_cache(true)).unwrap();
    assert!(o == again);
}
