//! A comm, a device and settings.
use std::cell::UnsafeCell;
use std::ffi::{c_void, CStr};
use std::fmt;
use std::os::raw::c_char;
use std::ptr::{null_mut, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lasp_sys as sys;

use crate::comm::Comm;
use crate::error::{check, Error, Result, Status};
use crate::guard;
use crate::values::{Device, LogLevel};

type Log = Box<dyn FnMut(LogLevel, &str) + Send>;
type Interrupted = Box<dyn FnMut() -> bool + Send>;

/// Settings of a context; the default is the CPU, all of its cores, ten minutes for every wait, and no log.
pub struct ContextOptions {
    raw: sys::lasp_context_options,
    log: Option<Log>,
    interrupted: Option<Interrupted>,
}

// SAFETY: raw's pointers are null until a context is made.
unsafe impl Send for ContextOptions {}

impl Default for ContextOptions {
    fn default() -> Self {
        ContextOptions::new()
    }
}

impl ContextOptions {
    /// The defaults.
    pub fn new() -> Self {
        ContextOptions { raw: sys::LASP_CONTEXT_OPTIONS_INIT, log: None, interrupted: None }
    }

    /// Where to compute. Without it on the GPU of a comm whose memory is a GPU's (NCCL, or a
    /// [`Transport`](crate::Transport) of device memory), else on the CPU.
    pub fn device(mut self, device: Device) -> Self {
        let (kind, index) = match device {
            Device::Cpu => (sys::LASP_DEVICE_CPU, 0),
            Device::Cuda(index) => (sys::LASP_DEVICE_CUDA, index),
        };
        self.raw.device = kind;
        self.raw.device_index = index;
        self
    }

    /// The limit of every wait for another rank, in whole milliseconds of at least one.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.raw.time_limit_ms = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX).max(1);
        self
    }

    /// Waits for other ranks as long as it takes.
    pub fn no_time_limit(mut self) -> Self {
        self.raw.time_limit_ms = -1;
        self
    }

    /// Threads that compute, the caller's included; 0: the machine's CPUs shared between its ranks.
    pub fn cpu_threads(mut self, threads: usize) -> Self {
        self.raw.cpu_threads = i32::try_from(threads).unwrap_or(i32::MAX);
        self
    }

    /// Hands `log` the messages of this level and those more important. It runs on the thread that calls the
    /// library, inside the call, and must not call the library: such a call is refused with [`Status::IN_USE`]. A
    /// panic in it ends there.
    pub fn log(mut self, level: LogLevel, log: impl FnMut(LogLevel, &str) + Send + 'static) -> Self {
        self.raw.log_level = level.to_raw();
        self.log = Some(Box::new(log));
        self
    }

    /// Asks `interrupted` about ten times a second while a call waits for another rank, on the thread of the call: true
    /// ends the call with [`Status::ABORTED`] and breaks the group, as [`AbortHandle::abort`] does. For a program that
    /// watches a signal. It must not call the library, which is refused with [`Status::IN_USE`]; a panic in it ends there,
    /// and the call too. Nobody is asked in a call that waits inside NCCL or inside a [`Transport`](crate::Transport) of
    /// your own.
    pub fn interrupted(mut self, interrupted: impl FnMut() -> bool + Send + 'static) -> Self {
        self.interrupted = Some(Box::new(interrupted));
        self
    }

    /// The link between ranks, for the automatic schedule: latency in microseconds, GB/s (1e9 bytes per second).
    pub fn link(mut self, latency_us: f64, bandwidth_gbs: f64) -> Self {
        self.raw.latency_us = latency_us;
        self.raw.bandwidth_gbs = bandwidth_gbs;
        self
    }

    /// Names each pass and exchange by NVTX ranges where a profiler is attached.
    pub fn profiler_ranges(mut self, on: bool) -> Self {
        self.raw.profiler_ranges = on.into();
        self
    }

    /// Lets a checksum travel with every message: one that arrives changed ends the comm with [`Status::TRANSPORT`]
    /// instead of becoming a wrong number. The same on all ranks; on the CPU only.
    pub fn verify_messages(mut self, on: bool) -> Self {
        self.raw.verify_messages = on.into();
        self
    }

    /// For debugging: after its work each pass looks for NaN, infinity and decays above 0 in what it read and wrote, and
    /// fails with [`Status::VALUES`]. On a GPU it waits for the pass, which cannot be captured.
    pub fn check_values(mut self, on: bool) -> Self {
        self.raw.check_values = on.into();
        self
    }
}

impl fmt::Debug for ContextOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextOptions").field("raw", &self.raw).finish_non_exhaustive()
    }
}

/// A closure, at a fixed address that the library knows.
struct Callback<F>(UnsafeCell<F>);

// SAFETY: the closure is Send, and is run by the one thread that uses the context.
unsafe impl<F: Send> Send for Callback<F> {}

impl<F> Callback<F> {
    fn new(closure: F) -> Box<Callback<F>> {
        Box::new(Callback(UnsafeCell::new(closure)))
    }

    fn address(&self) -> *mut c_void {
        self as *const Callback<F> as *mut c_void
    }

    /// # Safety
    /// `user` is the address of such a callback, alive while the context is. The library calls from inside a call on the
    /// context, of which there is one at a time; none is made from in here.
    unsafe fn at<'a>(user: *mut c_void) -> &'a mut F {
        // SAFETY: the caller's promise.
        unsafe { &mut *(*user.cast::<Callback<F>>()).0.get() }
    }
}

unsafe extern "C" fn log_trampoline(user: *mut c_void, level: i32, message: *const c_char) {
    let _ = guard::callback(|| {
        // SAFETY: the context's log, called by the library.
        let (log, text) = unsafe { (Callback::<Log>::at(user), CStr::from_ptr(message)) };
        log(LogLevel::from_raw(level), &text.to_string_lossy());
    });
}

unsafe extern "C" fn interrupted_trampoline(user: *mut c_void) -> i32 {
    // SAFETY: the context's closure, called by the library.
    let interrupted = guard::callback(|| unsafe { Callback::<Interrupted>::at(user)() });
    interrupted.unwrap_or(true).into()
}

/// The library's handle, while it is alive. Shared with the abort handles, which may outlive the context.
#[derive(Default)]
struct Shared(Mutex<Option<Raw>>);

#[derive(Clone, Copy)]
struct Raw(NonNull<sys::lasp_context>);

// SAFETY: a handle; what other threads do with it is lasp_context_abort alone.
unsafe impl Send for Raw {}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Raw>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Handle {
    raw: NonNull<sys::lasp_context>,
    shared: Arc<Shared>,
}

// SAFETY: one thread at a time uses the context, whichever it is; Context is not Sync.
unsafe impl Send for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        if guard::in_callback() {
            return; // left alive: the library must not be called
        }
        *self.shared.lock() = None; // no abort is under way from here on
                                    // SAFETY: ours. Refused, and left alone, only where a plan was leaked.
        unsafe { sys::lasp_context_destroy(self.raw.as_ptr()) };
    }
}

/// A comm, a device and settings. It owns its comm and starts its threads, which sleep between calls.
///
/// Can be sent to another thread, but not shared: one thread at a time uses it, its plans and its comm.
pub struct Context {
    // In the order in which they are dropped.
    handle: Handle,
    _log: Option<Box<Callback<Log>>>,
    _interrupted: Option<Box<Callback<Interrupted>>>,
    comm: Comm,
    device: Device,
}

impl Context {
    /// A context with the default settings. Talks to no other rank.
    pub fn new(comm: Comm) -> Result<Context, ContextError> {
        Context::with_options(comm, ContextOptions::new())
    }

    /// A context with these settings. Talks to no other rank. On failure the comm comes back in the error.
    pub fn with_options(comm: Comm, options: ContextOptions) -> Result<Context, ContextError> {
        if let Err(error) = guard::enter() {
            return Err(ContextError { error, comm: Exclusive(comm) });
        }
        let ContextOptions { mut raw, log, interrupted } = options;
        let (log, interrupted) = (log.map(Callback::new), interrupted.map(Callback::new));
        if let Some(callback) = &log {
            raw.log = Some(log_trampoline);
            raw.log_user = callback.address();
        }
        if let Some(callback) = &interrupted {
            raw.interrupted = Some(interrupted_trampoline);
            raw.interrupted_user = callback.address();
        }
        let mut handle = null_mut();
        // SAFETY: a live comm that will outlive the context; the callbacks will too.
        let status = unsafe { sys::lasp_context_create(sys::LASP_ABI, comm.as_raw(), &raw, &mut handle) };
        match (check(status), NonNull::new(handle)) {
            (Ok(()), Some(raw)) => {
                let shared = Arc::new(Shared(Mutex::new(Some(Raw(raw)))));
                let handle = Handle { raw, shared };
                let (mut device, mut index) = (sys::LASP_DEVICE_CPU, 0);
                // SAFETY: a live handle, places to write to.
                let told = unsafe { sys::lasp_context_get_device(raw.as_ptr(), &mut device, &mut index) };
                debug_assert_eq!(told, sys::LASP_OK);
                let device = if device == sys::LASP_DEVICE_CUDA { Device::Cuda(index) } else { Device::Cpu };
                Ok(Context { handle, _log: log, _interrupted: interrupted, comm, device })
            }
            (Err(error), _) => Err(ContextError { error, comm: Exclusive(comm) }),
            (Ok(()), None) => unreachable!("success without a context"),
        }
    }

    /// Its comm.
    pub fn comm(&self) -> &Comm {
        &self.comm
    }

    /// Ends the context and gives its comm back, to make another with.
    pub fn into_comm(self) -> Comm {
        self.comm
    }

    /// Where it computes.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The handle, which stays this context's.
    pub fn as_raw(&self) -> *mut sys::lasp_context {
        self.handle.raw.as_ptr()
    }

    /// What a failure outside any call left behind, as on a GPU: `Ok(None)` when there was none. Never blocks.
    pub fn async_error(&self) -> Result<Option<Error>> {
        guard::enter()?;
        let (mut status, mut text) = (sys::LASP_OK, [0u8; 1024]);
        // SAFETY: a live handle, places to write to.
        check(unsafe {
            sys::lasp_context_get_async_error(self.as_raw(), &mut status, text.as_mut_ptr().cast(), text.len())
        })?;
        let length = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
        let sentence = String::from_utf8_lossy(&text[..length]);
        Ok(if status == sys::LASP_OK { None } else { Some(Error::new(Status::from_raw(status), sentence)) })
    }

    /// A handle that breaks the group from any thread.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle { shared: Arc::clone(&self.handle.shared) }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({:?}, {:?})", self.comm, self.device)
    }
}

/// Breaks a context's group, from any thread and at any time. It does not keep the context alive.
#[derive(Clone)]
pub struct AbortHandle {
    shared: Arc<Shared>,
}

impl AbortHandle {
    /// Makes the calls in flight, here and as far as possible on other ranks, return [`Status::ABORTED`]. The
    /// contexts and comms of the group can then only be dropped. [`Status::INVALID_HANDLE`] once the context is
    /// gone.
    pub fn abort(&self) -> Result<()> {
        guard::enter()?;
        match *self.shared.lock() {
            // SAFETY: alive while the lock is held; this function alone may be called from any thread.
            Some(Raw(raw)) => check(unsafe { sys::lasp_context_abort(raw.as_ptr()) }),
            None => Err(Error::new(Status::INVALID_HANDLE, "context: it was dropped")),
        }
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AbortHandle")
    }
}

/// Why no context was made, with the comm. Turns into an [`Error`] by `?`, which drops the comm.
pub struct ContextError {
    error: Error,
    comm: Exclusive,
}

/// A comm that can only be taken out, never looked at.
struct Exclusive(Comm);

// SAFETY: a shared reference to it reaches nothing.
unsafe impl Sync for Exclusive {}

impl ContextError {
    /// The reason.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// The reason and the comm.
    pub fn into_parts(self) -> (Error, Comm) {
        (self.error, self.comm.0)
    }
}

impl From<ContextError> for Error {
    fn from(e: ContextError) -> Error {
        e.error
    }
}

impl fmt::Debug for ContextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl fmt::Display for ContextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl std::error::Error for ContextError {}
