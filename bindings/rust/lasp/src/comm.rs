//! One rank's end of one sequence-parallel group.
use std::fmt;
use std::ptr::{null_mut, NonNull};

use lasp_sys as sys;

use crate::error::{check, Error, Result, Status};
use crate::guard;
use crate::transport::{self, Transport};

/// One rank's end of one sequence-parallel group. Dropping it leaves the group.
///
/// It can be sent to the thread that is to be this rank, and is used by one thread at a time.
pub struct Comm {
    handle: NonNull<sys::lasp_comm>,
    rank: usize,
    nranks: usize,
}

// SAFETY: the library ties no handle to a thread; it asks only that one thread at a time uses it, and Comm is not
// Sync.
unsafe impl Send for Comm {}

/// What a rank has put on the transport since its comm was made: payload only.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Traffic {
    /// Payload sent, in bytes.
    pub bytes_sent: u64,
    /// Payload received, in bytes.
    pub bytes_received: u64,
    /// Messages sent.
    pub messages_sent: u64,
    /// Messages received.
    pub messages_received: u64,
    /// Time spent blocked in the transport.
    pub wait_seconds: f64,
}

impl Comm {
    /// A group of one.
    pub fn single() -> Result<Comm> {
        guard::enter()?;
        let mut handle = null_mut();
        // SAFETY: a place to write to; the handle becomes ours.
        unsafe {
            check(sys::lasp_comm_create_self(&mut handle))?;
            Comm::from_raw(handle)
        }
    }

    /// An in-process group of `nranks` (1 to 1024), in rank order: one comm for each thread that is to be a rank.
    /// Also the way to have several virtual ranks on one GPU.
    pub fn threads(nranks: usize) -> Result<Vec<Comm>> {
        guard::enter()?;
        let count = i32::try_from(nranks).unwrap_or(i32::MAX);
        // The library refuses more than 1024 before it writes.
        let mut handles = vec![null_mut(); nranks.min(1024)];
        // SAFETY: as many places to write to as ranks; the handles become ours.
        unsafe {
            check(sys::lasp_comm_create_threads(count, handles.as_mut_ptr()))?;
            handles.into_iter().map(|handle| Comm::from_raw(handle)).collect()
        }
    }

    /// A place in a group, `rank` of `nranks`, whose messages are your business: there is no transport. It serves stages
    /// and all that asks; what would send is refused. A plan on it takes the other ranks to have as many tokens.
    pub fn detached(rank: usize, nranks: usize) -> Result<Comm> {
        guard::enter()?;
        let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        let mut handle = null_mut();
        // SAFETY: a place to write to; the handle becomes ours.
        unsafe {
            check(sys::lasp_comm_create_detached(number(rank), number(nranks), &mut handle))?;
            Comm::from_raw(handle)
        }
    }

    /// A comm over a transport of your own; all of its ranks make one, each with its own rank.
    pub fn custom(transport: impl Transport) -> Result<Comm> {
        guard::enter()?;
        let handle = transport::create(transport)?;
        // SAFETY: just made, and nobody else's.
        unsafe { Comm::from_raw(handle) }
    }

    /// A comm over a borrowed NCCL communicator (2.18 or later), for CUDA contexts on its device. Without
    /// `functions` it is the only NCCL that this process has loaded; where there is none or more than one, the call is
    /// refused with [`Status::LIBRARY_MISSING`].
    ///
    /// # Safety
    /// `nccl` is a live `ncclComm_t` that outlives the comm; other uses of it keep an order that is the same on all
    /// ranks. `functions` are NCCL's own.
    pub unsafe fn from_nccl(
        nccl: *mut sys::ncclComm,
        functions: Option<&sys::lasp_nccl_functions>,
    ) -> Result<Comm> {
        guard::enter()?;
        let functions = functions.map_or(std::ptr::null(), |f| f as *const _);
        let mut handle = null_mut();
        // SAFETY: the caller's promise; a place to write to.
        unsafe {
            check(sys::lasp_comm_create_nccl(nccl, functions, &mut handle))?;
            Comm::from_raw(handle)
        }
    }

    /// Takes over a comm made elsewhere, such as by `lasp_mpi_comm_create`.
    ///
    /// # Safety
    /// `handle` is a live comm of this process's liblasp that nobody else uses or destroys.
    pub unsafe fn from_raw(handle: *mut sys::lasp_comm) -> Result<Comm> {
        guard::enter()?;
        let (mut rank, mut nranks) = (0, 0);
        // SAFETY: the caller's promise; two places to write to.
        check(unsafe { sys::lasp_comm_get_rank(handle, &mut rank, &mut nranks) })?;
        let handle = NonNull::new(handle).ok_or_else(|| Error::new(Status::INVALID_ARGUMENT, "comm is null"))?;
        Ok(Comm { handle, rank: rank as usize, nranks: nranks as usize })
    }

    /// The handle, which stays this comm's.
    pub fn as_raw(&self) -> *mut sys::lasp_comm {
        self.handle.as_ptr()
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The size of the group.
    pub fn nranks(&self) -> usize {
        self.nranks
    }

    /// What this rank has sent and received so far.
    pub fn traffic(&self) -> Result<Traffic> {
        guard::enter()?;
        let mut raw = sys::LASP_TRAFFIC_INIT;
        // SAFETY: a live handle, a struct that states its size.
        check(unsafe { sys::lasp_comm_get_traffic(self.as_raw(), &mut raw) })?;
        Ok(Traffic {
            bytes_sent: raw.bytes_sent,
            bytes_received: raw.bytes_received,
            messages_sent: raw.messages_sent,
            messages_received: raw.messages_received,
            wait_seconds: raw.wait_seconds,
        })
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        // In a callback the library must not be called: the comm is left alone then.
        if !guard::in_callback() {
            // SAFETY: ours. Refused, and left alone, only where a context was leaked.
            unsafe { sys::lasp_comm_destroy(self.as_raw()) };
        }
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Comm(rank {} of {})", self.rank, self.nranks)
    }
}
