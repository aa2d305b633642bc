//! Device memory: two ranks on one GPU, forward on bfloat16 tensors, compared with the same on the CPU. Says so and
//! ends where there is no GPU.     cargo run --example cuda
use std::error::Error;
use std::ffi::{c_void, CString};
use std::mem::size_of_val;
use std::os::raw::{c_char, c_int};
use std::thread;

use lasp::{
    Bf16, BytesMut, Comm, Context, ContextOptions, Decay, Device, Dtype, Forward, Plan, Problem, StatusGroup,
};
use lasp::{Tensor, TensorMut};

const TOKENS: usize = 256; // of each of the two ranks
const HEADS: usize = 4;
const DIM: usize = 64;
const SHAPE: [usize; 4] = [1, TOKENS, HEADS, DIM];
const STRIDES: [usize; 4] = [TOKENS * HEADS * DIM, HEADS * DIM, DIM, 1];
const COUNT: usize = TOKENS * HEADS * DIM;

// In the C library, or in libdl of one before glibc 2.34.
#[link(name = "dl")]
extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Calls a function of the CUDA driver by its name. A program with a CUDA crate has these from there.
macro_rules! driver {
    ($name:literal $(, $argument:expr => $kind:ty)*) => {{
        let (library, name) = (CString::new("libcuda.so.1").unwrap(), CString::new($name).unwrap());
        // SAFETY: the driver's function of this name has these parameters; the pointers are to memory of that size.
        let code = unsafe {
            let function = dlsym(dlopen(library.as_ptr(), 2), name.as_ptr());
            assert!(!function.is_null(), "the driver has no {}", $name);
            let function: unsafe extern "C" fn($($kind),*) -> c_int = std::mem::transmute(function);
            function($($argument),*)
        };
        assert_eq!(code, 0, "{}", $name);
    }};
}

/// Makes the first GPU's context, the one that the library uses too, this thread's.
fn use_device() {
    let (mut device, mut context) = (0, std::ptr::null_mut());
    driver!("cuInit", 0 => u32);
    driver!("cuDeviceGet", &mut device => *mut c_int, 0 => c_int);
    driver!("cuDevicePrimaryCtxRetain", &mut context => *mut *mut c_void, device => c_int);
    driver!("cuCtxSetCurrent", context => *mut c_void);
}

struct DeviceMemory {
    data: u64,
    bytes: usize,
}

impl DeviceMemory {
    fn new(bytes: usize) -> Self {
        let mut data = 0;
        driver!("cuMemAlloc_v2", &mut data => *mut u64, bytes.max(1) => usize); // the driver refuses 0
        DeviceMemory { data, bytes }
    }

    fn of<T: Copy>(values: &[T]) -> Self {
        let memory = DeviceMemory::new(size_of_val(values));
        let from = values.as_ptr().cast();
        driver!("cuMemcpyHtoD_v2", memory.data => u64, from => *const c_void, memory.bytes => usize);
        memory
    }

    /// Waits for the default stream first.
    fn read<T: Copy>(&self, values: &mut [T]) {
        assert_eq!(size_of_val(values), self.bytes);
        let to = values.as_mut_ptr().cast();
        driver!("cuMemcpyDtoH_v2", to => *mut c_void, self.data => u64, self.bytes => usize);
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        driver!("cuMemFree_v2", self.data => u64); // waits for the work that uses it
    }
}

fn wave(seed: usize) -> Vec<Bf16> {
    (0..2 * COUNT).map(|i| Bf16::from_f32(((i * 7 + seed) as f32 * 0.37).sin() * 0.5)).collect()
}

/// o of this rank's half of the tokens.
fn rank_main(context: &Context, qkv: &[Vec<Bf16>; 3], g: &[f32]) -> Result<Vec<Bf16>, lasp::Error> {
    let problem = Problem::new().tokens(TOKENS).heads(HEADS).head_dims(DIM, DIM).dtype(Dtype::BFloat16);
    let plan = Plan::new(context, &problem.decay(Decay::Head).backward(false))?;
    let begin = context.comm().rank() * COUNT;
    let [q, k, v] = [0, 1, 2].map(|i| &qkv[i][begin..begin + COUNT]);
    let mut o = vec![Bf16::default(); COUNT];
    if context.device() == Device::Cpu {
        let mut workspace = plan.forward_workspace()?;
        plan.forward(Forward::new(q, k, v, &mut o).decay(g).workspace(&mut workspace))?;
        return Ok(o);
    }

    use_device();
    let inputs = [q, k, v].map(DeviceMemory::of);
    let (decay, output) = (DeviceMemory::of(g), DeviceMemory::of(&o));
    let workspace = DeviceMemory::new(plan.info().workspace_forward_bytes);
    // SAFETY: memory of the device; the copy below waits for the work before any of it is freed.
    unsafe {
        let view = |memory: &DeviceMemory| Tensor::from_device(memory.data as *const Bf16, COUNT, &SHAPE, &STRIDES);
        let [q, k, v] = [view(&inputs[0])?, view(&inputs[1])?, view(&inputs[2])?];
        let o = TensorMut::from_device(output.data as *mut Bf16, COUNT, &SHAPE, &STRIDES)?;
        let g = Tensor::from_device(decay.data as *const f32, HEADS, &[HEADS], &[1])?;
        let workspace = BytesMut::from_device(workspace.data as *mut c_void, workspace.bytes);
        plan.forward(Forward::new(q, k, v, o).decay(g).workspace(workspace))?;
    }
    output.read(&mut o);
    Ok(o)
}

/// o of all tokens from two ranks, each a thread.
fn run(device: Device) -> Result<Vec<f32>, lasp::Error> {
    let context = |comm| Context::with_options(comm, ContextOptions::new().device(device).cpu_threads(1));
    let mut contexts = Comm::threads(2)?.into_iter().map(context).collect::<Result<Vec<_>, _>>()?;
    let (qkv, g) = (&[wave(1), wave(2), wave(3)], &[-0.01, -0.02, -0.05, -0.1]);
    let parts: Vec<_> = thread::scope(|scope| {
        let mut ranks = Vec::new();
        for context in &mut contexts {
            ranks.push(scope.spawn(move || rank_main(context, qkv, g)));
        }
        ranks.into_iter().map(|rank| rank.join().expect("a rank panicked")).collect()
    });
    let parts = parts.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(parts.concat().into_iter().map(f32::from).collect())
}

fn main() -> Result<(), Box<dyn Error>> {
    let on_gpu = match run(Device::Cuda(0)) {
        Err(error) if error.group() == StatusGroup::Unsupported => {
            println!("no GPU to run on: {}", error.sentence());
            return Ok(());
        }
        result => result?,
    };
    let on_cpu = run(Device::Cpu)?;
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|x| x * x).sum::<f32>().sqrt();
    let error = norm(&mut on_cpu.iter().zip(&on_gpu).map(|(a, b)| a - b)) / norm(&mut on_cpu.iter().copied());
    println!("two ranks on a GPU and on the CPU differ by {:.1e}", error);
    // Each rounds its bfloat16 results to 2e-3 of their size; a tensor core's operands, rounded too, leave 4e-3 in
    // all.
    if error.is_nan() || error > 6e-3 {
        return Err(format!("the GPU's o differs by {}", error).into());
    }
    Ok(())
}
