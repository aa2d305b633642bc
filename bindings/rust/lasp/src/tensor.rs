//! Tensors that a call reads or writes: views of memory of the caller's. Nothing is ever copied.
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::mem::size_of;

use crate::error::{Error, Result, Status};
use crate::half::{Bf16, F16};
use crate::problem::Strides;
use crate::values::Dtype;

/// A type of tensor elements.
///
/// ```compile_fail,E0277
/// # let mut o = [0.0f32; 8];
/// let q = [0.0f64; 8]; // no such element type
/// lasp::Forward::new(&q, &q, &q, &mut o);
/// ```
///
/// # Safety
/// The type is laid out as `DTYPE` says, and every bit pattern is valid.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// What the library calls it.
    const DTYPE: Dtype;
}
// SAFETY: IEEE 754 binary32.
unsafe impl Element for f32 {
    const DTYPE: Dtype = Dtype::Float32;
}
// SAFETY: transparent over the bits.
unsafe impl Element for Bf16 {
    const DTYPE: Dtype = Dtype::BFloat16;
}
// SAFETY: transparent over the bits.
unsafe impl Element for F16 {
    const DTYPE: Dtype = Dtype::Float16;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Host,
    Device,
}

/// A shape of one to four dimensions and its strides, in elements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    ndim: usize,
    shape: [usize; 4],
    strides: [usize; 4],
}

fn invalid(sentence: String) -> Error {
    Error::new(Status::INVALID_ARGUMENT, sentence)
}

impl Layout {
    pub(crate) fn contiguous(shape: &[usize]) -> Result<Layout> {
        let mut strides = [0; 4];
        let mut next = 1usize;
        for (i, &extent) in shape.iter().enumerate().rev().filter(|(i, _)| *i < 4) {
            strides[i] = next;
            next = next.checked_mul(extent).ok_or_else(|| invalid(format!("shape {:?}: too large", shape)))?;
        }
        Layout::strided(shape, &strides[..shape.len().min(4)])
    }

    pub(crate) fn strided(shape: &[usize], strides: &[usize]) -> Result<Layout> {
        if shape.is_empty() || shape.len() > 4 || strides.len() != shape.len() {
            return Err(invalid(format!(
                "shape {:?}, strides {:?}: one to four dimensions, and as many strides",
                shape, strides
            )));
        }
        let mut layout = Layout { ndim: shape.len(), shape: [1; 4], strides: [0; 4] };
        layout.shape[..shape.len()].copy_from_slice(shape);
        layout.strides[..strides.len()].copy_from_slice(strides);
        Ok(layout)
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape[..self.ndim]
    }

    pub(crate) fn strides(&self) -> &[usize] {
        &self.strides[..self.ndim]
    }

    /// Elements from the first to the last, both included. None: more than there can be.
    pub(crate) fn span(&self) -> Option<usize> {
        if self.shape().contains(&0) {
            return Some(0);
        }
        let mut dims = self.shape().iter().zip(self.strides());
        dims.try_fold(1usize, |span, (&extent, &stride)| span.checked_add((extent - 1).checked_mul(stride)?))
    }

    /// Whether an element lies in the same place in both; the stride of a dimension of one element does not count.
    pub(crate) fn same_places(&self, other: &Layout) -> bool {
        let dims = self.shape.iter().zip(self.strides.iter().zip(&other.strides));
        self.shape().contains(&0) || dims.into_iter().all(|(&extent, (a, b))| extent == 1 || a == b)
    }

    fn fits(&self, elements: usize) -> Result<()> {
        match self.span() {
            Some(span) if span <= elements => Ok(()),
            span => Err(invalid(format!(
                "shape {:?} with strides {:?}: reaches over {} elements, {} are given",
                self.shape(),
                self.strides(),
                span.map_or("more than 2^64".to_string(), |n| n.to_string()),
                elements
            ))),
        }
    }

    fn problem_strides(&self) -> Strides {
        Strides { batch: self.strides[0], token: self.strides[1], head: self.strides[2] }
    }
}

macro_rules! tensor {
    ($(#[$doc:meta])* $name:ident, $pointer:ty, $slice:ty, $as_pointer:ident) => {
        $(#[$doc])*
        pub struct $name<'a, T: Element> {
            data: $pointer,
            elements: usize,
            memory: Memory,
            layout: Layout,
            borrow: PhantomData<$slice>,
        }

        impl<'a, T: Element> $name<'a, T> {
            /// All of a slice, contiguous in this shape.
            pub fn new(data: $slice, shape: &[usize]) -> Result<Self> {
                let layout = Layout::contiguous(shape)?;
                if layout.span() != Some(data.len()) {
                    return Err(invalid(match layout.span() {
                        Some(wanted) => format!("shape {:?}: wants {} elements, {} are given", shape, wanted, data.len()),
                        None => format!("shape {:?}: wants more than 2^64 elements", shape),
                    }));
                }
                // SAFETY: a slice of that length, borrowed as long.
                Ok(unsafe { Self::build(data.$as_pointer(), data.len(), Memory::Host, layout) })
            }

            /// Part of a slice: element (i, j, ...) is at `i * strides[0] + j * strides[1] + ...`.
            pub fn strided(data: $slice, shape: &[usize], strides: &[usize]) -> Result<Self> {
                let layout = Layout::strided(shape, strides)?;
                layout.fits(data.len())?;
                // SAFETY: a slice of that length, borrowed as long.
                Ok(unsafe { Self::build(data.$as_pointer(), data.len(), Memory::Host, layout) })
            }

            /// Memory of a CUDA device.
            ///
            /// # Safety
            /// `elements` elements from `data` on are memory of the context's device, for as long as a call's work
            /// on its stream runs, and nobody uses them against the rules of a borrow until then.
            pub unsafe fn from_device(
                data: $pointer, elements: usize, shape: &[usize], strides: &[usize],
            ) -> Result<Self> {
                let layout = Layout::strided(shape, strides)?;
                layout.fits(elements)?;
                // SAFETY: the caller's promise.
                Ok(unsafe { Self::build(data, elements, Memory::Device, layout) })
            }

            unsafe fn build(data: $pointer, elements: usize, memory: Memory, layout: Layout) -> Self {
                $name { data, elements, memory, layout, borrow: PhantomData }
            }

            /// Extents, outermost first.
            pub fn shape(&self) -> &[usize] {
                self.layout.shape()
            }

            /// The strides of batch, token and head, for [`Problem::strides`](crate::Problem::strides).
            pub fn strides(&self) -> Strides {
                self.layout.problem_strides()
            }

            /// Its first element.
            pub fn as_ptr(&self) -> *const T {
                self.data as *const T
            }
        }

        impl<'a, T: Element> fmt::Debug for $name<'a, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let (shape, strides) = (self.layout.shape(), self.layout.strides());
                write!(f, "{}({:?}, {:?}, strides {:?})", stringify!($name), T::DTYPE, shape, strides)
            }
        }
    };
}

tensor! {
    /// A tensor that a call reads: a shape and strides over a slice.
    Tensor, *const T, &'a [T], as_ptr
}
tensor! {
    /// A tensor that a call writes: a shape and strides over a mutable slice.
    TensorMut, *mut T, &'a mut [T], as_mut_ptr
}

// SAFETY: borrows like those of the slices.
unsafe impl<'a, T: Element> Send for Tensor<'a, T> {}
// SAFETY: likewise.
unsafe impl<'a, T: Element> Sync for Tensor<'a, T> {}
// SAFETY: likewise.
unsafe impl<'a, T: Element> Send for TensorMut<'a, T> {}

impl<'a, T: Element> Clone for Tensor<'a, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<'a, T: Element> Copy for Tensor<'a, T> {}

impl<'a, T: Element> TensorMut<'a, T> {
    /// Splits a packed buffer `[B, T, E]`, whose tokens hold one tensor's heads after the other's, as dq, dk and dv
    /// in one: `parts` gives heads and width of each, and E is the sum of their products. They interleave but share
    /// nothing.
    pub fn split_packed<const N: usize>(
        data: &'a mut [T],
        batch: usize,
        tokens: usize,
        parts: [(usize, usize); N],
    ) -> Result<[TensorMut<'a, T>; N]> {
        let width: usize = parts.iter().map(|(heads, dim)| heads * dim).sum();
        Layout::contiguous(&[batch, tokens, width])?.fits(data.len())?;
        let (base, elements) = (data.as_mut_ptr(), data.len());
        let mut begin = 0;
        Ok(parts.map(|(heads, dim)| {
            let layout =
                Layout { ndim: 4, shape: [batch, tokens, heads, dim], strides: [tokens * width, width, dim, 1] };
            let first = begin.min(elements);
            begin += heads * dim;
            // SAFETY: inside the slice, whose borrow lasts; no element of one part is another's.
            unsafe { TensorMut::build(base.add(first), elements - first, Memory::Host, layout) }
        }))
    }
}

/// What a call reads: a slice, taken to lie as the plan says, or a [`Tensor`], whose shape and strides are compared
/// with the plan's.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    pub(crate) data: *const c_void,
    pub(crate) bytes: usize,
    pub(crate) dtype: Dtype,
    pub(crate) memory: Memory,
    pub(crate) layout: Option<Layout>,
    borrow: PhantomData<&'a [u8]>,
}

/// What a call writes: a mutable slice, taken to lie as the plan says, or a [`TensorMut`], whose shape and strides
/// are compared with the plan's.
pub struct Output<'a> {
    pub(crate) data: *mut c_void,
    pub(crate) bytes: usize,
    pub(crate) dtype: Dtype,
    pub(crate) memory: Memory,
    pub(crate) layout: Option<Layout>,
    borrow: PhantomData<&'a mut [u8]>,
}

macro_rules! from_tensor {
    ($to:ident, $from:ty, $($generics:tt)*) => {
        impl<$($generics)*> From<$from> for $to<'a> {
            fn from(tensor: $from) -> Self {
                $to {
                    data: tensor.data.cast(),
                    bytes: tensor.elements * size_of::<T>(),
                    dtype: T::DTYPE,
                    memory: tensor.memory,
                    layout: Some(tensor.layout),
                    borrow: PhantomData,
                }
            }
        }
    };
}
from_tensor!(Input, Tensor<'a, T>, 'a, T: Element);
from_tensor!(Input, &Tensor<'a, T>, 'a, T: Element);
from_tensor!(Output, TensorMut<'a, T>, 'a, T: Element);
from_tensor!(Output, &'a mut TensorMut<'_, T>, 'a, T: Element);

macro_rules! from_slice {
    ($to:ident, $from:ty, $as_pointer:ident $(, $const:tt)*) => {
        impl<'a, T: Element $(, const $const: usize)*> From<$from> for $to<'a> {
            fn from(slice: $from) -> Self {
                $to {
                    bytes: slice.len() * size_of::<T>(),
                    data: slice.$as_pointer().cast(),
                    dtype: T::DTYPE,
                    memory: Memory::Host,
                    layout: None,
                    borrow: PhantomData,
                }
            }
        }
    };
}
from_slice!(Input, &'a [T], as_ptr);
from_slice!(Input, &'a Vec<T>, as_ptr);
from_slice!(Input, &'a [T; N], as_ptr, N);
from_slice!(Output, &'a mut [T], as_mut_ptr);
from_slice!(Output, &'a mut Vec<T>, as_mut_ptr);
from_slice!(Output, &'a mut [T; N], as_mut_ptr, N);
