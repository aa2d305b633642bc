//! The rows before a rank's first token, for short convolutions and token shifts.
use std::ptr::{null, null_mut, NonNull};

use lasp_sys as sys;

use crate::bytes::{AlignedBytes, BytesMut};
use crate::error::{check, Error, Result, Status};
use crate::execute::Stream;
use crate::guard;
use crate::operand::Spec;
use crate::packing::Packing;
use crate::plan::{placement, ContextOwner, Plan};
use crate::problem::Problem;
use crate::tensor::{Input, Output};
use crate::values::Dtype;

/// Brings, of a tensor x `[B, T, C]`, the rows before this rank's first token within that token's sequence, and their
/// gradients back. B, T and the split into ranks are the plan's.
pub struct Halo<'p, C: ContextOwner> {
    handle: NonNull<sys::lasp_halo>,
    plan: &'p Plan<C>,
    info: HaloInfo,
    x: Spec,
    before: Spec,
    d_before: Spec,
    d_x: Spec,
}

/// What a halo needs and will do, on this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HaloInfo {
    /// Of the workspace of either call.
    pub workspace_bytes: usize,
    /// Of `[num_runs * B, rows, C]` in x's type; with [`Ownership::ZigzagEach`](crate::Ownership) of
    /// `[num_runs * max_sequences, rows, C]`.
    pub before_bytes: usize,
    /// The same of the gradient.
    pub d_before_bytes: usize,
    /// Sent by this rank in one forward.
    pub forward_bytes_sent: u64,
    /// Sent by this rank in one backward.
    pub backward_bytes_sent: u64,
    /// Messages sent by this rank in one forward.
    pub forward_messages_sent: u64,
    /// Messages sent by this rank in one backward.
    pub backward_messages_sent: u64,
}

impl HaloInfo {
    /// What a halo on a plan of this problem on the CPU would say of itself, on rank `rank` of `nranks`, without a group.
    /// The other ranks are taken to have as many tokens. The rest is as in [`Halo::new`].
    pub fn of(
        problem: &Problem,
        (rows, channels): (usize, usize),
        (dtype, d_dtype): (Dtype, Dtype),
        (rank, nranks): (usize, usize),
    ) -> Result<HaloInfo> {
        guard::enter()?;
        if let Some(sentence) = problem.refusal() {
            return Err(Error::new(Status::INVALID_ARGUMENT, sentence));
        }
        let options = options_of(rows, channels, dtype, d_dtype);
        let mut raw = sys::LASP_HALO_INFO_INIT;
        // SAFETY: a problem, a placement, options, a struct that states its size.
        check(unsafe {
            sys::lasp_problem_get_halo_info(&problem.as_raw(), &placement(rank, nranks), &options, &mut raw)
        })?;
        Ok(HaloInfo::from_raw(&raw))
    }

    fn from_raw(raw: &sys::lasp_halo_info) -> HaloInfo {
        HaloInfo {
            workspace_bytes: raw.workspace_bytes as usize,
            before_bytes: raw.before_bytes as usize,
            d_before_bytes: raw.d_before_bytes as usize,
            forward_bytes_sent: raw.forward_bytes_sent,
            backward_bytes_sent: raw.backward_bytes_sent,
            forward_messages_sent: raw.forward_messages_sent,
            backward_messages_sent: raw.backward_messages_sent,
        }
    }
}

fn options_of(rows: usize, channels: usize, dtype: Dtype, d_dtype: Dtype) -> sys::lasp_halo_options {
    let wide = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let mut options = sys::LASP_HALO_OPTIONS_INIT;
    options.rows = wide(rows);
    options.channels = wide(channels);
    options.x.dtype = dtype.to_raw();
    options.d_x.dtype = d_dtype.to_raw();
    options
}

impl<'p, C: ContextOwner> Halo<'p, C> {
    /// Of `rows` (1 to 64: the width of a convolution less 1) and `channels`. `dtype` is that of x and its rows,
    /// `d_dtype` that of their gradients. Collective; a refusal leaves the group whole.
    pub fn new(
        plan: &'p Plan<C>,
        rows: usize,
        channels: usize,
        dtype: Dtype,
        d_dtype: Dtype,
    ) -> Result<Halo<'p, C>> {
        guard::enter()?;
        let options = options_of(rows, channels, dtype, d_dtype);
        let mut handle = null_mut();
        // SAFETY: a live plan, options, a place to write to.
        check(unsafe { sys::lasp_halo_create(plan.as_raw(), &options, &mut handle) })?;
        let handle = NonNull::new(handle).ok_or_else(|| Error::new(Status::INTERNAL, "no halo was made"))?;
        let mut raw = sys::LASP_HALO_INFO_INIT;
        // SAFETY: a live halo, a struct that states its size.
        check(unsafe { sys::lasp_halo_get_info(handle.as_ptr(), &mut raw) })?;
        // Of each run of tokens the batch's rows, or those of the sequences that are each cut by itself.
        let lines = raw.before_bytes as usize / (rows * channels * dtype.bytes()).max(1);
        let (whole, part) = ([plan.specs.batch, plan.specs.tokens, channels], [lines, rows, channels]);
        Ok(Halo {
            handle,
            plan,
            info: HaloInfo::from_raw(&raw),
            x: Spec::contiguous("x", &whole, dtype)?,
            before: Spec::contiguous("before", &part, dtype)?,
            d_before: Spec::contiguous("d_before", &part, d_dtype)?,
            d_x: Spec::contiguous("d_x", &whole, d_dtype)?,
        })
    }

    /// What it needs and what it will do.
    pub fn info(&self) -> &HaloInfo {
        &self.info
    }

    /// A workspace for either call, for a context on the CPU.
    pub fn workspace(&self) -> Result<AlignedBytes> {
        AlignedBytes::zeroed(self.info.workspace_bytes, self.plan.info().alignment)
    }

    /// Writes `before` `[num_runs * B, rows, C]`, oldest first: the rows before the first token of each of this rank's
    /// runs, zero before the beginning of its sequence. A rank without tokens gives an empty x. `packing` is for a plan with
    /// [`max_sequences`](crate::Problem::max_sequences). Collective.
    pub fn forward<'a>(
        &self,
        x: impl Into<Input<'a>>,
        before: impl Into<Output<'a>>,
        workspace: impl Into<BytesMut<'a>>,
        packing: Option<Packing<'_>>,
    ) -> Result<()> {
        guard::enter()?;
        let specs = &self.plan.specs;
        let fill = || -> Result<sys::lasp_halo_args> {
            let mut args = sys::LASP_HALO_ARGS_INIT;
            args.x = specs.input(&self.x, &Some(x.into()))?;
            args.before = specs.output(&self.before, &Some(before.into()))?;
            args.workspace = specs.bytes_mut("workspace", &Some(workspace.into()))?;
            Ok(args)
        };
        self.call(fill(), packing, sys::lasp_halo_forward)
    }

    /// Adds to `d_x` `[B, T, C]` the gradients of the rows that other ranks took from here, in f32, rounded once. The
    /// gradient of what forward gave is `d_before`. Collective.
    pub fn backward<'a>(
        &self,
        d_before: impl Into<Input<'a>>,
        d_x: impl Into<Output<'a>>,
        workspace: impl Into<BytesMut<'a>>,
        packing: Option<Packing<'_>>,
    ) -> Result<()> {
        guard::enter()?;
        let specs = &self.plan.specs;
        let fill = || -> Result<sys::lasp_halo_args> {
            let mut args = sys::LASP_HALO_ARGS_INIT;
            args.d_before = specs.input(&self.d_before, &Some(d_before.into()))?;
            args.d_x = specs.output(&self.d_x, &Some(d_x.into()))?;
            args.workspace = specs.bytes_mut("workspace", &Some(workspace.into()))?;
            Ok(args)
        };
        self.call(fill(), packing, sys::lasp_halo_backward)
    }

    /// What is refused here is told to the other ranks by a call without arguments, which the library refuses.
    fn call(
        &self,
        args: Result<sys::lasp_halo_args>,
        packing: Option<Packing<'_>>,
        function: unsafe extern "C" fn(
            *mut sys::lasp_halo,
            *const sys::lasp_halo_args,
            sys::lasp_stream,
        ) -> sys::lasp_status,
    ) -> Result<()> {
        let stream = Stream::DEFAULT.as_raw();
        let mut args = args.map_err(|error| {
            if self.plan.info().nranks > 1 {
                // SAFETY: a live halo; null arguments are refused.
                unsafe { function(self.handle.as_ptr(), null(), stream) };
            }
            error
        })?;
        let packing = packing.as_ref().map(Packing::as_raw);
        args.packing = packing.as_ref().map_or(null(), |raw| raw);
        // SAFETY: a live halo on its plan's one thread; buffers of the sizes stated, borrowed for the call.
        check(unsafe { function(self.handle.as_ptr(), &args, stream) })
    }
}

impl<C: ContextOwner> Drop for Halo<'_, C> {
    fn drop(&mut self) {
        if !guard::in_callback() {
            // SAFETY: ours.
            unsafe { sys::lasp_halo_destroy(self.handle.as_ptr()) };
        }
    }
}

impl<C: ContextOwner> std::fmt::Debug for Halo<'_, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Halo").field("info", &self.info).finish_non_exhaustive()
    }
}
