//! One validated problem.
use std::fmt;
use std::os::raw::c_char;
use std::ptr::{null_mut, NonNull};
use std::rc::Rc;

use lasp_sys as sys;

use crate::bytes::AlignedBytes;
use crate::cache::StateCache;
use crate::context::Context;
use crate::error::{check, Error, Result, Status};
use crate::execute::Stream;
use crate::guard;
use crate::operand::Specs;
use crate::problem::Problem;
use crate::values::{Device, Schedule};

mod sealed {
    pub trait Sealed {}
    impl Sealed for crate::Context {}
    impl Sealed for &crate::Context {}
    impl Sealed for std::rc::Rc<crate::Context> {}
}

/// How a plan holds its context: borrowed, shared within a thread, or owned, which lets the plan go to another
/// thread.
pub trait ContextOwner: sealed::Sealed {
    /// The context.
    fn context(&self) -> &Context;
}
impl ContextOwner for Context {
    fn context(&self) -> &Context {
        self
    }
}
impl ContextOwner for &Context {
    fn context(&self) -> &Context {
        self
    }
}
impl ContextOwner for Rc<Context> {
    fn context(&self) -> &Context {
        self
    }
}

struct Handle(NonNull<sys::lasp_plan>);

// SAFETY: the library ties no handle to a thread; Plan is not Sync, and is Send only with its context.
unsafe impl Send for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        if !guard::in_callback() {
            // SAFETY: ours.
            unsafe { sys::lasp_plan_destroy(self.0.as_ptr()) };
        }
    }
}

/// One validated problem, and what it takes to compute it.
///
/// `Plan<&Context>` borrows its context, `Plan<Rc<Context>>` shares it within a thread, and `Plan`, short for
/// `Plan<Context>`, owns it.
pub struct Plan<C: ContextOwner = Context> {
    handle: Handle, // dropped before its context
    pub(crate) specs: Box<Specs>,
    info: PlanInfo,
    owner: C,
}

/// What a plan needs and what it will do. Sizes are for this rank.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PlanInfo {
    /// Of the workspace of forward.
    pub workspace_forward_bytes: usize,
    /// Of the workspace of backward.
    pub workspace_backward_bytes: usize,
    /// Of the workspace of a backward that adds to dv; at least as much.
    pub workspace_add_bytes: usize,
    /// Of the state cache in this plan's mode; 0 without backward.
    pub state_cache_bytes: usize,
    /// The same problem with [`Cache::Incoming`](crate::Cache).
    pub state_cache_incoming_bytes: usize,
    /// The same problem with [`Cache::Chunks`](crate::Cache).
    pub state_cache_chunks_bytes: usize,
    /// Of workspace and state cache.
    pub alignment: usize,
    /// Sent by this rank in one forward.
    pub forward_bytes_sent: u64,
    /// Sent by this rank in one backward.
    pub backward_bytes_sent: u64,
    /// Messages sent by this rank in one forward.
    pub forward_messages_sent: u64,
    /// Messages sent by this rank in one backward.
    pub backward_messages_sent: u64,
    /// Global index of this rank's first token.
    pub token_begin: usize,
    /// Over all ranks, of one batch row.
    pub total_tokens: usize,
    /// N: the first extent of the states.
    pub num_sequences: usize,
    /// Chunks of this rank, over all rows.
    pub local_chunks: usize,
    /// This rank.
    pub rank: usize,
    /// The size of the group.
    pub nranks: usize,
    /// H: output heads.
    pub heads: usize,
    /// Tokens handled at once.
    pub chunk: usize,
    /// The schedule chosen.
    pub schedule: Schedule,
    /// Pieces of the all-scan schedule; else 1.
    pub pieces: usize,
    /// The model's exchange times in microseconds: of the schedule chosen, then ring, all-gather, all-scan, doubling,
    /// head-scatter, relay. -1 for what is not possible here.
    pub predicted_us: [f64; 16],
    /// Of the carry between the stages of a forward pass; 0, as what follows, where the plan has no stages.
    pub carry_forward_bytes: usize,
    /// The same of a backward pass.
    pub carry_backward_bytes: usize,
    /// Of one rank's map: its state, then its transition.
    pub map_bytes: usize,
    /// Where the transition is in a map; map_bytes where there is none.
    pub map_transition_offset: usize,
    /// The most runs of tokens that any rank has.
    pub num_runs: usize,
}

/// Which ranks hold a run of tokens, such as those of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Owners {
    /// Reads its initial state.
    pub first_rank: usize,
    /// Writes its final state.
    pub last_rank: usize,
}

impl<C: ContextOwner> Plan<C> {
    /// Validates the problem, compares it with the other ranks' and lays out all work. Collective: every rank of
    /// the group calls it, in the same order as its other collective calls.
    ///
    /// Every refusal of a problem happens here: a mistake, something unsupported, ranks that disagree (on every
    /// rank), a rank that did not come. A context given by value is dropped with the failed plan.
    pub fn new(context: C, problem: &Problem) -> Result<Plan<C>> {
        guard::enter()?;
        if let Some(sentence) = problem.refusal() {
            refuse_plan(context.context());
            return Err(Error::new(Status::INVALID_ARGUMENT, sentence));
        }
        let raw_problem = problem.as_raw();
        let mut handle = null_mut();
        // SAFETY: a live context, a problem, a place to write to.
        check(unsafe { sys::lasp_plan_create(context.context().as_raw(), &raw_problem, &mut handle) })?;
        let handle = Handle(NonNull::new(handle).ok_or_else(|| Error::new(Status::INTERNAL, "no plan was made"))?);
        let mut raw = sys::LASP_PLAN_INFO_INIT;
        // SAFETY: a live plan, a struct that states its size.
        check(unsafe { sys::lasp_plan_get_info(handle.0.as_ptr(), &mut raw) })?;
        let on_device = context.context().device() != Device::Cpu;
        let specs = Box::new(Specs::new(&raw_problem, raw.heads, raw.num_sequences, on_device)?);
        Ok(Plan { handle, specs, info: PlanInfo::from_raw(&raw), owner: context })
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        self.owner.context()
    }

    /// What it needs and what it will do.
    pub fn info(&self) -> &PlanInfo {
        &self.info
    }

    /// The handle, which stays this plan's.
    pub fn as_raw(&self) -> *mut sys::lasp_plan {
        self.handle.0.as_ptr()
    }

    /// Which ranks hold tokens `[begin, end)`, counted over all ranks. An empty run belongs to the rank that holds the
    /// token at its offset, or to the last rank at the very end.
    pub fn owners(&self, begin: usize, end: usize) -> Result<Owners> {
        guard::enter()?;
        let wide = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let (mut first, mut last) = (0, 0);
        // SAFETY: a live plan, two places to write to.
        check(unsafe { sys::lasp_plan_get_owners(self.as_raw(), wide(begin), wide(end), &mut first, &mut last) })?;
        Ok(Owners { first_rank: first as usize, last_rank: last as usize })
    }

    /// The schedule and kernels chosen, the model's inputs and why the others were not chosen, as text.
    pub fn describe(&self) -> Result<String> {
        guard::enter()?;
        let mut needed = 0;
        // SAFETY: a live plan; no text is asked for.
        check(unsafe { sys::lasp_plan_describe(self.as_raw(), null_mut(), 0, &mut needed) })?;
        let mut text = vec![0u8; needed];
        let data: *mut c_char = text.as_mut_ptr().cast();
        // SAFETY: a live plan, that many bytes to write to.
        check(unsafe { sys::lasp_plan_describe(self.as_raw(), data, needed, &mut needed) })?;
        text.truncate(text.iter().position(|&byte| byte == 0).unwrap_or(text.len()));
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Does now what a first call would do lazily, so that later calls can be captured into a CUDA graph.
    /// Collective.
    pub fn prepare(&mut self, stream: Stream) -> Result<()> {
        guard::enter()?;
        // SAFETY: a live plan; the stream is live, by its maker's promise.
        check(unsafe { sys::lasp_plan_prepare(self.as_raw(), stream.as_raw()) })
    }

    /// A state cache of this plan's size, for a context on the CPU.
    pub fn state_cache(&self) -> Result<StateCache> {
        AlignedBytes::zeroed(self.info.state_cache_bytes, self.info.alignment).map(StateCache::new)
    }

    /// A workspace for forward, for a context on the CPU.
    pub fn forward_workspace(&self) -> Result<AlignedBytes> {
        AlignedBytes::zeroed(self.info.workspace_forward_bytes, self.info.alignment)
    }

    /// A workspace for backward, for a context on the CPU.
    pub fn backward_workspace(&self) -> Result<AlignedBytes> {
        AlignedBytes::zeroed(self.info.workspace_add_bytes, self.info.alignment)
    }
}

/// Takes part in making a plan without a problem, which the library refuses and tells the other ranks.
fn refuse_plan(context: &Context) {
    let mut handle = null_mut();
    // SAFETY: a live context; a null problem is refused.
    unsafe { sys::lasp_plan_create(context.as_raw(), std::ptr::null(), &mut handle) };
}

impl Plan<Context> {
    /// Ends the plan and gives its context back.
    pub fn into_context(self) -> Context {
        self.owner
    }
}

impl<C: ContextOwner> fmt::Debug for Plan<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("info", &self.info).finish_non_exhaustive()
    }
}

/// Of a rank on the CPU that need not be there.
pub(crate) fn placement(rank: usize, nranks: usize) -> sys::lasp_placement {
    let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    sys::lasp_placement { rank: number(rank), nranks: number(nranks), ..sys::LASP_PLACEMENT_INIT }
}

impl PlanInfo {
    /// What a plan of this problem on the CPU would say of itself, on rank `rank` of `nranks`, without a group. The other
    /// ranks are taken to have as many tokens. With [`Schedule::Auto`] bytes are the most that any schedule needs.
    pub fn of(problem: &Problem, rank: usize, nranks: usize) -> Result<PlanInfo> {
        guard::enter()?;
        if let Some(sentence) = problem.refusal() {
            return Err(Error::new(Status::INVALID_ARGUMENT, sentence));
        }
        let mut raw = sys::LASP_PLAN_INFO_INIT;
        // SAFETY: a problem, a placement, a struct that states its size.
        check(unsafe { sys::lasp_problem_get_info(&problem.as_raw(), &placement(rank, nranks), &mut raw) })?;
        Ok(PlanInfo::from_raw(&raw))
    }

    fn from_raw(raw: &sys::lasp_plan_info) -> PlanInfo {
        PlanInfo {
            workspace_forward_bytes: raw.workspace_forward_bytes as usize,
            workspace_backward_bytes: raw.workspace_backward_bytes as usize,
            workspace_add_bytes: raw.workspace_add_bytes as usize,
            state_cache_bytes: raw.state_cache_bytes as usize,
            state_cache_incoming_bytes: raw.state_cache_incoming_bytes as usize,
            state_cache_chunks_bytes: raw.state_cache_chunks_bytes as usize,
            alignment: raw.alignment as usize,
            forward_bytes_sent: raw.forward_bytes_sent,
            backward_bytes_sent: raw.backward_bytes_sent,
            forward_messages_sent: raw.forward_messages_sent,
            backward_messages_sent: raw.backward_messages_sent,
            token_begin: raw.token_begin as usize,
            total_tokens: raw.total_tokens as usize,
            num_sequences: raw.num_sequences as usize,
            local_chunks: raw.local_chunks as usize,
            rank: raw.rank as usize,
            nranks: raw.nranks as usize,
            heads: raw.heads as usize,
            chunk: raw.chunk as usize,
            schedule: Schedule::from_raw(raw.schedule),
            pieces: raw.pieces as usize,
            predicted_us: raw.predicted_us,
            carry_forward_bytes: raw.carry_forward_bytes as usize,
            carry_backward_bytes: raw.carry_backward_bytes as usize,
            map_bytes: raw.map_bytes as usize,
            map_transition_offset: raw.map_transition_offset as usize,
            num_runs: raw.num_runs as usize,
        }
    }
}
