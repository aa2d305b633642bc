//! Memory without a type: the state cache and the workspace.
use std::alloc::{alloc_zeroed, dealloc, Layout};
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use lasp_sys as sys;

use crate::error::{Error, Result, Status};
use crate::tensor::Memory;

/// Owned bytes of a given alignment, zero at first. [`Plan`](crate::Plan) makes them in the sizes it needs.
pub struct AlignedBytes {
    data: NonNull<u8>,
    layout: Layout,
}

// SAFETY: owned memory, like a Vec<u8>.
unsafe impl Send for AlignedBytes {}
// SAFETY: likewise.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// `bytes` zero bytes; `alignment` is a power of two. Fails with [`Status::OUT_OF_MEMORY`].
    pub fn zeroed(bytes: usize, alignment: usize) -> Result<AlignedBytes> {
        let layout = Layout::from_size_align(bytes, alignment).map_err(|_| {
            Error::new(
                Status::INVALID_ARGUMENT,
                format!("alignment = {}: no power of two, or too large", alignment),
            )
        })?;
        if bytes == 0 {
            return Ok(AlignedBytes { data: NonNull::dangling(), layout });
        }
        // SAFETY: the layout's size is not zero.
        let data = NonNull::new(unsafe { alloc_zeroed(layout) });
        let data =
            data.ok_or_else(|| Error::new(Status::OUT_OF_MEMORY, format!("no {} bytes to be had", bytes)))?;
        Ok(AlignedBytes { data, layout })
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        if self.layout.size() != 0 {
            // SAFETY: made by alloc_zeroed with this layout.
            unsafe { dealloc(self.data.as_ptr(), self.layout) }
        }
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: that many initialised bytes, ours.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: that many initialised bytes, ours alone.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.layout.size()) }
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBytes({} bytes, aligned to {})", self.layout.size(), self.layout.align())
    }
}

/// Bytes that a call reads: a state cache in backward.
#[derive(Clone, Copy, Debug)]
pub struct BytesRef<'a> {
    pub(crate) raw: sys::lasp_const_buffer,
    pub(crate) memory: Memory,
    borrow: PhantomData<&'a [u8]>,
}

/// Bytes that a call writes: a workspace, a state cache in forward.
#[derive(Debug)]
pub struct BytesMut<'a> {
    pub(crate) raw: sys::lasp_buffer,
    pub(crate) memory: Memory,
    borrow: PhantomData<&'a mut [u8]>,
}

impl<'a> BytesRef<'a> {
    /// Device memory.
    ///
    /// # Safety
    /// `bytes` bytes from `data` on are memory of the context's device until the call's work on its stream has run.
    pub unsafe fn from_device(data: *const c_void, bytes: usize) -> Self {
        BytesRef { raw: sys::lasp_const_buffer { data, bytes }, memory: Memory::Device, borrow: PhantomData }
    }
}

impl<'a> BytesMut<'a> {
    /// Device memory.
    ///
    /// # Safety
    /// `bytes` bytes from `data` on are memory of the context's device, used by nothing else, until the call's work
    /// on its stream has run.
    pub unsafe fn from_device(data: *mut c_void, bytes: usize) -> Self {
        BytesMut { raw: sys::lasp_buffer { data, bytes }, memory: Memory::Device, borrow: PhantomData }
    }
}

impl<'a> From<&'a [u8]> for BytesRef<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        let raw = sys::lasp_const_buffer { data: bytes.as_ptr().cast(), bytes: bytes.len() };
        BytesRef { raw, memory: Memory::Host, borrow: PhantomData }
    }
}

impl<'a> From<&'a AlignedBytes> for BytesRef<'a> {
    fn from(bytes: &'a AlignedBytes) -> Self {
        BytesRef::from(&bytes[..])
    }
}

impl<'a> From<&'a mut [MaybeUninit<u8>]> for BytesMut<'a> {
    fn from(bytes: &'a mut [MaybeUninit<u8>]) -> Self {
        let raw = sys::lasp_buffer { data: bytes.as_mut_ptr().cast(), bytes: bytes.len() };
        BytesMut { raw, memory: Memory::Host, borrow: PhantomData }
    }
}

impl<'a> From<&'a mut [u8]> for BytesMut<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        let raw = sys::lasp_buffer { data: bytes.as_mut_ptr().cast(), bytes: bytes.len() };
        BytesMut { raw, memory: Memory::Host, borrow: PhantomData }
    }
}

impl<'a> From<&'a mut Vec<u8>> for BytesMut<'a> {
    fn from(bytes: &'a mut Vec<u8>) -> Self {
        BytesMut::from(&mut bytes[..])
    }
}

impl<'a> From<&'a mut AlignedBytes> for BytesMut<'a> {
    fn from(bytes: &'a mut AlignedBytes) -> Self {
        BytesMut::from(&mut bytes[..])
    }
}
