//! What a plan expects of each tensor. The library sees bytes only; types, shapes and strides are compared here.
use lasp_sys as sys;

use crate::bytes::{BytesMut, BytesRef};
use crate::cache::{CacheMut, CacheRef};
use crate::error::{Error, Result, Status};
use crate::tensor::{Input, Layout, Memory, Output};
use crate::values::{Decay, Dtype};

#[derive(Clone, Copy)]
pub(crate) struct Spec {
    name: &'static str,
    layout: Layout,
    dtype: Dtype,
}

/// Of a plan: one for every tensor.
pub(crate) struct Specs {
    pub q: Spec,
    pub k: Spec,
    pub v: Spec,
    pub o: Spec,
    pub decay: Spec,
    pub beta: Spec,
    pub dq: Spec,
    pub dk: Spec,
    pub dv: Spec,
    pub d_o: Spec,
    pub d_decay: Spec,
    pub d_beta: Spec,
    pub initial_state: Spec,
    pub final_state: Spec,
    pub d_final_state: Spec,
    pub d_initial_state: Spec,
    pub state: Spec,
    pub incoming: Spec,
    pub batch: usize,
    pub tokens: usize,
    memory: Memory,
}

impl Spec {
    pub(crate) fn contiguous(name: &'static str, shape: &[usize], dtype: Dtype) -> Result<Spec> {
        Ok(Spec { name, layout: Layout::contiguous(shape)?, dtype })
    }
}

impl Specs {
    /// Of a problem that the library has accepted.
    pub(crate) fn new(p: &sys::lasp_problem, heads: i32, num_sequences: i64, on_device: bool) -> Result<Specs> {
        let n = |value: i64| value as usize;
        let (b, t, h) = (n(p.batch), n(p.tokens), heads as usize);
        let (width_k, width_v) = (p.head_dim_k as usize, p.head_dim_v as usize);
        let dtype = Dtype::from_raw(p.dtype);
        let spec = |name, shape: &[usize], raw: &sys::lasp_layout, dtype| -> Result<Spec> {
            let given = [n(raw.batch), n(raw.token), n(raw.head), 1];
            let layout = match raw.flags == 0 || shape.len() == 1 {
                true => Layout::contiguous(shape)?,
                false => Layout::strided(shape, &given[..shape.len()])?,
            };
            Ok(Spec { name, layout, dtype })
        };
        let q_shape = [b, t, p.heads_q as usize, width_k];
        let k_shape = [b, t, p.heads_k as usize, width_k];
        let v_shape = [b, t, p.heads_v as usize, width_v];
        let o_shape = [b, t, h, width_v];
        let decay_shape = [b, t, h, width_k];
        let dtype_or = |usual: Dtype, raw: &sys::lasp_layout| match raw.dtype {
            sys::LASP_DTYPE_DEFAULT => usual,
            given => Dtype::from_raw(given),
        };
        let own_dtype = |raw: &sys::lasp_layout| dtype_or(Dtype::Float32, raw);
        let token_decay_dtype = own_dtype(&p.decay_layout);
        let (decay_shape, decay_dtype) = match Decay::from_raw(p.decay) {
            Decay::Scalar => (&decay_shape[..3], token_decay_dtype),
            Decay::Channel => (&decay_shape[..], token_decay_dtype),
            _ => (&decay_shape[2..3], Dtype::Float32),
        };
        let beta_dtype = own_dtype(&p.beta_layout);
        let state = |name| -> Result<Spec> {
            let shape = [n(num_sequences), h, width_k, width_v];
            Ok(Spec { name, layout: Layout::contiguous(&shape)?, dtype: Dtype::Float32 })
        };
        Ok(Specs {
            q: spec("q", &q_shape, &p.q, dtype)?,
            k: spec("k", &k_shape, &p.k, dtype)?,
            v: spec("v", &v_shape, &p.v, dtype)?,
            o: spec("o", &o_shape, &p.o, dtype)?,
            decay: spec("decay", decay_shape, &p.decay_layout, decay_dtype)?,
            beta: spec("beta", &[b, t, h], &p.beta_layout, beta_dtype)?,
            dq: spec("dq", &q_shape, &p.dq, dtype_or(dtype, &p.dq))?,
            dk: spec("dk", &k_shape, &p.dk, dtype_or(dtype, &p.dk))?,
            dv: spec("dv", &v_shape, &p.dv, dtype_or(dtype, &p.dv))?,
            d_o: spec("d_o", &o_shape, &p.d_o, dtype)?,
            d_decay: spec("d_decay", decay_shape, &p.d_decay_layout, own_dtype(&p.d_decay_layout))?,
            d_beta: spec("d_beta", &[b, t, h], &p.d_beta_layout, own_dtype(&p.d_beta_layout))?,
            initial_state: state("initial_state")?,
            final_state: state("final_state")?,
            d_final_state: state("d_final_state")?,
            d_initial_state: state("d_initial_state")?,
            state: state("state")?,
            incoming: Spec::contiguous("incoming", &[b, h, width_k, width_v], Dtype::Float32)?,
            batch: b,
            tokens: t,
            memory: if on_device { Memory::Device } else { Memory::Host },
        })
    }

    pub(crate) fn input(&self, spec: &Spec, input: &Option<Input<'_>>) -> Result<sys::lasp_const_buffer> {
        match input {
            None => Ok(sys::LASP_CONST_BUFFER_INIT),
            Some(x) => {
                self.check(spec, x.dtype, x.memory, &x.layout, x.bytes)?;
                Ok(sys::lasp_const_buffer { data: x.data, bytes: x.bytes })
            }
        }
    }

    pub(crate) fn output(&self, spec: &Spec, output: &Option<Output<'_>>) -> Result<sys::lasp_buffer> {
        match output {
            None => Ok(sys::LASP_BUFFER_INIT),
            Some(x) => {
                self.check(spec, x.dtype, x.memory, &x.layout, x.bytes)?;
                Ok(sys::lasp_buffer { data: x.data, bytes: x.bytes })
            }
        }
    }

    pub(crate) fn cache_ref(&self, cache: &Option<CacheRef<'_>>) -> Result<sys::lasp_const_buffer> {
        match cache {
            None => Ok(sys::LASP_CONST_BUFFER_INIT),
            Some(x) => self.check_memory("state_cache", x.memory()).and_then(|()| x.raw()),
        }
    }

    pub(crate) fn cache_mut(&self, cache: &Option<CacheMut<'_>>, reused: bool) -> Result<sys::lasp_buffer> {
        match cache {
            None => Ok(sys::LASP_BUFFER_INIT),
            Some(x) => self.check_memory("state_cache", x.memory()).and_then(|()| x.raw(reused)),
        }
    }

    pub(crate) fn bytes_mut(&self, name: &str, bytes: &Option<BytesMut<'_>>) -> Result<sys::lasp_buffer> {
        match bytes {
            None => Ok(sys::LASP_BUFFER_INIT),
            Some(x) => self.check_memory(name, x.memory).map(|()| x.raw),
        }
    }

    pub(crate) fn bytes_ref(&self, name: &str, bytes: &BytesRef<'_>) -> Result<sys::lasp_const_buffer> {
        self.check_memory(name, bytes.memory).map(|()| bytes.raw)
    }

    fn check(
        &self,
        spec: &Spec,
        dtype: Dtype,
        memory: Memory,
        layout: &Option<Layout>,
        bytes: usize,
    ) -> Result<()> {
        self.check_memory(spec.name, memory)?;
        if dtype != spec.dtype {
            return Err(refuse(format!(
                "{}: its elements are {:?}, the plan's {:?}",
                spec.name, dtype, spec.dtype
            )));
        }
        let layout = match layout {
            None => return check_elements(spec, bytes),
            Some(layout) => layout,
        };
        if layout.shape() != spec.layout.shape() {
            return Err(refuse(format!(
                "{}: its shape is {:?}, the plan's {:?}",
                spec.name,
                layout.shape(),
                spec.layout.shape()
            )));
        }
        if !layout.same_places(&spec.layout) {
            return Err(refuse(format!(
                "{}: its strides are {:?}, the plan was made for {:?}",
                spec.name,
                layout.strides(),
                spec.layout.strides()
            )));
        }
        Ok(())
    }

    fn check_memory(&self, name: &str, memory: Memory) -> Result<()> {
        if memory == self.memory {
            return Ok(());
        }
        Err(refuse(match memory {
            Memory::Host => format!("{}: it is host memory, the context is on a CUDA device", name),
            Memory::Device => format!("{}: it is device memory, the context is on the CPU", name),
        }))
    }
}

/// Of a plain slice, which is taken to lie as the plan says.
fn check_elements(spec: &Spec, bytes: usize) -> Result<()> {
    let given = bytes / spec.dtype.bytes();
    match spec.layout.span() {
        Some(wanted) if given < wanted => {
            let sentence = format!(
                "{}: {} elements are given, the plan's shape {:?} wants {}",
                spec.name,
                given,
                spec.layout.shape(),
                wanted
            );
            Err(Error::new(Status::BUFFER_TOO_SMALL, sentence))
        }
        _ => Ok(()),
    }
}

fn refuse(sentence: String) -> Error {
    Error::new(Status::INVALID_ARGUMENT, sentence)
}
