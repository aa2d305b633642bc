//! A state cache that a plan made is read only where a forward has written it.
use lasp::{Backward, Forward, Plan, Status};

use crate::helpers::{context, noise, refused, small_problem, SMALL};

#[test]
fn a_cache_that_nobody_wrote() {
    let context = context();
    let plan = Plan::new(&context, &small_problem()).unwrap();
    let (q, k, v, d_o) = (noise(SMALL, 1), noise(SMALL, 2), noise(SMALL, 3), noise(SMALL, 4));
    let mut o = vec![0.0f32; SMALL];
    let (mut dq, mut dk, mut dv) = (o.clone(), o.clone(), o.clone());
    let (mut cache, mut workspace) = (plan.state_cache().unwrap(), plan.forward_workspace().unwrap());
    let mut scratch = plan.backward_workspace().unwrap();
    macro_rules! forward {
        ($q:expr, $cache:expr, $reuse:expr) => {
            plan.forward(
                Forward::new($q, &k, &v, &mut o)
                    .state_cache($cache)
                    .workspace(&mut workspace)
                    .reuse_state_cache($reuse),
            )
        };
    }
    macro_rules! backward {
        ($cache:expr) => {
            plan.backward(
                Backward::new(&q, &k, &v, &d_o, &mut dq, &mut dk, &mut dv)
                    .state_cache($cache)
                    .workspace(&mut scratch),
            )
        };
    }
    let unwritten = "state_cache: no forward has written it";
    refused(backward!(&cache), Status::INVALID_ARGUMENT, unwritten);
    refused(forward!(&q, &mut cache, true), Status::INVALID_ARGUMENT, unwritten);
    assert!(!cache.is_written());
    forward!(&q, &mut cache, false).unwrap();
    assert!(cache.is_written());
    forward!(&q, &mut cache, true).unwrap();
    backward!(&cache).unwrap();
    let expected = dq.clone();
    // A refused call has written nothing, whoever refuses it.
    refused(forward!(&q[1..], &mut cache, false), Status::BUFFER_TOO_SMALL, "q: 79 elements");
    backward!(&cache).unwrap();
    assert_eq!(dq, expected);
    // Bytes of one's own, and those brought from elsewhere, are the caller's to vouch for.
    backward!(&cache[..]).unwrap();
    let mut copy = plan.state_cache().unwrap();
    copy.copy_from_slice(&cache);
    refused(backward!(&copy), Status::INVALID_ARGUMENT, unwritten);
    copy.assume_written();
    backward!(&copy).unwrap();
    assert_eq!(dq, expected);
}
