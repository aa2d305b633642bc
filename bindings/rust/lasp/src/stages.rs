//! A plan's passes in two stages, for programs that move the maps of the ranks by a collective of their own.
use lasp_sys as sys;

use crate::arguments::{Backward, Forward};
use crate::bytes::{AlignedBytes, BytesMut, BytesRef};
use crate::error::{check, Error, Result, Status};
use crate::execute::Stream;
use crate::guard;
use crate::packing::Packing;
use crate::plan::{ContextOwner, Plan};
use crate::tensor::{Input, Output};

/// What lies between the stages of one pass, in bytes: this rank's map, to be gathered from all ranks, and the carry.
/// [`Plan::forward_stages`] and [`Plan::backward_stages`] make it, for a context on the CPU.
#[derive(Debug)]
pub struct StageBytes {
    /// This rank's map, [`PlanInfo::map_bytes`](crate::PlanInfo).
    pub map: AlignedBytes,
    carry: AlignedBytes,
    summarized: bool,
}

impl<C: ContextOwner> Plan<C> {
    /// The bytes of a forward pass in stages. Refused with [`Status::UNSUPPORTED`] where the plan has none.
    pub fn forward_stages(&self) -> Result<StageBytes> {
        self.stage_bytes(self.info().carry_forward_bytes)
    }

    /// The bytes of a backward pass in stages.
    pub fn backward_stages(&self) -> Result<StageBytes> {
        self.stage_bytes(self.info().carry_backward_bytes)
    }

    /// A block for the maps of all ranks, one after the other, as your all-gather leaves them.
    pub fn maps(&self) -> Result<AlignedBytes> {
        AlignedBytes::zeroed(self.info().nranks * self.info().map_bytes, self.info().alignment)
    }

    /// Writes this rank's map to `stages.map`. Of the tensors k, v, the decay, beta, the initial state, the state cache and the
    /// workspace count. Talks to nobody, as all stages.
    pub fn forward_summarize(&self, tensors: Forward<'_>, stages: &mut StageBytes) -> Result<()> {
        guard::enter()?;
        let mut args = tensors.raw(&self.specs)?;
        args.o = sys::LASP_BUFFER_INIT;
        args.final_state = sys::LASP_BUFFER_INIT;
        args.maps = buffer(&mut stages.map);
        args.carry = buffer(&mut stages.carry);
        stages.summarized = false;
        let packing = tensors.packing.as_ref().map(Packing::as_raw);
        args.packing = packing.as_ref().map_or(std::ptr::null(), |raw| raw);
        // SAFETY: a live plan on its one thread; buffers of the sizes stated, borrowed for the call.
        check(unsafe { sys::lasp_forward_summarize(self.as_raw(), &args, Stream::DEFAULT.as_raw()) })?;
        stages.summarized = true;
        Ok(())
    }

    /// The rest of the pass, from the state `incoming` `[B, H, K, V]` of f32 that enters this rank; without it zero.
    /// Final states are not broadcast. What was left in `stages` is used; where nothing was, it is worked out again.
    pub fn forward_apply(
        &self,
        tensors: Forward<'_>,
        incoming: Option<Input<'_>>,
        stages: &mut StageBytes,
    ) -> Result<()> {
        guard::enter()?;
        let mut args = tensors.raw(&self.specs)?;
        args.incoming = self.specs.input(&self.specs.incoming, &incoming)?;
        if stages.summarized {
            args.carry = buffer(&mut stages.carry);
        }
        let packing = tensors.packing.as_ref().map(Packing::as_raw);
        args.packing = packing.as_ref().map_or(std::ptr::null(), |raw| raw);
        // SAFETY: as in forward_summarize.
        let result = check(unsafe { sys::lasp_forward_apply(self.as_raw(), &args, Stream::DEFAULT.as_raw()) });
        if let Some(cache) = tensors.state_cache {
            cache.after_forward(&result);
        }
        result
    }

    /// The same with time reversed: this rank's map of the gradient of the state. Of the tensors q, the decay, d_o,
    /// d_final_state and the workspace count, and with the delta write k, beta and the state cache.
    pub fn backward_summarize(&self, tensors: Backward<'_>, stages: &mut StageBytes) -> Result<()> {
        guard::enter()?;
        let mut args = tensors.raw(&self.specs)?;
        let absent = sys::LASP_BUFFER_INIT;
        args.dq = absent;
        args.dk = absent;
        args.dv = absent;
        args.d_decay = absent;
        args.d_beta = absent;
        args.d_initial_state = absent;
        args.maps = buffer(&mut stages.map);
        args.carry = buffer(&mut stages.carry);
        stages.summarized = false;
        let packing = tensors.packing.as_ref().map(Packing::as_raw);
        args.packing = packing.as_ref().map_or(std::ptr::null(), |raw| raw);
        // SAFETY: as in forward_summarize.
        check(unsafe { sys::lasp_backward_summarize(self.as_raw(), &args, Stream::DEFAULT.as_raw()) })?;
        stages.summarized = true;
        Ok(())
    }

    /// All gradients, from the gradient `incoming` of the state that leaves this rank; without it zero.
    pub fn backward_apply(
        &self,
        tensors: Backward<'_>,
        incoming: Option<Input<'_>>,
        stages: &mut StageBytes,
    ) -> Result<()> {
        guard::enter()?;
        let mut args = tensors.raw(&self.specs)?;
        args.incoming = self.specs.input(&self.specs.incoming, &incoming)?;
        if stages.summarized {
            args.carry = buffer(&mut stages.carry);
        }
        let packing = tensors.packing.as_ref().map(Packing::as_raw);
        args.packing = packing.as_ref().map_or(std::ptr::null(), |raw| raw);
        // SAFETY: as in forward_summarize.
        check(unsafe { sys::lasp_backward_apply(self.as_raw(), &args, Stream::DEFAULT.as_raw()) })
    }

    /// The state that enters this rank, `[B, H, K, V]` of f32, from the maps of all ranks; with `backward` the gradient
    /// of the state that leaves it, from maps of [`backward_summarize`](Plan::backward_summarize).
    pub fn maps_apply<'a>(
        &self,
        maps: impl Into<BytesRef<'a>>,
        backward: bool,
        incoming: impl Into<Output<'a>>,
    ) -> Result<()> {
        guard::enter()?;
        let mut args = sys::LASP_MAPS_ARGS_INIT;
        args.maps = self.specs.bytes_ref("maps", &maps.into())?;
        args.incoming = self.specs.output(&self.specs.incoming, &Some(incoming.into()))?;
        args.backward = backward.into();
        // SAFETY: as in forward_summarize.
        check(unsafe { sys::lasp_maps_apply(self.as_raw(), &args, Stream::DEFAULT.as_raw()) })
    }

    /// Writes to `to` the map of two neighbours: `later` after `earlier`, in the order in which a state passes them.
    pub fn maps_compose<'a>(
        &self,
        later: impl Into<BytesRef<'a>>,
        earlier: impl Into<BytesRef<'a>>,
        to: impl Into<BytesMut<'a>>,
    ) -> Result<()> {
        guard::enter()?;
        let mut args = sys::LASP_MAPS_ARGS_INIT;
        args.later = self.specs.bytes_ref("later", &later.into())?;
        args.earlier = self.specs.bytes_ref("earlier", &earlier.into())?;
        args.to = self.specs.bytes_mut("to", &Some(to.into()))?;
        // SAFETY: as in forward_summarize.
        check(unsafe { sys::lasp_maps_compose(self.as_raw(), &args, Stream::DEFAULT.as_raw()) })
    }

    fn stage_bytes(&self, carry: usize) -> Result<StageBytes> {
        let info = self.info();
        if info.map_bytes == 0 {
            let sentence = "plan: it has no stages (bidirectional, or with segment)";
            return Err(Error::new(Status::UNSUPPORTED, sentence));
        }
        Ok(StageBytes {
            map: AlignedBytes::zeroed(info.map_bytes, info.alignment)?,
            carry: AlignedBytes::zeroed(carry, info.alignment)?,
            summarized: false,
        })
    }
}

fn buffer(bytes: &mut AlignedBytes) -> sys::lasp_buffer {
    BytesMut::from(bytes).raw
}
