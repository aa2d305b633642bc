//! What is to be computed.
use lasp_sys as sys;

use crate::values::{Cache, Decay, Dtype, Mask, Ownership, Schedule, Write};

/// Where a tensor's elements lie, in elements: element (b, t, h, d) is at `b*batch + t*token + h*head + d`. All
/// zero: contiguous `[B, T, heads, dim]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Strides {
    /// From a batch row to the next.
    pub batch: usize,
    /// From a token to the next.
    pub token: usize,
    /// From a head to the next.
    pub head: usize,
}

/// A tensor with a place for its strides in the problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// `[B, T, Hq, K]`
    Q,
    /// `[B, T, Hk, K]`
    K,
    /// `[B, T, Hv, V]`
    V,
    /// `[B, T, H, V]`
    O,
    /// `[H]`, `[B, T, H]` or `[B, T, H, K]`, by the kind of decay
    Decay,
    /// `[B, T, H]`
    Beta,
    /// The gradient of q.
    Dq,
    /// The gradient of k.
    Dk,
    /// The gradient of v.
    Dv,
    /// The gradient of o.
    DO,
    /// The gradient of the decay.
    DDecay,
    /// The gradient of beta.
    DBeta,
}

/// One problem, seen from one rank. All ranks give the same values but for `tokens` and strides.
///
/// Nothing is refused here: [`Plan::new`](crate::Plan::new) refuses what is wrong, on every rank and with a sentence.
#[derive(Clone, Debug)]
pub struct Problem {
    raw: sys::lasp_problem,
    runs: Vec<sys::lasp_run>,
}

// SAFETY: the only pointer, raw.runs, is null here: as_raw() makes it anew.
unsafe impl Send for Problem {}
// SAFETY: likewise.
unsafe impl Sync for Problem {}

impl Default for Problem {
    fn default() -> Self {
        Problem::new()
    }
}

// A number too large for the library becomes the largest there is, which the library refuses by name.
fn wide(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
fn narrow(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}
/// As a layout says it whose default is float32, so that a problem without the tensor has none.
fn beside_float32(dtype: Dtype) -> i32 {
    match dtype {
        Dtype::Float32 => sys::LASP_DTYPE_DEFAULT,
        other => other.to_raw(),
    }
}

impl Problem {
    /// One batch row, no tokens, one head, causal, float32, no decay, with backward. The head dimensions have no
    /// default.
    pub fn new() -> Self {
        Problem { raw: sys::LASP_PROBLEM_INIT, runs: Vec::new() }
    }

    /// B, at least 1; 1 when packed.
    pub fn batch(mut self, batch: usize) -> Self {
        self.raw.batch = wide(batch);
        self
    }

    /// T: this rank's tokens of each batch row. 0 is legal, and ranks may differ.
    pub fn tokens(mut self, tokens: usize) -> Self {
        self.raw.tokens = wide(tokens);
        self
    }

    /// As many heads of q, k and v.
    pub fn heads(self, heads: usize) -> Self {
        self.grouped_heads(heads, heads, heads)
    }

    /// Different numbers of heads; each divides H, the largest, and output head h reads q head `h * heads_q / H`.
    pub fn grouped_heads(mut self, heads_q: usize, heads_k: usize, heads_v: usize) -> Self {
        self.raw.heads_q = narrow(heads_q);
        self.raw.heads_k = narrow(heads_k);
        self.raw.heads_v = narrow(heads_v);
        self
    }

    /// K, the width of q and k, and V, that of v and o: multiples of 8, at most 512.
    pub fn head_dims(mut self, k: usize, v: usize) -> Self {
        self.raw.head_dim_k = narrow(k);
        self.raw.head_dim_v = narrow(v);
        self
    }

    /// The type of q, k, v, o and their gradients.
    pub fn dtype(mut self, dtype: Dtype) -> Self {
        self.raw.dtype = dtype.to_raw();
        self
    }

    /// The shape of the decay.
    pub fn decay(mut self, decay: Decay) -> Self {
        self.raw.decay = decay.to_raw();
        self
    }

    /// The type of scalar and channel decay and its gradient: float32 or that of q.
    pub fn decay_dtype(mut self, dtype: Dtype) -> Self {
        self.raw.decay_layout.dtype = beside_float32(dtype);
        self.raw.d_decay_layout.dtype = beside_float32(dtype);
        self
    }

    /// How tokens are written into the state.
    pub fn write(mut self, write: Write) -> Self {
        self.raw.write = write.to_raw();
        self
    }

    /// The type of beta and its gradient: float32 or that of q.
    pub fn beta_dtype(mut self, dtype: Dtype) -> Self {
        self.raw.beta_layout.dtype = beside_float32(dtype);
        self.raw.d_beta_layout.dtype = beside_float32(dtype);
        self
    }

    /// Which tokens a token sees.
    pub fn mask(mut self, mask: Mask) -> Self {
        self.raw.mask = mask.to_raw();
        self
    }

    /// Who owns which tokens.
    pub fn ownership(mut self, ownership: Ownership) -> Self {
        self.raw.ownership = ownership.to_raw();
        self
    }

    /// The whole buffer as runs, `(tokens, rank)` of each in the order of the tokens, the same on every rank: with
    /// [`Ownership::Runs`], which this sets.
    pub fn runs(mut self, runs: &[(usize, usize)]) -> Self {
        self.raw.ownership = Ownership::Runs.to_raw();
        let run = |&(tokens, rank): &(usize, usize)| sys::lasp_run {
            tokens: i64::try_from(tokens).unwrap_or(i64::MAX),
            rank: i32::try_from(rank).unwrap_or(i32::MAX),
            reserved: 0,
        };
        self.runs = runs.iter().map(run).collect();
        self
    }

    /// Multiplies o; without it `1 / sqrt(K)`.
    pub fn scale(mut self, scale: f32) -> Self {
        self.raw.scale_given = 1;
        self.raw.scale = scale;
        self
    }

    /// For packed sequences: N, the most that a pass is given by [`Forward::packing`](crate::Forward::packing), and
    /// the first extent of states.
    pub fn max_sequences(mut self, most: usize) -> Self {
        self.raw.max_sequences = wide(most);
        self
    }

    /// How states travel.
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.raw.schedule = schedule.to_raw();
        self
    }

    /// Pieces of the all-scan schedule; 0: from the latency-bandwidth model.
    pub fn pieces(mut self, pieces: usize) -> Self {
        self.raw.pieces = narrow(pieces);
        self
    }

    /// What the state cache keeps.
    pub fn cache(mut self, cache: Cache) -> Self {
        self.raw.cache = cache.to_raw();
        self
    }

    /// Tokens handled at once: 16, 32, 64, 128 or 256; 0: chosen.
    pub fn chunk(mut self, tokens: usize) -> Self {
        self.raw.chunk = narrow(tokens);
        self
    }

    /// Tokens of a segment, a multiple of the chunk: all results but a per-head `d_decay`, which is each rank's
    /// share, are then equal bit for bit for any number of ranks and any cut, as long as each rank that has tokens
    /// begins at a multiple of it. 0: no such promise. Causal, on the CPU, and with the schedules `Auto`, `Ring` and
    /// `AllScan`.
    pub fn segment(mut self, tokens: usize) -> Self {
        self.raw.segment = wide(tokens);
        self
    }

    /// Whether the plan serves backward too; without it no state cache is kept.
    pub fn backward(mut self, on: bool) -> Self {
        self.raw.backward = on.into();
        self
    }

    /// Every rank receives all of final_state.
    pub fn broadcast_final_state(mut self, on: bool) -> Self {
        self.raw.broadcast_final_state = on.into();
        self
    }

    /// The strides of one tensor, such as [`Tensor::strides`](crate::Tensor::strides) reads out of a view.
    pub fn strides(mut self, operand: Operand, strides: Strides) -> Self {
        let layout = self.layout_of(operand);
        layout.flags = sys::LASP_LAYOUT_STRIDED;
        layout.batch = wide(strides.batch);
        layout.token = wide(strides.token);
        layout.head = wide(strides.head);
        self
    }

    /// The type of one tensor, where it is not that of [`dtype`](Problem::dtype), `decay_dtype` or `beta_dtype`, which
    /// come first. Gradients of 16-bit tensors may be float32; other mixes are refused.
    pub fn tensor_dtype(mut self, operand: Operand, dtype: Dtype) -> Self {
        self.layout_of(operand).dtype = dtype.to_raw();
        self
    }

    fn layout_of(&mut self, operand: Operand) -> &mut sys::lasp_layout {
        let raw = &mut self.raw;
        match operand {
            Operand::Q => &mut raw.q,
            Operand::K => &mut raw.k,
            Operand::V => &mut raw.v,
            Operand::O => &mut raw.o,
            Operand::Decay => &mut raw.decay_layout,
            Operand::Beta => &mut raw.beta_layout,
            Operand::Dq => &mut raw.dq,
            Operand::Dk => &mut raw.dk,
            Operand::Dv => &mut raw.dv,
            Operand::DO => &mut raw.d_o,
            Operand::DDecay => &mut raw.d_decay_layout,
            Operand::DBeta => &mut raw.d_beta_layout,
        }
    }

    /// Types and strides of tensors that this problem has not, in the words of this crate.
    pub(crate) fn refusal(&self) -> Option<String> {
        let raw = &self.raw;
        let is_strided = |layout: &sys::lasp_layout| layout.flags != 0;
        let is_typed = |layout: &sys::lasp_layout| layout.dtype != sys::LASP_DTYPE_DEFAULT;
        let (decay, additive) = (Decay::from_raw(raw.decay), raw.write == sys::LASP_WRITE_ADDITIVE);
        let given = [
            ("decay_dtype", is_typed(&raw.decay_layout), true),
            ("the strides of the decay", is_strided(&raw.decay_layout), true),
            ("the strides of the decay's gradient", is_strided(&raw.d_decay_layout), true),
            ("beta_dtype", is_typed(&raw.beta_layout), false),
            ("the strides of beta", is_strided(&raw.beta_layout), false),
            ("the strides of beta's gradient", is_strided(&raw.d_beta_layout), false),
        ];
        let (what, _, of_decay) = given.iter().find(|(_, is_given, of_decay)| {
            *is_given && if *of_decay { matches!(decay, Decay::None | Decay::Head) } else { additive }
        })?;
        Some(match of_decay {
            true => format!("{}: given, but the decay is {:?}", what, decay),
            false => format!("{}: given, but the write is additive", what),
        })
    }

    /// The library's struct, which may point into this.
    pub(crate) fn as_raw(&self) -> sys::lasp_problem {
        let mut raw = self.raw;
        if !self.runs.is_empty() {
            raw.runs = self.runs.as_ptr();
            raw.num_runs = self.runs.len() as i64;
        }
        raw
    }
}
