//! Device memory: two ranks on one GPU, forward on bfloat16 tensors, held to the recurrence in f64. Says so and
//! ends where there is no GPU.     cargo run --example cuda
use std::error::Error;
use std::ffi::c_void;
use std::thread;

use lasp::{
    Bf16, BytesMut, Comm, Context, ContextOptions, Decay, Device, Dtype, Forward, Plan, Problem, StatusGroup,
};
use lasp::{Tensor, TensorMut};

mod device;
use device::{error_of, recurrence, use_device, DeviceMemory};

const TOKENS: usize = 256; // of each of the two ranks
const HEADS: usize = 4;
const DIM: usize = 64;
const SHAPE: [usize; 4] = [1, TOKENS, HEADS, DIM];
const STRIDES: [usize; 4] = [TOKENS * HEADS * DIM, HEADS * DIM, DIM, 1];
const COUNT: usize = TOKENS * HEADS * DIM;

fn wave(seed: usize) -> Vec<Bf16> {
    (0..2 * COUNT).map(|i| Bf16::from_f32(((i * 7 + seed) as f32 * 0.37).sin() * 0.5)).collect()
}

/// o of this rank's half of the tokens.
fn rank_main(context: &Context, qkv: &[Vec<Bf16>; 3], g: &[f32]) -> Result<Vec<Bf16>, lasp::Error> {
    let problem = Problem::new().tokens(TOKENS).heads(HEADS).head_dims(DIM, DIM).dtype(Dtype::BFloat16);
    let plan = Plan::new(context, &problem.decay(Decay::Head).backward(false))?;
    let begin = context.comm().rank() * COUNT;
    use_device();
    let inputs = [0, 1, 2].map(|i| DeviceMemory::of(&qkv[i][begin..begin + COUNT]));
    let mut o = vec![Bf16::default(); COUNT];
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
fn run(qkv: &[Vec<Bf16>; 3], g: &[f32]) -> Result<Vec<Bf16>, lasp::Error> {
    let context = |comm| Context::with_options(comm, ContextOptions::new().device(Device::Cuda(0)));
    let contexts = Comm::threads(2)?.into_iter().map(context).collect::<Result<Vec<_>, _>>()?;
    let parts: Vec<_> = thread::scope(|scope| {
        let start = |context| scope.spawn(move || rank_main(&context, qkv, g));
        let ranks: Vec<_> = contexts.into_iter().map(start).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank panicked")).collect()
    });
    Ok(parts.into_iter().collect::<Result<Vec<_>, _>>()?.concat())
}

fn main() -> Result<(), Box<dyn Error>> {
    let (qkv, g) = ([wave(1), wave(2), wave(3)], [-0.01, -0.02, -0.05, -0.1]);
    let o = match run(&qkv, &g) {
        Err(error) if error.group() == StatusGroup::Unsupported => {
            println!("no GPU to run on: {}", error.sentence());
            return Ok(());
        }
        result => result?,
    };
    let wide = |values: &Vec<Bf16>| values.iter().map(|x| f64::from(x.to_f32())).collect::<Vec<_>>();
    let [q, k, v] = [wide(&qkv[0]), wide(&qkv[1]), wide(&qkv[2])];
    let [expected, ..] = recurrence(&q, &k, &v, &v, &g, DIM);
    let error = error_of(wide(&o), &expected);
    println!("two ranks on a GPU differ from the recurrence in f64 by {:.1e}", error);
    // A tensor core's operands and the result are rounded to bfloat16, 2^-9 each.
    if error > 4e-3 {
        return Err(format!("the GPU's o differs by {}", error).into());
    }
    Ok(())
}
