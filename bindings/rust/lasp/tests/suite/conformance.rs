//! The given vectors on groups of one to four ranks, forward and backward with carried states; the exact ones bit
//! for bit.
//!
//! Bounds, as the library's own tests derive them. float32 rounds every partial sum; a result nests at most three
//! sums (over 1500 tokens and two head dimensions of 256), u sqrt((1500 + 256 + 256) / 6) = 18 u with u = 2^-24; a
//! decay factor carries 12 u more, and a tenth on top for the spread makes 34 u = 2e-6. The gradient of a per-head
//! decay is one sum of terms of either sign: its error is measured against the sum of their sizes.
use lasp::{Comm, Decay, Schedule};

use crate::run::{run, Results};
use crate::vectors::{all, Vector};

const BOUND: f64 = 2e-6;
const SCHEDULES: [Schedule; 5] =
    [Schedule::Auto, Schedule::Ring, Schedule::AllGather, Schedule::AllScan, Schedule::Doubling];

pub fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|x| x * x).sum::<f64>().sqrt()
}

/// The error against `size`, or the tensor's own norm; absolute where that vanishes.
pub fn error(expected: &[f32], actual: &[f32], size: Option<f64>) -> f64 {
    assert_eq!(expected.len(), actual.len());
    let difference = norm(expected.iter().zip(actual).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    let size = size.unwrap_or_else(|| norm(expected.iter().map(|x| f64::from(*x))));
    if size <= 1e-30 * (expected.len() as f64).sqrt() {
        difference
    } else {
        difference / size
    }
}

/// The sum over tokens of the sizes of a per-head decay's gradient's terms: the gradient of the same decay given
/// token by token is those terms.
fn head_decay_size(v: &Vector) -> f64 {
    let mut tensors = v.tensors.clone();
    let g = tensors["g"].clone();
    tensors.insert("g".into(), g.iter().copied().cycle().take(v.batch * v.tokens * v.heads()).collect());
    let scalar =
        Vector { decay: Decay::Scalar, tensors, name: v.name.clone(), cu_seqlens: v.cu_seqlens.clone(), ..*v };
    let terms = run(&scalar, vec![Comm::single().unwrap()], Schedule::Auto).unwrap().remove("dg").unwrap();
    let mut sizes = vec![0.0f64; v.heads()];
    for (i, term) in terms.iter().enumerate() {
        sizes[i % v.heads()] += f64::from(term.abs());
    }
    norm(sizes.into_iter())
}

/// The first tensor that is wrong, in words.
fn compare(v: &Vector, results: &Results, d_decay_size: Option<f64>) -> Option<String> {
    for (&name, actual) in results {
        let expected = match v.get(name) {
            Some(expected) => expected,
            None => return Some(format!("{}: the vector has none", name)),
        };
        let head_decay = name == "dg" && v.decay == Decay::Head;
        if v.exact && !head_decay {
            if let Some(i) = (0..expected.len()).find(|&i| actual[i] != expected[i]) {
                return Some(format!("{}[{}] = {}, exactly it is {}", name, i, actual[i], expected[i]));
            }
        }
        let e = error(expected, actual, if head_decay { d_decay_size } else { None });

        if e > BOUND || e.is_nan() {
            return Some(format!("{}: relative error {:.3e}, bound {:.3e}", name, e, BOUND));
        }
    }
    None
}

#[test]
fn vectors_on_one_to_four_ranks() {
    let mut wrong = Vec::new();
    for (i, v) in all().iter().enumerate() {
        let d_decay_size = if v.decay == Decay::Head { Some(head_decay_size(v)) } else { None };
        for nranks in 1..=4 {
            let comms = if nranks == 1 { vec![Comm::single().unwrap()] } else { Comm::threads(nranks).unwrap() };

            let schedule = SCHEDULES[(i + nranks) % SCHEDULES.len()];
            let complaint = match run(v, comms, schedule) {
                Ok(results) => compare(v, &results, d_decay_size),
                Err(errors) => Some(format!("{:?}", errors)),
            };
            wrong.extend(complaint.map(|text| format!("{}, {} ranks, {:?}: {}", v.name, nranks, schedule, text)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_comparison_sees_a_wrong_element() {
    let v = Vector::named("head_basic");
    let mut results = run(&v, vec![Comm::single().unwrap()], Schedule::Auto).unwrap();
    let size = Some(head_decay_size(&v));
    assert_eq!(compare(&v, &results, size), None);
    results.get_mut("dk").unwrap()[7] += 0.01;
    assert!(compare(&v, &results, size).unwrap().starts_with("dk: relative error"));
    results.get_mut("dk").unwrap()[7] = f32::NAN;
    assert!(compare(&v, &results, size).unwrap().starts_with("dk: relative error NaN"));
}
