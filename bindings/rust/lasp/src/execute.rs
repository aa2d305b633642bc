//! The three calls that compute.
use lasp_sys as sys;

use crate::arguments::{Backward, Forward, Step};
use crate::error::{check, Error, Result};
use crate::guard;
use crate::packing::Packing;
use crate::plan::{ContextOwner, Plan};

/// A CUDA stream. On a CPU context only the default one is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(sys::lasp_stream);

impl Stream {
    /// The default stream.
    pub const DEFAULT: Stream = Stream(std::ptr::null_mut());

    /// A `cudaStream_t` of yours.
    ///
    /// # Safety
    /// It is a live stream of the device of every context that it is used with.
    pub const unsafe fn from_raw(stream: sys::lasp_stream) -> Stream {
        Stream(stream)
    }

    /// The `cudaStream_t`.
    pub const fn as_raw(self) -> sys::lasp_stream {
        self.0
    }
}

/// The calls that compute. On the CPU they return when the work is done. On a CUDA context they return at once,
/// with the work ordered on the stream: device tensors stay alive, and apart, until it has run, as their makers
/// promised.
impl<C: ContextOwner> Plan<C> {
    /// o, and the carried state, from q, k, v. Collective.
    pub fn forward(&self, tensors: Forward<'_>) -> Result<()> {
        self.forward_on(tensors, Stream::DEFAULT)
    }

    /// [`forward`](Plan::forward) on a stream.
    pub fn forward_on(&self, tensors: Forward<'_>, stream: Stream) -> Result<()> {
        guard::enter()?;
        let mut args = tensors.raw(&self.specs).map_err(|error| self.give_up_forward(&tensors, error))?;
        let packing = tensors.packing.as_ref().map(Packing::as_raw);
        args.packing = packing.as_ref().map_or(std::ptr::null(), |raw| raw);
        // SAFETY: a live plan on its one thread; buffers of the sizes stated, borrowed for the call or, on a
        // device, promised for longer.
        let result = check(unsafe { sys::lasp_forward(self.as_raw(), &args, stream.as_raw()) });
        if let Some(cache) = tensors.state_cache {
            cache.after_forward(&result);
        }
        result
    }

    /// All gradients, from d_o and d_final_state. The incoming state comes from the state cache. Collective. Refused
    /// on a plan made without backward.
    pub fn backward(&self, tensors: Backward<'_>) -> Result<()> {
        self.backward_on(tensors, Stream::DEFAULT)
    }

    /// [`backward`](Plan::backward) on a stream.
    pub fn backward_on(&self, tensors: Backward<'_>, stream: Stream) -> Result<()> {
        guard::enter()?;
        let mut args = tensors.raw(&self.specs).map_err(|error| self.give_up_backward(error))?;
        let packing = tensors.packing.as_ref().map(Packing::as_raw);
        args.packing = packing.as_ref().map_or(std::ptr::null(), |raw| raw);
        // SAFETY: as in forward.
        check(unsafe { sys::lasp_backward(self.as_raw(), &args, stream.as_raw()) })
    }

    /// What is refused here would not come to the library, where the other ranks wait for it: a call without arguments
    /// is refused there, and they are told. A reused cache is exchanged with nobody.
    fn give_up_forward(&self, tensors: &Forward<'_>, error: Error) -> Error {
        if self.info().nranks > 1 && !tensors.reuse_state_cache {
            // SAFETY: a live plan; null arguments are refused.
            unsafe { sys::lasp_forward(self.as_raw(), std::ptr::null(), std::ptr::null_mut()) };
        }
        error
    }

    fn give_up_backward(&self, error: Error) -> Error {
        if self.info().nranks > 1 {
            // SAFETY: a live plan; null arguments are refused.
            unsafe { sys::lasp_backward(self.as_raw(), std::ptr::null(), std::ptr::null_mut()) };
        }
        error
    }

    /// Decoding: the recurrence itself, token by token, on a state that you keep. It talks to nobody, whatever
    /// the plan's group, and needs no workspace. Refused where the plan is not causal, or has
    /// [`max_sequences`](crate::Problem::max_sequences).
    pub fn step(&self, tensors: Step<'_>) -> Result<()> {
        self.step_on(tensors, Stream::DEFAULT)
    }

    /// [`step`](Plan::step) on a stream.
    pub fn step_on(&self, tensors: Step<'_>, stream: Stream) -> Result<()> {
        guard::enter()?;
        let args = tensors.raw(&self.specs)?;
        // SAFETY: as in forward.
        check(unsafe { sys::lasp_step(self.as_raw(), &args, stream.as_raw()) })
    }
}
