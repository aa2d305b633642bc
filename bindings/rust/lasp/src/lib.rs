//! Linear attention over a sequence that is split along its length across ranks: the safe interface to liblasp.
//!
//! A rank keeps its own tokens; only a small `[K, V]` state per sequence and head travels (LASP, arXiv 2404.02882).
//! A program makes, in this order,
//!
//! - a [`Comm`]: one rank's end of one sequence-parallel group,
//! - a [`Context`]: the comm, a device and settings,
//! - a [`Plan`]: one validated [`Problem`]; making it is collective,
//!
//! and then calls [`Plan::forward`], [`Plan::backward`] and [`Plan::step`] on slices of its own:
//!
//! ```
//! use lasp::{Comm, Context, Decay, Forward, Plan, Problem};
//!
//! let (tokens, heads, dim) = (32, 2, 16);
//! let context = Context::new(Comm::single()?)?;
//! let problem = Problem::new().tokens(tokens).heads(heads).head_dims(dim, dim).decay(Decay::Head).backward(false);
//! let plan = Plan::new(&context, &problem)?;
//!
//! let filled = |x: f32| vec![x; tokens * heads * dim]; // [1, tokens, heads, dim]
//! let (q, k, v, mut o) = (filled(0.1), filled(0.2), filled(0.3), filled(0.0));
//! let g = vec![-0.05f32; heads];
//! let mut workspace = plan.forward_workspace()?;
//! plan.forward(Forward::new(&q, &k, &v, &mut o).decay(&g).workspace(&mut workspace))?;
//! // The first token sees itself alone: o = scale (q . k) v.
//! assert!((o[0] - 0.25 * (16.0 * 0.1 * 0.2) * 0.3).abs() < 1e-6);
//! # Ok::<(), lasp::Error>(())
//! ```
//!
//! # Threads
//!
//! One context, its plans and its comm are used by one thread at a time. The types say so: [`Comm`], [`Context`]
//! and a [`Plan`] that owns its context can be sent to another thread, and none can be shared between threads. Only
//! an [`AbortHandle`] may be used from anywhere at any time.
//!
//! ```compile_fail,E0277
//! fn shared<T: Sync>() {}
//! shared::<lasp::Context>();
//! ```
//! ```compile_fail,E0277
//! fn shared<T: Sync>() {}
//! shared::<lasp::Plan>();
//! ```
//! ```compile_fail,E0277
//! fn sent<T: Send>() {} // its context would stay behind
//! sent::<lasp::Plan<&'static lasp::Context>>();
//! ```
//! ```
//! fn sent<T: Send>() {}
//! fn shared<T: Sync>() {}
//! sent::<lasp::Comm>();
//! sent::<lasp::Context>();
//! sent::<lasp::Plan>();
//! sent::<lasp::AbortHandle>();
//! shared::<lasp::AbortHandle>();
//! shared::<lasp::Error>();
//! ```
//!
//! # Lifetimes
//!
//! A tensor is borrowed for the call alone, and an output needs a borrow of its own. A plan borrows or owns its
//! context, a context owns its comm, so that nothing is destroyed too early.
//!
//! ```compile_fail,E0502
//! # let context = lasp::Context::new(lasp::Comm::single()?)?;
//! # let plan = lasp::Plan::new(&context, &lasp::Problem::new().head_dims(8, 8))?;
//! let mut q = vec![0.0f32; 8];
//! plan.forward(lasp::Forward::new(&q, &q, &q, &mut q))?; // o would be q's own memory
//! # Ok::<(), lasp::Error>(())
//! ```
//! ```compile_fail,E0505
//! # let context = lasp::Context::new(lasp::Comm::single()?)?;
//! let plan = lasp::Plan::new(&context, &lasp::Problem::new().head_dims(8, 8))?;
//! drop(context); // the plan still uses it
//! plan.describe()?;
//! # Ok::<(), lasp::Error>(())
//! ```
//!
//! # Errors
//!
//! Every call that can fail returns an [`Error`]: the library's [`Status`] and its sentence, which names the
//! argument and the reason. Nothing was changed then. Nothing here panics on bad input.
#![deny(missing_docs, unsafe_op_in_unsafe_fn)]

mod arguments;
mod build_info;
mod bytes;
mod cache;
mod comm;
mod context;
mod error;
mod execute;
mod guard;
mod half;
mod halo;
mod operand;
mod packing;
mod plan;
mod problem;
mod schedule;
mod stages;
mod tensor;
mod trace;
mod transport;
mod values;

pub use arguments::{Backward, Forward, Gradient, Step};
pub use build_info::{version, BuildInfo, Version};
pub use bytes::{AlignedBytes, BytesMut, BytesRef};
pub use cache::{CacheMut, CacheRef, StateCache};
pub use comm::{Comm, Traffic};
pub use context::{AbortHandle, Context, ContextError, ContextOptions};
pub use error::{Error, Result, Status, StatusGroup};
pub use execute::Stream;
pub use half::{Bf16, F16};
pub use halo::{Halo, HaloInfo};
pub use packing::Packing;
pub use plan::{ContextOwner, Owners, Plan, PlanInfo};
pub use problem::{Operand, Problem, Strides};
pub use schedule::{predict_exchange, Groups};
pub use stages::StageBytes;
pub use tensor::{Element, Input, Output, Tensor, TensorMut};
pub use transport::{Transport, TransportError, TransportInfo};
pub use values::{Cache, Decay, Device, Dtype, LogLevel, Mask, Ownership, Schedule, Write};
