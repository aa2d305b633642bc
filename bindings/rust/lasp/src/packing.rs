//! The sequences of one pass.
use lasp_sys as sys;

/// N packed sequences, laid end to end: N + 1 offsets into the tokens of all ranks, the same on every rank. They begin
/// at 0, do not decrease, and end at no more than those tokens; what follows the last one is padding.
///
/// Made from a slice of `i64` or `i32`, which it borrows: `&[0i64, 3, 7][..]`.
#[derive(Clone, Copy, Debug)]
pub struct Packing<'a>(Offsets<'a>);

#[derive(Clone, Copy, Debug)]
enum Offsets<'a> {
    Wide(&'a [i64]),
    Narrow(&'a [i32]),
}

impl<'a> From<&'a [i64]> for Packing<'a> {
    fn from(offsets: &'a [i64]) -> Self {
        Packing(Offsets::Wide(offsets))
    }
}
impl<'a> From<&'a Vec<i64>> for Packing<'a> {
    fn from(offsets: &'a Vec<i64>) -> Self {
        Packing(Offsets::Wide(offsets))
    }
}
impl<'a> From<&'a [i32]> for Packing<'a> {
    fn from(offsets: &'a [i32]) -> Self {
        Packing(Offsets::Narrow(offsets))
    }
}
impl<'a> From<&'a Vec<i32>> for Packing<'a> {
    fn from(offsets: &'a Vec<i32>) -> Self {
        Packing(Offsets::Narrow(offsets))
    }
}

impl Packing<'_> {
    /// The library's struct; valid while the offsets are borrowed.
    pub(crate) fn as_raw(&self) -> sys::lasp_packing {
        let (data, bytes, count, dtype) = match self.0 {
            Offsets::Wide(x) => (x.as_ptr().cast(), std::mem::size_of_val(x), x.len(), sys::LASP_INT64),
            Offsets::Narrow(x) => (x.as_ptr().cast(), std::mem::size_of_val(x), x.len(), sys::LASP_INT32),
        };
        sys::lasp_packing {
            cu_seqlens: sys::lasp_const_buffer { data, bytes },
            num_sequences: count as i64 - 1, // no offsets at all are refused by the library
            dtype,
            memory: sys::LASP_DEVICE_CPU,
            ..sys::LASP_PACKING_INIT
        }
    }
}
