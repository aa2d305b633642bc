//! The header's enumerations. A value that a newer library may give stays itself, as `Other`.
use lasp_sys as sys;

macro_rules! values {
    ($(#[$doc:meta])* $name:ident, default $default:ident {
        $($(#[$value_doc:meta])* $value:ident = $raw:ident,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$value_doc])* $value,)*
            /// A number that this crate has no name for. The library refuses those it does not know either.
            Other(i32),
        }

        impl $name {
            /// The value of this number.
            pub const fn from_raw(raw: i32) -> Self {
                match raw {
                    $(sys::$raw => Self::$value,)*
                    other => Self::Other(other),
                }
            }

            /// The number that the library knows it by.
            pub const fn to_raw(self) -> i32 {
                match self {
                    $(Self::$value => sys::$raw,)*
                    Self::Other(raw) => raw,
                }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::$default
            }
        }
    };
}

values! {
    /// The type of a tensor's elements.
    Dtype, default Float32 {
        /// `f32`
        Float32 = LASP_FLOAT32,
        /// [`Bf16`](crate::Bf16)
        BFloat16 = LASP_BFLOAT16,
        /// [`F16`](crate::F16)
        Float16 = LASP_FLOAT16,
    }
}
impl Dtype {
    /// Of one element.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Dtype::BFloat16 | Dtype::Float16 => 2,
            _ => 4,
        }
    }
}
values! {
    /// The shape of the decay g.
    Decay, default None {
        /// None: Linear Transformer, Based.
        None = LASP_DECAY_NONE,
        /// `[H]`, always float32: RetNet, TransNormerLLM, Lightning Attention.
        Head = LASP_DECAY_HEAD,
        /// `[B, T, H]`: Mamba-2, simple GLA, gated RetNet.
        Scalar = LASP_DECAY_SCALAR,
        /// `[B, T, H, K]`: GLA, HGRN2, RWKV-6-like.
        Channel = LASP_DECAY_CHANNEL,
    }
}
values! {
    /// How a token is written into the state.
    Write, default Additive {
        /// `S + k v^T`
        Additive = LASP_WRITE_ADDITIVE,
        /// The delta rule; needs beta. Causal and without segment; else [`Status::UNSUPPORTED`](crate::Status).
        Delta = LASP_WRITE_DELTA,
    }
}
values! {
    /// Which tokens a token sees.
    Mask, default Causal {
        /// Itself and those before it.
        Causal = LASP_MASK_CAUSAL,
        /// All of its sequence; decay none and additive write only.
        Bidirectional = LASP_MASK_BIDIRECTIONAL,
    }
}
values! {
    /// Who owns which tokens.
    Ownership, default Contiguous {
        /// A rank's tokens follow those of the rank before it.
        Contiguous = LASP_OWN_CONTIGUOUS,
        /// Of 2W equal parts rank r has parts r and 2W-1-r, one after the other.
        Zigzag = LASP_OWN_ZIGZAG,
        /// Each packed sequence is cut so by itself: parts r and 2W-1-r of the first, then of the second, and so on.
        ZigzagEach = LASP_OWN_ZIGZAG_EACH,
        /// As [`Problem::runs`](crate::Problem::runs) says.
        Runs = LASP_OWN_RUNS,
    }
}
values! {
    /// How states travel between W ranks.
    Schedule, default Auto {
        /// Chosen by a latency-bandwidth model; [`Plan::describe`](crate::Plan::describe) says why.
        Auto = LASP_SCHEDULE_AUTO,
        /// W-1 serial hops (LASP).
        Ring = LASP_SCHEDULE_RING,
        /// Every rank to all later ones (LASP-2).
        AllGather = LASP_SCHEDULE_ALL_GATHER,
        /// The ring in pipelined pieces (ZeCO).
        AllScan = LASP_SCHEDULE_ALL_SCAN,
        /// log2 W composed maps (Hillis-Steele).
        Doubling = LASP_SCHEDULE_DOUBLING,
        /// Each rank folds the maps of some heads for all.
        HeadScatter = LASP_SCHEDULE_HEAD_SCATTER,
        /// A rank's whole pass waits for the state that enters it: for passes that follow each other.
        Relay = LASP_SCHEDULE_RELAY,
    }
}
values! {
    /// What the state cache keeps for backward.
    Cache, default Chunks {
        /// The incoming state only; backward recomputes the rest.
        Incoming = LASP_CACHE_INCOMING,
        /// The state at each chunk too: faster backward.
        Chunks = LASP_CACHE_CHUNKS,
    }
}
values! {
    /// How much a log is told.
    LogLevel, default Off {
        /// Nothing.
        Off = LASP_LOG_OFF,
        /// What may be wrong.
        Warning = LASP_LOG_WARNING,
        /// What was chosen.
        Info = LASP_LOG_INFO,
        /// Everything.
        Debug = LASP_LOG_DEBUG,
    }
}

/// Where a context computes and where its tensors lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Device {
    /// In this process's memory.
    #[default]
    Cpu,
    /// On the GPU of this CUDA ordinal.
    Cuda(i32),
}
