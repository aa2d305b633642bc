//! State caches: what forward leaves for backward.
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

use lasp_sys as sys;

use crate::bytes::{AlignedBytes, BytesMut, BytesRef};
use crate::error::{Error, Result, Status};
use crate::tensor::Memory;

/// A state cache, made by [`Plan::state_cache`](crate::Plan::state_cache). It knows whether a forward has written it:
/// a backward, or a forward that reuses it, before that is refused. The bytes themselves are those of a slice.
#[derive(Debug)]
pub struct StateCache {
    bytes: AlignedBytes,
    written: bool,
}

impl StateCache {
    pub(crate) fn new(bytes: AlignedBytes) -> StateCache {
        StateCache { bytes, written: false }
    }

    /// Whether the latest forward that was given this cache has left its states in it.
    pub fn is_written(&self) -> bool {
        self.written
    }

    /// Says that the bytes are an earlier forward's, which were put here by other means, such as out of a file.
    pub fn assume_written(&mut self) {
        self.written = true;
    }
}

impl Deref for StateCache {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for StateCache {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// A state cache that backward reads: a [`StateCache`], or bytes of yours.
#[derive(Clone, Copy, Debug)]
pub struct CacheRef<'a> {
    bytes: BytesRef<'a>,
    written: bool,
}

/// A state cache that forward writes, or reads where it is reused: a [`StateCache`], or bytes of yours.
#[derive(Debug)]
pub struct CacheMut<'a> {
    bytes: BytesMut<'a>,
    written: Option<&'a mut bool>, // None: the caller vouches for it
}

fn unwritten() -> Error {
    let sentence = "state_cache: no forward has written it: call forward with this cache first";
    Error::new(Status::INVALID_ARGUMENT, sentence)
}

impl CacheRef<'_> {
    pub(crate) fn raw(&self) -> Result<sys::lasp_const_buffer> {
        if self.written {
            Ok(self.bytes.raw)
        } else {
            Err(unwritten())
        }
    }

    pub(crate) fn memory(&self) -> Memory {
        self.bytes.memory
    }
}

impl CacheMut<'_> {
    pub(crate) fn raw(&self, reused: bool) -> Result<sys::lasp_buffer> {
        match &self.written {
            Some(written) if reused && !**written => Err(unwritten()),
            _ => Ok(self.bytes.raw),
        }
    }

    pub(crate) fn memory(&self) -> Memory {
        self.bytes.memory
    }

    /// What a forward has left in it: a refused call (1xx to 3xx) has written nothing, and after a failure of the group
    /// (5xx) the library refuses every call.
    pub(crate) fn after_forward(self, result: &Result<()>) {
        if let Some(written) = self.written {
            match result {
                Ok(()) => *written = true,
                Err(error) if (400..500).contains(&error.status().as_raw()) => *written = false,
                Err(_) => {}
            }
        }
    }
}

impl<'a> From<&'a StateCache> for CacheRef<'a> {
    fn from(cache: &'a StateCache) -> Self {
        CacheRef { bytes: BytesRef::from(&cache.bytes), written: cache.written }
    }
}

impl<'a> From<&'a mut StateCache> for CacheMut<'a> {
    fn from(cache: &'a mut StateCache) -> Self {
        CacheMut { bytes: BytesMut::from(&mut cache.bytes), written: Some(&mut cache.written) }
    }
}

macro_rules! from_bytes {
    ($to:ident, $through:ident, $written:expr, $($from:ty),*) => {
        $(impl<'a> From<$from> for $to<'a> {
            fn from(bytes: $from) -> Self {
                $to { bytes: $through::from(bytes), written: $written }
            }
        })*
    };
}
from_bytes!(CacheRef, BytesRef, true, BytesRef<'a>, &'a [u8], &'a AlignedBytes);
from_bytes! { CacheMut, BytesMut, None,
    BytesMut<'a>, &'a mut [u8], &'a mut [MaybeUninit<u8>], &'a mut Vec<u8>, &'a mut AlignedBytes
}
