//! The tensors that each of the three calls is given.
use std::fmt;

use lasp_sys as sys;

use crate::bytes::BytesMut;
use crate::cache::{CacheMut, CacheRef};
use crate::error::Result;
use crate::operand::Specs;
use crate::packing::Packing;
use crate::tensor::{Input, Output};

/// The setters of one kind of arguments.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $kind:ident,)*) => {
        $(
            $(#[$doc])*
            pub fn $name(mut self, $name: impl Into<$kind<'a>>) -> Self {
                self.$name = Some($name.into());
                self
            }
        )*
    };
}

macro_rules! opaque_debug {
    ($($name:ident)*) => {
        $(impl fmt::Debug for $name<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        })*
    };
}
opaque_debug!(Forward Backward Step Input Output);

/// What forward reads and writes. B rows, T tokens of this rank, H heads, N sequences; by default all is
/// contiguous.
#[derive(Default)]
#[must_use = "this only names the tensors; hand it to Plan::forward"]
pub struct Forward<'a> {
    q: Option<Input<'a>>,
    k: Option<Input<'a>>,
    v: Option<Input<'a>>,
    decay: Option<Input<'a>>,
    beta: Option<Input<'a>>,
    initial_state: Option<Input<'a>>,
    o: Option<Output<'a>>,
    final_state: Option<Output<'a>>,
    pub(crate) state_cache: Option<CacheMut<'a>>,
    workspace: Option<BytesMut<'a>>,
    pub(crate) packing: Option<Packing<'a>>,
    pub(crate) reuse_state_cache: bool,
}

impl<'a> Forward<'a> {
    /// q `[B, T, Hq, K]`, k `[B, T, Hk, K]`, v `[B, T, Hv, V]`; o `[B, T, H, V]` is written.
    pub fn new(
        q: impl Into<Input<'a>>,
        k: impl Into<Input<'a>>,
        v: impl Into<Input<'a>>,
        o: impl Into<Output<'a>>,
    ) -> Self {
        let (q, k, v, o) = (Some(q.into()), Some(k.into()), Some(v.into()), Some(o.into()));
        Forward { q, k, v, o, ..Forward::default() }
    }

    /// For a rank without tokens, which may leave all `[B, T, ...]` tensors out.
    pub fn without_tokens() -> Self {
        Forward::default()
    }

    setters! {
        /// g, natural log: `[H]` of f32, `[B, T, H]` or `[B, T, H, K]` by the kind of decay.
        decay: Input,
        /// `[B, T, H]`, for the delta write only.
        beta: Input,
        /// `[N, H, K, V]` of f32, read by each sequence's first rank; without it zero.
        initial_state: Input,
        /// `[N, H, K, V]` of f32, written by each sequence's last rank, or by all when broadcast.
        final_state: Output,
        /// A [`StateCache`](crate::StateCache), or bytes of [`PlanInfo::state_cache_bytes`](crate::PlanInfo); not needed
        /// without backward.
        state_cache: CacheMut,
        /// [`PlanInfo::workspace_forward_bytes`](crate::PlanInfo).
        workspace: BytesMut,
        /// The sequences, for a plan with [`max_sequences`](crate::Problem::max_sequences) only.
        packing: Packing,
    }

    /// The state cache holds an earlier forward's of the same inputs (activation checkpointing): nothing is
    /// exchanged; final_state is written by its owners as ever, but not broadcast.
    pub fn reuse_state_cache(mut self, on: bool) -> Self {
        self.reuse_state_cache = on;
        self
    }

    #[inline]
    pub(crate) fn raw(&self, specs: &Specs) -> Result<sys::lasp_forward_args> {
        Ok(sys::lasp_forward_args {
            q: specs.input(&specs.q, &self.q)?,
            k: specs.input(&specs.k, &self.k)?,
            v: specs.input(&specs.v, &self.v)?,
            decay: specs.input(&specs.decay, &self.decay)?,
            beta: specs.input(&specs.beta, &self.beta)?,
            initial_state: specs.input(&specs.initial_state, &self.initial_state)?,
            o: specs.output(&specs.o, &self.o)?,
            final_state: specs.output(&specs.final_state, &self.final_state)?,
            state_cache: specs.cache_mut(&self.state_cache, self.reuse_state_cache)?,
            workspace: specs.bytes_mut("workspace", &self.workspace)?,
            reuse_state_cache: self.reuse_state_cache.into(),
            ..sys::LASP_FORWARD_ARGS_INIT
        })
    }
}

/// What backward reads and writes. Gradients are written, but those named by [`add_to`](Backward::add_to) are added
/// to what is there. Each is shaped like what it is the gradient of.
#[derive(Default)]
#[must_use = "this only names the tensors; hand it to Plan::backward"]
pub struct Backward<'a> {
    q: Option<Input<'a>>,
    k: Option<Input<'a>>,
    v: Option<Input<'a>>,
    decay: Option<Input<'a>>,
    beta: Option<Input<'a>>,
    initial_state: Option<Input<'a>>,
    d_o: Option<Input<'a>>,
    d_final_state: Option<Input<'a>>,
    state_cache: Option<CacheRef<'a>>,
    dq: Option<Output<'a>>,
    dk: Option<Output<'a>>,
    dv: Option<Output<'a>>,
    d_decay: Option<Output<'a>>,
    d_beta: Option<Output<'a>>,
    d_initial_state: Option<Output<'a>>,
    workspace: Option<BytesMut<'a>>,
    pub(crate) packing: Option<Packing<'a>>,
    add: i32,
}

/// A gradient, for [`Backward::add_to`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gradient {
    /// Of q.
    Dq,
    /// Of k.
    Dk,
    /// Of v.
    Dv,
    /// Of the decay.
    DDecay,
    /// Of beta.
    DBeta,
    /// Of the initial state.
    DInitialState,
}

impl Gradient {
    fn to_raw(self) -> i32 {
        match self {
            Gradient::Dq => sys::LASP_ADD_DQ,
            Gradient::Dk => sys::LASP_ADD_DK,
            Gradient::Dv => sys::LASP_ADD_DV,
            Gradient::DDecay => sys::LASP_ADD_D_DECAY,
            Gradient::DBeta => sys::LASP_ADD_D_BETA,
            Gradient::DInitialState => sys::LASP_ADD_D_INITIAL_STATE,
        }
    }
}

impl<'a> Backward<'a> {
    /// q, k, v as in the forward pass, d_o `[B, T, H, V]`; dq, dk and dv are written.
    pub fn new(
        q: impl Into<Input<'a>>,
        k: impl Into<Input<'a>>,
        v: impl Into<Input<'a>>,
        d_o: impl Into<Input<'a>>,
        dq: impl Into<Output<'a>>,
        dk: impl Into<Output<'a>>,
        dv: impl Into<Output<'a>>,
    ) -> Self {
        Backward {
            q: Some(q.into()),
            k: Some(k.into()),
            v: Some(v.into()),
            d_o: Some(d_o.into()),
            dq: Some(dq.into()),
            dk: Some(dk.into()),
            dv: Some(dv.into()),
            ..Backward::default()
        }
    }

    /// For a rank without tokens, which may leave all `[B, T, ...]` tensors out.
    pub fn without_tokens() -> Self {
        Backward::default()
    }

    setters! {
        /// As in the forward pass.
        decay: Input,
        /// As in the forward pass.
        beta: Input,
        /// As in the forward pass.
        initial_state: Input,
        /// `[N, H, K, V]` of f32, read by each sequence's last rank; without it zero.
        d_final_state: Input,
        /// As the forward pass left it.
        state_cache: CacheRef,
        /// Written where asked for. Per head (`[H]`, f32) it is this rank's share: sum it over ranks, as any
        /// parameter's gradient.
        d_decay: Output,
        /// `[B, T, H]`, for the delta write only.
        d_beta: Output,
        /// `[N, H, K, V]` of f32, written by each sequence's first rank where asked for.
        d_initial_state: Output,
        /// [`PlanInfo::workspace_backward_bytes`](crate::PlanInfo).
        workspace: BytesMut,
        /// As in the forward pass.
        packing: Packing,
    }

    /// Adds this gradient to what its tensor holds, as the microbatches after the first do: a sum in float32, rounded
    /// once; after an error in the pass it is lost. Other gradients are written.
    pub fn add_to(mut self, gradient: Gradient) -> Self {
        self.add |= gradient.to_raw();
        self
    }

    #[inline]
    pub(crate) fn raw(&self, specs: &Specs) -> Result<sys::lasp_backward_args> {
        Ok(sys::lasp_backward_args {
            q: specs.input(&specs.q, &self.q)?,
            k: specs.input(&specs.k, &self.k)?,
            v: specs.input(&specs.v, &self.v)?,
            decay: specs.input(&specs.decay, &self.decay)?,
            beta: specs.input(&specs.beta, &self.beta)?,
            initial_state: specs.input(&specs.initial_state, &self.initial_state)?,
            d_o: specs.input(&specs.d_o, &self.d_o)?,
            d_final_state: specs.input(&specs.d_final_state, &self.d_final_state)?,
            state_cache: specs.cache_ref(&self.state_cache)?,
            dq: specs.output(&specs.dq, &self.dq)?,
            dk: specs.output(&specs.dk, &self.dk)?,
            dv: specs.output(&specs.dv, &self.dv)?,
            d_decay: specs.output(&specs.d_decay, &self.d_decay)?,
            d_beta: specs.output(&specs.d_beta, &self.d_beta)?,
            d_initial_state: specs.output(&specs.d_initial_state, &self.d_initial_state)?,
            add: self.add,
            workspace: specs.bytes_mut("workspace", &self.workspace)?,
            ..sys::LASP_BACKWARD_ARGS_INIT
        })
    }
}

/// What a step reads and writes.
#[derive(Default)]
#[must_use = "this only names the tensors; hand it to Plan::step"]
pub struct Step<'a> {
    q: Option<Input<'a>>,
    k: Option<Input<'a>>,
    v: Option<Input<'a>>,
    decay: Option<Input<'a>>,
    beta: Option<Input<'a>>,
    state: Option<Output<'a>>,
    o: Option<Output<'a>>,
    tokens: i64,
}

impl<'a> Step<'a> {
    /// q, k, v as in [`Forward::new`]; the state `[N, H, K, V]` of f32 is read and written, o is written.
    pub fn new(
        q: impl Into<Input<'a>>,
        k: impl Into<Input<'a>>,
        v: impl Into<Input<'a>>,
        state: impl Into<Output<'a>>,
        o: impl Into<Output<'a>>,
    ) -> Self {
        let (q, k, v) = (Some(q.into()), Some(k.into()), Some(v.into()));
        Step { q, k, v, state: Some(state.into()), o: Some(o.into()), ..Step::default() }
    }

    setters! {
        /// As in [`Forward::decay`].
        decay: Input,
        /// As in [`Forward::beta`].
        beta: Input,
    }

    /// The call has only so many tokens, 1 to T: the first ones of each row. Those of `o` behind them are left alone.
    pub fn tokens(mut self, tokens: usize) -> Self {
        self.tokens = i64::try_from(tokens).unwrap_or(i64::MAX);
        self
    }

    #[inline]
    pub(crate) fn raw(&self, specs: &Specs) -> Result<sys::lasp_step_args> {
        Ok(sys::lasp_step_args {
            q: specs.input(&specs.q, &self.q)?,
            k: specs.input(&specs.k, &self.k)?,
            v: specs.input(&specs.v, &self.v)?,
            decay: specs.input(&specs.decay, &self.decay)?,
            beta: specs.input(&specs.beta, &self.beta)?,
            state: specs.output(&specs.state, &self.state)?,
            o: specs.output(&specs.o, &self.o)?,
            tokens: self.tokens,
            ..sys::LASP_STEP_ARGS_INIT
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use super::*;
    use crate::{Comm, Context, Decay, Plan, Problem, TensorMut};

    // What the library is handed is where the caller's memory is: nothing is copied on the way.
    #[test]
    fn the_library_sees_the_callers_memory() {
        let context = Context::new(Comm::single().unwrap()).unwrap();
        let plan = Plan::new(&context, &Problem::new().tokens(3).head_dims(8, 8).decay(Decay::Head)).unwrap();
        let inputs: Vec<Vec<f32>> = (0..8).map(|_| vec![0.0; 64]).collect();
        let mut outputs: Vec<Vec<f32>> = (0..8).map(|_| vec![0.0; 64]).collect();
        let at: Vec<*mut c_void> = outputs.iter_mut().map(|x| x.as_mut_ptr().cast()).collect();
        let (mut cache, mut workspace) = (plan.state_cache().unwrap(), plan.forward_workspace().unwrap());
        let (cache_at, workspace_at) = (cache.as_mut_ptr().cast(), workspace.as_mut_ptr().cast());
        let is = |buffer: sys::lasp_const_buffer, i: usize, elements: usize| {
            assert_eq!((buffer.data, buffer.bytes), (inputs[i].as_ptr().cast(), 4 * elements));
        };
        let [o, final_state, dq, dk, dv, d_decay, d_state, state] =
            <&mut [_; 8]>::try_from(&mut outputs[..]).unwrap();

        let o_view = TensorMut::new(&mut o[..24], &[1, 3, 1, 8]).unwrap();
        let forward = Forward::new(&inputs[0], &inputs[1], &inputs[2][..24], o_view)
            .decay(&inputs[3][..1])
            .initial_state(&inputs[4])
            .final_state(final_state)
            .state_cache(&mut cache)
            .workspace(&mut workspace);
        let raw = forward.raw(&plan.specs).unwrap();
        is(raw.q, 0, 64);
        is(raw.k, 1, 64);
        is(raw.v, 2, 24);
        is(raw.decay, 3, 1);
        is(raw.initial_state, 4, 64);
        assert_eq!([raw.o.data, raw.final_state.data], [at[0], at[1]]);
        assert_eq!((raw.o.bytes, raw.state_cache.data, raw.workspace.data), (96, cache_at, workspace_at));

        cache.assume_written();
        let backward = Backward::new(&inputs[0], &inputs[1], &inputs[2], &inputs[5], dq, dk, dv)
            .d_decay(d_decay)
            .d_initial_state(d_state)
            .d_final_state(&inputs[6])
            .state_cache(&cache);
        let raw = backward.raw(&plan.specs).unwrap();
        is(raw.d_o, 5, 64);
        is(raw.d_final_state, 6, 64);
        let gradients = [raw.dq, raw.dk, raw.dv, raw.d_decay, raw.d_initial_state].map(|buffer| buffer.data);
        assert_eq!((&gradients[..], raw.state_cache.data), (&at[2..7], cache_at as *const c_void));

        let step = Step::new(&inputs[0], &inputs[1], &inputs[2], state, o).decay(&inputs[3]);
        let raw = step.raw(&plan.specs).unwrap();
        is(raw.v, 2, 64);
        assert_eq!([raw.state.data, raw.o.data], [at[7], at[0]]);
    }
}
