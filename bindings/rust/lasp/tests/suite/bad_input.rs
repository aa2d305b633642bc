//! Wrong use in every way that the types allow: an error with the library's sentence, and everything lives on.
use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use lasp::{
    AlignedBytes, Backward, Bf16, Comm, Context, ContextOptions, Decay, Device, Dtype, Error, Forward, Groups,
    Input, LogLevel, Plan, Problem, Schedule, Status, StatusGroup, Step, Stream, Tensor,
};
use lasp_sys as sys;

use crate::helpers::{context, is, refused, small_problem, SMALL};

#[test]
fn wrong_tensors() {
    let context = context();
    let plan = Plan::new(&context, &small_problem().backward(false)).unwrap();
    let mut workspace = plan.forward_workspace().unwrap();
    let (x, mut o) = (vec![1.0f32; SMALL], vec![7.0f32; SMALL]);
    let halves = vec![Bf16::default(); SMALL];
    let mut forward = |f: Forward<'_>| plan.forward(f.workspace(&mut workspace));
    let invalid = Status::INVALID_ARGUMENT;

    refused(forward(Forward::new(&halves, &x, &x, &mut o)), invalid, "q: its elements are BFloat16");
    refused(forward(Forward::new(&x, &x[1..], &x, &mut o)), Status::BUFFER_TOO_SMALL, "k: 79 elements are given");
    let wanted = "o: 8 elements are given, the plan's shape [1, 5, 2, 8] wants 80";
    refused(forward(Forward::new(&x, &x, &x, &mut o[..8])), Status::BUFFER_TOO_SMALL, wanted);
    refused(forward(Forward::new(&x, &[0.0f32; 0], &x, &mut o)), Status::BUFFER_TOO_SMALL, "k: 0 elements");
    refused(Tensor::new(&x, &[1, 5, 2, 9]), invalid, "shape [1, 5, 2, 9]: wants 90 elements, 80 are given");
    let far = Tensor::strided(&x, &[1, 5, 2, 8], &[0, 16, 16, 1]);
    refused(far, invalid, "strides [0, 16, 16, 1]: reaches over 88 elements, 80 are given");
    let five_heads = Tensor::new(&x, &[1, 2, 5, 8]).unwrap();
    refused(forward(Forward::new(&x, &x, five_heads, &mut o)), invalid, "v: its shape is [1, 2, 5, 8]");
    let transposed = Tensor::strided(&x, &[1, 5, 2, 8], &[80, 8, 40, 1]).unwrap();
    refused(forward(Forward::new(transposed, &x, &x, &mut o)), invalid, "q: its strides are [80, 8, 40, 1]");
    let shorter = Tensor::new(&x[1..], &[1, 5, 2, 8]);
    refused(shorter, invalid, "shape [1, 5, 2, 8]: wants 80 elements, 79 are given");
    refused(forward(Forward::new(&x, &x, &x, &mut o).decay(&x[..2])), invalid, "decay is given");
    refused(
        forward(Forward::new(&x, &x, &x, &mut o).initial_state(&x[..8])),
        Status::BUFFER_TOO_SMALL,
        "initial_state",
    );
    refused(forward(Forward::without_tokens()), invalid, "q is null");
    let nowhere = 64 as *const f32; // never looked at
    let device = unsafe { Tensor::from_device(nowhere, SMALL, &[1, 5, 2, 8], &[80, 16, 8, 1]) }.unwrap();
    refused(forward(Forward::new(device, &x, &x, &mut o)), invalid, "q: it is device memory");
    refused(plan.forward(Forward::new(&x, &x, &x, &mut o)), invalid, "workspace is null");
    assert!(o.iter().all(|&y| y == 7.0), "a refused call wrote");
    plan.forward(Forward::new(&x, &x, &x, &mut o).workspace(&mut plan.forward_workspace().unwrap())).unwrap();
}

#[test]
fn wrong_workspace_and_stream() {
    let context = context();
    let plan = Plan::new(&context, &small_problem().backward(false)).unwrap();
    let (x, mut o) = (vec![1.0f32; SMALL], vec![0.0f32; SMALL]);
    let bytes = plan.info().workspace_forward_bytes;
    let mut shifted = AlignedBytes::zeroed(bytes + 1, plan.info().alignment).unwrap();
    let tensors = Forward::new(&x, &x, &x, &mut o).workspace(&mut shifted[1..]);
    refused(plan.forward(tensors), Status::MISALIGNED, "workspace");
    let tensors = Forward::new(&x, &x, &x, &mut o).workspace(&mut shifted[..bytes - 1]);
    refused(plan.forward(tensors), Status::BUFFER_TOO_SMALL, "workspace holds");
    let stream = unsafe { Stream::from_raw(64 as *mut sys::CUstream_st) };
    let tensors = Forward::new(&x, &x, &x, &mut o).workspace(&mut shifted);
    refused(plan.forward_on(tensors, stream), Status::INVALID_ARGUMENT, "stream");
    refused(AlignedBytes::zeroed(8, 3), Status::INVALID_ARGUMENT, "alignment = 3");
    refused(AlignedBytes::zeroed(isize::MAX as usize - 64, 8), Status::OUT_OF_MEMORY, "bytes");
}

#[test]
fn wrong_passes() {
    let context = context();
    let plan = Plan::new(&context, &small_problem().backward(false)).unwrap();
    let x = vec![1.0f32; SMALL];
    let (mut dq, mut dk, mut dv) = (x.clone(), x.clone(), x.clone());
    let tensors = Backward::new(&x, &x, &x, &x, &mut dq, &mut dk, &mut dv);
    refused(plan.backward(tensors), Status::INVALID_ARGUMENT, "backward");
    let (mut state, mut o) = (vec![0.0f32; 2 * 8 * 8 - 1], x.clone());
    let sentence = "state: 127 elements are given, the plan's shape [1, 2, 8, 8] wants 128";
    refused(plan.step(Step::new(&x, &x, &x, &mut state, &mut o)), Status::BUFFER_TOO_SMALL, sentence);
    refused(plan.owners(3, 2), Status::INVALID_ARGUMENT, "end = 2: must be at least begin, 3");
    refused(plan.owners(0, usize::MAX), Status::INVALID_ARGUMENT, "end = 9223372036854775807");
    assert!(plan.describe().unwrap().contains("schedule"));
}

#[test]
fn wrong_betas() {
    let context = context();
    let plan = Plan::new(&context, &small_problem().write(lasp::Write::Delta).backward(false)).unwrap();
    let mut workspace = plan.forward_workspace().unwrap();
    let (x, beta, mut o) = (vec![0.5f32; SMALL], vec![0.5f32; 10], vec![7.0f32; SMALL]);
    let wide = Tensor::new(&x[..80], &[1, 5, 2, 8]).unwrap();
    let turned = Tensor::new(&beta, &[1, 2, 5]).unwrap();
    let halves = vec![Bf16::default(); 10];
    let (invalid, small) = (Status::INVALID_ARGUMENT, Status::BUFFER_TOO_SMALL);
    let few = "beta: 9 elements are given, the plan's shape [1, 5, 2] wants 10";

    let mut forward = |beta: Option<Input<'_>>| {
        let mut tensors = Forward::new(&x, &x, &x, &mut o).workspace(&mut workspace);
        if let Some(beta) = beta {
            tensors = tensors.beta(beta);
        }
        plan.forward(tensors)
    };
    refused(forward(None), invalid, "beta is null");
    refused(forward(Some(Input::from(&beta[1..]))), small, few);
    refused(forward(Some(wide.into())), invalid, "beta: its shape is [1, 5, 2, 8]");
    refused(forward(Some(turned.into())), invalid, "beta: its shape is [1, 2, 5]");
    refused(forward(Some(Input::from(&halves))), invalid, "beta: its elements are BFloat16");
    forward(Some(Input::from(&beta))).unwrap();

    let mut state = vec![7.0f32; 2 * 8 * 8];
    let mut step = |beta: Option<Input<'_>>| {
        let mut tensors = Step::new(&x, &x, &x, &mut state, &mut o);
        if let Some(beta) = beta {
            tensors = tensors.beta(beta);
        }
        plan.step(tensors)
    };
    refused(step(None), invalid, "beta is null");
    refused(step(Some(Input::from(&beta[1..]))), small, few);
    refused(step(Some(turned.into())), invalid, "beta: its shape is [1, 2, 5]");
    assert!(state.iter().all(|&s| s == 7.0), "a refused step wrote");

    let additive = Plan::new(&context, &small_problem().backward(false)).unwrap();
    let mut workspace = additive.forward_workspace().unwrap();
    let given = Forward::new(&x, &x, &x, &mut o).beta(&beta).workspace(&mut workspace);
    refused(additive.forward(given), invalid, "beta is given");
}

// The gradients of the delta rule need what they are the gradients of.
#[test]
fn wrong_betas_backward() {
    let context = context();
    let plan = Plan::new(&context, &small_problem().write(lasp::Write::Delta)).unwrap();
    let (mut cache, mut workspace) = (plan.state_cache().unwrap(), plan.forward_workspace().unwrap());
    let (x, beta, mut o) = (vec![0.5f32; SMALL], vec![0.5f32; 10], vec![0.0f32; SMALL]);
    let tensors = Forward::new(&x, &x, &x, &mut o).beta(&beta).state_cache(&mut cache).workspace(&mut workspace);
    plan.forward(tensors).unwrap();
    let mut workspace = plan.backward_workspace().unwrap();
    let (mut dq, mut dk, mut dv, mut d_beta) = (x.clone(), x.clone(), x.clone(), beta.clone());
    let mut backward = |beta: Option<&Vec<f32>>, d_beta: Option<&mut [f32]>| {
        let mut tensors = Backward::new(&x, &x, &x, &x, &mut dq, &mut dk, &mut dv).state_cache(&cache);
        if let Some(beta) = beta {
            tensors = tensors.beta(beta);
        }
        if let Some(d_beta) = d_beta {
            tensors = tensors.d_beta(d_beta);
        }
        plan.backward(tensors.workspace(&mut workspace))
    };
    refused(backward(None, Some(&mut d_beta)), Status::INVALID_ARGUMENT, "beta is null");
    refused(backward(Some(&beta), None), Status::INVALID_ARGUMENT, "d_beta is null");
    let few = "d_beta: 9 elements are given";
    refused(backward(Some(&beta), Some(&mut d_beta[1..])), Status::BUFFER_TOO_SMALL, few);
    backward(Some(&beta), Some(&mut d_beta)).unwrap();
}

#[test]
fn wrong_packings() {
    let context = context();
    let x = vec![1.0f32; SMALL];
    let mut o = x.clone();
    let (mut cache, mut workspace);
    let plan = Plan::new(&context, &small_problem().max_sequences(2)).unwrap();
    cache = plan.state_cache().unwrap();
    workspace = plan.forward_workspace().unwrap();
    let mut forward = |offsets: Option<&[i64]>| {
        let mut tensors = Forward::new(&x, &x, &x, &mut o).state_cache(&mut cache).workspace(&mut workspace);
        if let Some(offsets) = offsets {
            tensors = tensors.packing(offsets);
        }
        plan.forward(tensors)
    };
    let invalid = Status::INVALID_ARGUMENT;
    refused(forward(None), invalid, "packing is null");
    refused(forward(Some(&[])), invalid, "packing.num_sequences = -1");
    refused(forward(Some(&[0, 1, 2, 3])), invalid, "packing.num_sequences = 3");
    refused(forward(Some(&[0, 3, 2])), invalid, "packing.cu_seqlens[2] = 2: less");
    refused(forward(Some(&[0, 1 << 40])), invalid, "packing.cu_seqlens[1] = 1099511627776");
    forward(Some(&[0, 1, 3])).unwrap();
    forward(Some(&[0])).unwrap();
}

#[test]
fn wrong_problems() {
    let context = context();
    let refuse = |p: Problem, status, words: &str| refused(Plan::new(&context, &p), status, words);
    let invalid = Status::INVALID_ARGUMENT;
    refuse(Problem::new(), invalid, "head_dim_k = 0");
    refuse(small_problem().head_dims(12, 8), Status::UNSUPPORTED, "head_dim_k = 12");
    refuse(small_problem().head_dims(usize::MAX, 8), Status::UNSUPPORTED, "head_dim_k = 2147483647");
    refuse(small_problem().tokens(usize::MAX), invalid, "2^62 bytes");
    refuse(small_problem().batch(0), invalid, "batch = 0");
    refuse(small_problem().grouped_heads(2, 3, 2), invalid, "heads");
    refuse(small_problem().schedule(Schedule::Other(99)), invalid, "schedule = 99");
    refuse(small_problem().dtype(Dtype::Other(-1)), invalid, "dtype = -1");
    refuse(small_problem().decay(Decay::Other(9)), invalid, "decay = 9");
    refuse(small_problem().chunk(17), invalid, "chunk = 17");
    refuse(small_problem().chunk(16).segment(24), invalid, "segment = 24");
    refuse(small_problem().segment(usize::MAX), invalid, "segment = 9223372036854775807");
    refuse(small_problem().segment(128).schedule(Schedule::Doubling), Status::UNSUPPORTED, "segment");
    refuse(small_problem().max_sequences(usize::MAX), Status::UNSUPPORTED, "max_sequences = 9223372036854775807");
    refuse(small_problem().max_sequences(2).batch(2), invalid, "batch = 2: must be 1 with max_sequences");
    let both_ways = small_problem().write(lasp::Write::Delta).mask(lasp::Mask::Bidirectional);
    refuse(both_ways, Status::UNSUPPORTED, "not with write = LASP_WRITE_DELTA");
    refuse(small_problem().scale(f32::NAN), invalid, "scale");
    let half = Dtype::Float16;
    refuse(small_problem().decay_dtype(half), invalid, "decay_dtype: given, but the decay is None");
    refuse(
        small_problem().decay(Decay::Head).decay_dtype(half),
        invalid,
        "decay_dtype: given, but the decay is Head",
    );
    refuse(small_problem().beta_dtype(half), invalid, "beta_dtype: given, but the write is additive");
    let some = lasp::Strides { batch: 10, token: 2, head: 1 };
    refuse(small_problem().strides(lasp::Operand::Decay, some), invalid, "the strides of the decay: given");
    refuse(small_problem().strides(lasp::Operand::DBeta, some), invalid, "the strides of beta's gradient: given");
    let overlapping = lasp::Strides { batch: 1, token: 1, head: 1 };
    refuse(small_problem().strides(lasp::Operand::O, overlapping), invalid, "o.token = 1");
    Plan::new(&context, &small_problem()).unwrap();
    Plan::new(&context, &small_problem().chunk(16).segment(48)).unwrap();
}

#[test]
fn wrong_comms_and_groups() {
    refused(Comm::threads(0), Status::INVALID_ARGUMENT, "nranks = 0");
    refused(Comm::threads(1025), Status::INVALID_ARGUMENT, "nranks = 1025");
    refused(Comm::threads(usize::MAX), Status::INVALID_ARGUMENT, "nranks = 2147483647");
    refused(unsafe { Comm::from_raw(null_mut()) }, Status::INVALID_ARGUMENT, "comm is null");
    refused(Groups::of_rank(8, 3, 1, 0), Status::INVALID_ARGUMENT, "sequence_ranks");
    let groups = Groups::of_rank(8, 4, 2, 5).unwrap();
    let back = Groups::world_rank(8, 4, 2, groups.sequence_group, groups.sequence_rank).unwrap();
    assert_eq!((back, groups.sequence_ranks, groups.data_ranks), (5, 4, 2));
    let ring = lasp::predict_exchange(Schedule::Ring, 5, 1000, 0, 2.0, 1.0).unwrap();
    assert!((ring - 4.0 * (2.0 + 1.0)).abs() < 1e-9, "4 hops of 2 us and 1000 bytes at 1 GB/s: {}", ring);
    refused(
        lasp::predict_exchange(Schedule::Other(7), 5, 1, 0, 1.0, 1.0),
        Status::INVALID_ARGUMENT,
        "schedule = 7",
    );
}

// The comm comes back from a refusal, and from a context that is no longer wanted.
#[test]
fn a_comm_survives_a_refused_context() {
    let refused = Context::with_options(Comm::single().unwrap(), ContextOptions::new().device(Device::Cuda(99)));
    let (error, comm) = refused.unwrap_err().into_parts();
    assert_eq!(error.group(), StatusGroup::Unsupported, "{}", error);
    let verified = ContextOptions::new().device(Device::Cuda(0)).verify_messages(true);
    let (error, comm) = Context::with_options(comm, verified).unwrap_err().into_parts();
    is(&error, Status::UNSUPPORTED, "verify_messages = 1");
    let context = Context::new(comm).unwrap(); // on the device of its comm's memory
    assert_eq!(context.device(), Device::Cpu);
    Context::new(context.into_comm()).unwrap();
    let through_question_mark = || -> Result<Context, Error> {
        let options = ContextOptions::new().cpu_threads(usize::MAX);
        Ok(Context::with_options(Comm::single()?, options)?)
    };
    is(&through_question_mark().unwrap_err(), Status::INVALID_ARGUMENT, "cpu_threads");
}

// What the types cannot reach, the handles catch: below the safe interface a dead handle is still only an error.
#[test]
fn dead_handles() {
    let context = context();
    let plan = Plan::new(&context, &small_problem()).unwrap();
    let (dead_plan, dead_context, dead_comm) = (plan.as_raw(), context.as_raw(), context.comm().as_raw());
    unsafe {
        assert_eq!(sys::lasp_comm_destroy(dead_comm), sys::LASP_ERROR_IN_USE);
        assert_eq!(sys::lasp_context_destroy(dead_context), sys::LASP_ERROR_IN_USE);
    }
    drop(plan);
    drop(context);
    let args = sys::LASP_FORWARD_ARGS_INIT;
    unsafe {
        assert_eq!(sys::lasp_forward(dead_plan, &args, null_mut()), sys::LASP_ERROR_INVALID_HANDLE);
        assert_eq!(sys::lasp_plan_destroy(dead_plan), sys::LASP_ERROR_INVALID_HANDLE);
        assert_eq!(sys::lasp_context_destroy(dead_context), sys::LASP_ERROR_INVALID_HANDLE);
        assert_eq!(sys::lasp_comm_destroy(dead_comm), sys::LASP_ERROR_INVALID_HANDLE);
    }
}

// Leaking is safe: the library refuses to destroy what a leaked plan uses.
#[test]
fn a_leaked_plan_keeps_its_context_alive() {
    let context = context();
    std::mem::forget(Plan::new(&context, &small_problem()).unwrap());
    drop(context);
}

#[test]
fn plans_share_or_own_their_context() {
    let shared = Rc::new(context());
    let first = Plan::new(Rc::clone(&shared), &small_problem()).unwrap();
    let second = Plan::new(shared, &small_problem().tokens(9)).unwrap();
    drop(first);
    assert_eq!(second.info().total_tokens, 9);
    let owning = Plan::new(context(), &small_problem()).unwrap();
    let elsewhere = std::thread::spawn(move || owning.into_context().comm().nranks());
    assert_eq!(elsewhere.join().unwrap(), 1);
}

// A log that calls the library is refused, one that panics is contained, and the call it came from succeeds.
#[test]
fn a_log_calls_and_panics() {
    let (calls, refusals) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (seen, refused) = (Arc::clone(&calls), Arc::clone(&refusals));
    let log = move |level: LogLevel, text: &str| {
        assert!(level != LogLevel::Off && !text.is_empty());
        seen.fetch_add(1, Ordering::Relaxed);
        if Comm::single().unwrap_err().status() == Status::IN_USE {
            refused.fetch_add(1, Ordering::Relaxed);
        }
        std::panic::resume_unwind(Box::new("a panic, without its message"));
    };
    let options = ContextOptions::new().cpu_threads(1).log(LogLevel::Debug, log);
    let context = Context::with_options(Comm::single().unwrap(), options).unwrap();
    let plan = Plan::new(&context, &small_problem().backward(false)).unwrap();
    let (x, mut o, mut workspace) = (vec![1.0f32; SMALL], vec![0.0f32; SMALL], plan.forward_workspace().unwrap());
    plan.forward(Forward::new(&x, &x, &x, &mut o).workspace(&mut workspace)).unwrap();
    let calls = calls.load(Ordering::Relaxed);
    assert!(calls > 0 && refusals.load(Ordering::Relaxed) == calls, "{} calls", calls);
    Comm::single().unwrap(); // outside of the log all is as before
}

#[test]
fn statuses_have_names_and_groups() {
    let error = Comm::threads(0).unwrap_err();
    assert_eq!(error.to_string(), format!("{} (LASP_ERROR_INVALID_ARGUMENT)", error.sentence()));
    assert_eq!((error.status().as_raw(), error.group()), (100, StatusGroup::Mistake));
    assert_eq!(Status::from_raw(12345).name(), "unknown status");
    for raw in [0, 100, 106, 200, 203, 300, 301, 400, 402, 500, 502] {
        let name = unsafe { std::ffi::CStr::from_ptr(sys::lasp_status_name(raw)) };
        assert_eq!(Status::from_raw(raw).name(), name.to_str().unwrap());
    }
    let boxed: Box<dyn std::error::Error + Send + Sync> = Box::new(error);
    assert!(boxed.to_string().contains("nranks"));
}

#[test]
fn the_library_is_the_headers() {
    let version = lasp::version().unwrap();
    let header = (sys::LASP_VERSION_MAJOR, sys::LASP_VERSION_MINOR, sys::LASP_ABI);
    assert_eq!((version.major, version.minor, version.abi), header);
    let info = lasp::BuildInfo::get().unwrap();
    assert_eq!(info.version, format!("{}.{}.{}", version.major, version.minor, version.patch));
    assert!(info.cpu_count >= 1 && !info.compiler.is_empty() && !info.cuda.is_empty());
}
