//! Tensors in device memory: results, streams, refusals, what a call costs. Where there is no GPU each test says so
//! and passes, unless LASP_TEST_DEVICE is "cuda".
use std::env;
use std::ffi::c_void;
use std::thread;
use std::time::{Duration, Instant};

use lasp::{
    AlignedBytes, Backward, Bf16, BytesMut, BytesRef, Comm, Context, ContextOptions, Decay, Device, Dtype, Element,
    Forward, Plan, Problem, StatusGroup, Stream, Tensor, TensorMut,
};
use lasp_sys as sys;

#[path = "../examples/device/mod.rs"]
mod device;
use device::{error_of, recurrence, use_device, DeviceMemory, DeviceStream};

const TOKENS: usize = 200;
const HEADS: usize = 3;
const DIM: usize = 64;
const COUNT: usize = TOKENS * HEADS * DIM;
const SHAPE: [usize; 4] = [1, TOKENS, HEADS, DIM];
const STRIDES: [usize; 4] = [COUNT, HEADS * DIM, DIM, 1];
const G: [f32; HEADS] = [-0.01, -0.05, -0.1];

fn gpu() -> Option<Context> {
    let options = ContextOptions::new().device(Device::Cuda(0));
    match Context::with_options(Comm::single().unwrap(), options).map_err(lasp::Error::from) {
        Ok(context) => {
            use_device();
            Some(context)
        }
        Err(error) if error.group() == StatusGroup::Unsupported => {
            assert_ne!(env::var("LASP_TEST_DEVICE").as_deref(), Ok("cuda"), "{}", error);
            println!("SKIPPED: no GPU to run on: {}", error.sentence());
            None
        }
        Err(error) => panic!("{}", error),
    }
}

fn problem(dtype: Dtype) -> Problem {
    Problem::new().tokens(TOKENS).heads(HEADS).head_dims(DIM, DIM).dtype(dtype).decay(Decay::Head)
}

/// A number as the GPU has it, and back.
trait Number: Element + Copy + Default {
    fn from_f64(x: f64) -> Self;
    fn wide(self) -> f64;
}
impl Number for f32 {
    fn from_f64(x: f64) -> Self {
        x as f32
    }
    fn wide(self) -> f64 {
        self.into()
    }
}
impl Number for Bf16 {
    fn from_f64(x: f64) -> Self {
        Bf16::from_f32(x as f32)
    }
    fn wide(self) -> f64 {
        self.to_f32().into()
    }
}

fn wave<T: Number>(seed: f64) -> Vec<T> {
    (0..COUNT).map(|i| T::from_f64((i as f64 * 0.7 + seed).sin() * (i as f64 * 0.013 + seed).cos())).collect()
}
fn wide<T: Number>(values: &[T]) -> Vec<f64> {
    values.iter().map(|x| x.wide()).collect()
}
fn zeros<T: Number>() -> DeviceMemory {
    DeviceMemory::of(&[T::default(); COUNT])
}
fn read<T: Number>(memory: &DeviceMemory) -> Vec<f64> {
    let mut values = vec![T::default(); COUNT];
    memory.read(&mut values);
    wide(&values)
}

// The tests below keep their memory until the device is done with it, and give each output memory of its own.
fn input<T: Element>(memory: &DeviceMemory) -> Tensor<'_, T> {
    unsafe { Tensor::from_device(memory.data as *const T, COUNT, &SHAPE, &STRIDES) }.unwrap()
}
fn output<T: Element>(memory: &DeviceMemory) -> TensorMut<'_, T> {
    unsafe { TensorMut::from_device(memory.data as *mut T, COUNT, &SHAPE, &STRIDES) }.unwrap()
}
fn decay(memory: &DeviceMemory) -> Tensor<'_, f32> {
    unsafe { Tensor::from_device(memory.data as *const f32, HEADS, &[HEADS], &[1]) }.unwrap()
}
fn block(memory: &DeviceMemory) -> BytesMut<'_> {
    unsafe { BytesMut::from_device(memory.data as *mut c_void, memory.bytes) }
}

fn check_results<T: Number>(dtype: Dtype, bound: f64) {
    let context = match gpu() {
        Some(context) => context,
        None => return,
    };
    let plan = Plan::new(&context, &problem(dtype)).unwrap();
    let host: [Vec<T>; 4] = [wave(1.0), wave(2.0), wave(3.0), wave(4.0)];
    let [q, k, v, d_o] = [0, 1, 2, 3].map(|i| DeviceMemory::of(&host[i]));
    let outputs = [(); 4].map(|_| zeros::<T>());
    let [o, dq, dk, dv] = &outputs;
    let g = DeviceMemory::of(&G);
    let cache = DeviceMemory::new(plan.info().state_cache_bytes);
    let workspace =
        DeviceMemory::new(plan.info().workspace_forward_bytes.max(plan.info().workspace_backward_bytes));
    let forward = Forward::new(input::<T>(&q), input::<T>(&k), input::<T>(&v), output::<T>(o)).decay(decay(&g));
    plan.forward(forward.state_cache(block(&cache)).workspace(block(&workspace))).unwrap();
    let kept = unsafe { BytesRef::from_device(cache.data as *const c_void, cache.bytes) };
    let inputs = [&q, &k, &v, &d_o].map(input::<T>);
    let [q, k, v, d_o] = inputs;
    let backward = Backward::new(q, k, v, d_o, output::<T>(dq), output::<T>(dk), output::<T>(dv));
    plan.backward(backward.decay(decay(&g)).state_cache(kept).workspace(block(&workspace))).unwrap();
    let [q, k, v, d_o] = [0, 1, 2, 3].map(|i| wide(&host[i]));
    let expected = recurrence(&q, &k, &v, &d_o, &G, DIM);
    for ((name, memory), expected) in ["o", "dq", "dk", "dv"].iter().zip(&outputs).zip(&expected) {
        let error = error_of(read::<T>(memory), expected);
        println!("{:?} {}: {:.1e}", dtype, name, error);
        assert!(error < bound, "{:?} {}: {:.1e}", dtype, name, error);
    }
}

/// What the results below are held to, held to the library on the CPU.
#[test]
fn the_recurrence_is_right() {
    let context = Context::with_options(Comm::single().unwrap(), ContextOptions::new().cpu_threads(1)).unwrap();
    let plan = Plan::new(&context, &problem(Dtype::Float32)).unwrap();
    let [q, k, v, d_o]: [Vec<f32>; 4] = [wave(1.0), wave(2.0), wave(3.0), wave(4.0)];
    let [mut o, mut dq, mut dk, mut dv] = [(); 4].map(|_| vec![0f32; COUNT]);
    let (mut cache, mut workspace) = (plan.state_cache().unwrap(), plan.forward_workspace().unwrap());
    let forward = Forward::new(&q, &k, &v, &mut o).decay(&G);
    plan.forward(forward.state_cache(&mut cache).workspace(&mut workspace)).unwrap();
    let mut workspace = plan.backward_workspace().unwrap();
    let backward = Backward::new(&q, &k, &v, &d_o, &mut dq, &mut dk, &mut dv).decay(&G);
    plan.backward(backward.state_cache(&cache).workspace(&mut workspace)).unwrap();
    let expected = recurrence(&wide(&q), &wide(&k), &wide(&v), &wide(&d_o), &G, DIM);
    for ((name, actual), expected) in ["o", "dq", "dk", "dv"].iter().zip([o, dq, dk, dv]).zip(&expected) {
        let error = error_of(wide(&actual), expected);
        assert!(error < 2e-6, "{}: {:.1e}", name, error);
        assert!(error_of(wide(&actual).iter().map(|x| 1.0001 * x), expected) > 9e-5);
    }
}

// Sums of at most 2,000 terms in float32, in more pieces than on the CPU.
#[test]
fn float32_is_right() {
    check_results::<f32>(Dtype::Float32, 8e-6);
}

// Operands of tensor cores and results are rounded to bfloat16.
#[test]
fn bfloat16_is_right() {
    check_results::<Bf16>(Dtype::BFloat16, 4e-3);
}

extern "C" fn pause(_: *mut c_void) {
    thread::sleep(Duration::from_millis(100));
}

/// q gets its values on the stream, after a pause there: a call out of the stream's order reads zeros.
#[test]
fn a_call_keeps_to_its_stream() {
    let context = match gpu() {
        Some(context) => context,
        None => return,
    };
    let mut plan = Plan::new(&context, &problem(Dtype::Float32).backward(false)).unwrap();
    let stream = DeviceStream::new();
    let raw = unsafe { Stream::from_raw(stream.0.cast()) };
    plan.prepare(raw).unwrap();
    let host: [Vec<f32>; 3] = [wave(1.0), wave(2.0), wave(3.0)];
    let [source, k, v] = [0, 1, 2].map(|i| DeviceMemory::of(&host[i]));
    let [q, o] = [(); 2].map(|_| zeros::<f32>());
    let (g, workspace) = (DeviceMemory::of(&G), DeviceMemory::new(plan.info().workspace_forward_bytes));
    let call = || {
        let tensors = Forward::new(input::<f32>(&q), input::<f32>(&k), input::<f32>(&v), output::<f32>(&o));
        plan.forward_on(tensors.decay(decay(&g)).workspace(block(&workspace)), raw).unwrap();
    };
    call();
    stream.synchronize();
    stream.call(pause);
    q.copy_from(&source, &stream);
    let began = Instant::now();
    call();
    let spent = began.elapsed();
    stream.synchronize();
    let all = began.elapsed();
    let [q, k, v] = [0, 1, 2].map(|i| wide(&host[i]));
    let [expected, ..] = recurrence(&q, &k, &v, &v, &G, DIM);
    assert!(error_of(read::<f32>(&o), &expected) < 8e-6);
    println!("the call returned after {:?} of {:?}", spent, all);
    assert!(spent < Duration::from_millis(50) && all > Duration::from_millis(80), "{:?} of {:?}", spent, all);
}

#[test]
fn memory_of_the_wrong_kind_is_refused() {
    let context = match gpu() {
        Some(context) => context,
        None => return,
    };
    let (mut host, memory) = (vec![0f32; COUNT], zeros::<f32>());
    let plan = Plan::new(&context, &problem(Dtype::Float32).backward(false)).unwrap();
    let g = DeviceMemory::of(&G);
    let workspace = DeviceMemory::new(plan.info().workspace_forward_bytes);
    let [o, other] = [(); 2].map(|_| zeros::<f32>());
    let device = || input::<f32>(&memory);
    let refused = |words: &str, result: lasp::Result<()>| {
        let error = result.expect_err(words);
        println!("{}", error);
        assert!(error.sentence().contains(words), "{} in: {}", words, error);
    };
    let on_host = Tensor::new(&host, &SHAPE).unwrap();
    refused(
        "q: it is host memory, the context is on a CUDA device",
        plan.forward(
            Forward::new(on_host, device(), device(), output::<f32>(&o))
                .decay(decay(&g))
                .workspace(block(&workspace)),
        ),
    );
    refused(
        "o: it is host memory, the context is on a CUDA device",
        plan.forward(
            Forward::new(device(), device(), device(), TensorMut::new(&mut host, &SHAPE).unwrap()).decay(decay(&g)),
        ),
    );
    refused(
        "q: ",
        plan.forward(Forward::new(input::<Bf16>(&other), device(), device(), output::<f32>(&o)).decay(decay(&g))),
    );
    let mut on_cpu = AlignedBytes::zeroed(workspace.bytes.max(64), 256).unwrap();
    refused(
        "workspace: it is host memory, the context is on a CUDA device",
        plan.forward(
            Forward::new(device(), device(), device(), output::<f32>(&o)).decay(decay(&g)).workspace(&mut on_cpu),
        ),
    );
    let options = ContextOptions::new().cpu_threads(1);
    let on_cpu = Context::with_options(Comm::single().unwrap(), options).unwrap();
    let plain = Plan::new(&on_cpu, &problem(Dtype::Float32).backward(false)).unwrap();
    refused(
        "q: it is device memory, the context is on the CPU",
        plain.forward(Forward::new(device(), device(), device(), output::<f32>(&o)).decay(decay(&g))),
    );
}

#[test]
fn a_call_adds_less_than_five_microseconds() {
    let context = match gpu() {
        Some(context) => context,
        None => return,
    };
    let plan = Plan::new(&context, &Problem::new().heads(HEADS).head_dims(DIM, DIM).backward(false)).unwrap();
    let workspace = DeviceMemory::new(plan.info().workspace_forward_bytes);
    let least = |call: &dyn Fn()| {
        let round = |_| {
            let begin = Instant::now();
            (0..1000).for_each(|_| call());
            begin.elapsed().as_secs_f64() * 1e3 // of a thousand calls in seconds: of one in microseconds
        };
        (0..20).map(round).fold(f64::INFINITY, f64::min)
    };
    let raw = least(&|| {
        let mut args = sys::LASP_FORWARD_ARGS_INIT;
        args.workspace = sys::lasp_buffer { data: workspace.data as *mut c_void, bytes: workspace.bytes };
        assert_eq!(unsafe { sys::lasp_forward(plan.as_raw(), &args, std::ptr::null_mut()) }, sys::LASP_OK);
    });
    let safe = least(&|| plan.forward(Forward::without_tokens().workspace(block(&workspace))).unwrap());
    println!("lasp_forward without work on a GPU: {:.3} us from C's side, {:.3} us through lasp", raw, safe);
    assert!(safe - raw < 5.0, "the binding adds {:.3} us to {:.3} us", safe - raw, raw);
}
