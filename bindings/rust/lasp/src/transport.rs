//! A transport of the caller's own, as a trait, and the C functions that lead to it.
use std::ffi::{c_void, CString};
use std::fmt;
use std::ptr::null_mut;
use std::time::Duration;

use lasp_sys as sys;

use crate::error::{check, Result};
use crate::guard;

/// Why a message did not come or go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportError {
    /// A rank did not come in time: which, as far as is known.
    PeerLost(Option<usize>),
    /// The group was broken on purpose.
    Aborted,
    /// The transport itself failed.
    Failed,
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransportError::PeerLost(Some(rank)) => write!(f, "rank {} did not come", rank),
            TransportError::PeerLost(None) => f.write_str("a rank did not come"),
            TransportError::Aborted => f.write_str("the group was aborted"),
            TransportError::Failed => f.write_str("the transport failed"),
        }
    }
}

impl std::error::Error for TransportError {}

/// What a transport says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct TransportInfo {
    /// For messages.
    pub name: String,
    /// This rank, from 0.
    pub rank: usize,
    /// The size of the group, 1 to 65536.
    pub nranks: usize,
    /// Ranks that share this machine's CPUs, for the default thread count.
    pub local_ranks: usize,
    /// Of one small message, in microseconds; 0: not known.
    pub latency_us: f64,
    /// Of one link, GB/s (1e9 bytes per second); 0: not known.
    pub bandwidth_gbs: f64,
}

impl TransportInfo {
    /// Of this rank, with nothing known of the link.
    pub fn new(name: impl Into<String>, rank: usize, nranks: usize) -> TransportInfo {
        TransportInfo { name: name.into(), rank, nranks, local_ranks: 1, latency_us: 0.0, bandwidth_gbs: 0.0 }
    }
}

/// Messages between the ranks of one group, over host memory.
///
/// The library calls it only from inside its own calls, on the calling thread; `abort` alone may come from any.
/// Between one sender and one receiver, messages of one tag (0 to 32767) arrive in the order sent; sizes always
/// match. Every request ends in one `wait` that succeeds or one `cancel`. After an error of anything but `test`
/// only `cancel` and `abort` follow, then the drop.
///
/// It must not call the library: such a call is refused with [`Status::IN_USE`](crate::Status). A panic in it
/// becomes [`TransportError::Failed`].
pub trait Transport: Send + Sync + 'static {
    /// A message under way.
    type Request: Send + 'static;

    /// Asked once.
    fn info(&self) -> TransportInfo;

    /// Starts sending and returns at once. `data` stays in place, unchanged, until the request ends.
    fn send(&self, data: &[u8], peer: usize, tag: i32) -> std::result::Result<Self::Request, TransportError>;

    /// Starts receiving exactly `bytes` bytes and returns at once; `wait` is told where to put them.
    fn receive(&self, bytes: usize, peer: usize, tag: i32) -> std::result::Result<Self::Request, TransportError>;

    /// Advances communication without blocking: whether the request is complete. It is still to be ended by `wait`.
    fn test(&self, request: &mut Self::Request) -> std::result::Result<bool, TransportError>;

    /// Waits until the request is complete, at most as long as `limit` says (None: as long as it takes), and then
    /// says [`TransportError::PeerLost`]. A message that was received is copied into `data`, which is empty for one
    /// sent.
    fn wait(
        &self,
        request: &mut Self::Request,
        data: &mut [u8],
        limit: Option<Duration>,
    ) -> std::result::Result<(), TransportError>;

    /// Gives a request up, complete or not; from now on its data are no longer touched.
    fn cancel(&self, request: Self::Request) {
        drop(request);
    }

    /// Breaks the group: this rank's and, as far as possible, the others' waits fail with
    /// [`TransportError::Aborted`], or with [`TransportError::PeerLost`] naming `lost_rank`. A rank whose own call was
    /// refused or failed gives its own number.
    fn abort(&self, lost_rank: Option<usize>) {
        let _ = lost_rank;
    }
}

/// A request as the library holds it: the transport's own, and where a received message goes.
struct Pending<R> {
    request: R,
    data: *mut u8,
    bytes: usize,
}

/// A comm over it.
pub(crate) fn create<T: Transport>(transport: T) -> Result<*mut sys::lasp_comm> {
    let info = transport.info();
    let name = CString::new(info.name.replace('\0', " ")).unwrap_or_default();
    let narrow = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let table = sys::lasp_transport {
        name: name.as_ptr(),
        rank: narrow(info.rank),
        nranks: narrow(info.nranks),
        local_ranks: narrow(info.local_ranks),
        memory: sys::LASP_DEVICE_CPU,
        latency_us: info.latency_us,
        bandwidth_gbs: info.bandwidth_gbs,
        send: Some(send::<T>),
        receive: Some(receive::<T>),
        test: Some(test::<T>),
        wait: Some(wait::<T>),
        cancel: Some(cancel::<T>),
        abort: Some(abort::<T>),
        destroy: Some(destroy::<T>),
        ..sys::LASP_TRANSPORT_INIT
    };
    let user = Box::into_raw(Box::new(transport));
    let mut comm = null_mut();
    // SAFETY: the table is copied, its name too; user lives until `destroy`, which comes once.
    let status = check(unsafe { sys::lasp_comm_create_custom(&table, user.cast(), &mut comm) });
    if status.is_err() {
        // SAFETY: `destroy` is not called on failure, so it is still ours.
        drop(unsafe { Box::from_raw(user) });
    }
    status.map(|()| comm)
}

type Answer<R> = Option<std::result::Result<R, TransportError>>;

/// What the library is told; `done` takes a result, `lost` the rank that did not come.
fn answer<R>(answer: Answer<R>, done: impl FnOnce(R), lost: impl FnOnce(i32)) -> sys::lasp_status {
    match answer {
        Some(Ok(value)) => {
            done(value);
            sys::LASP_OK
        }
        Some(Err(TransportError::PeerLost(rank))) => {
            lost(rank.and_then(|rank| i32::try_from(rank).ok()).unwrap_or(-1));
            sys::LASP_ERROR_PEER_LOST
        }
        Some(Err(TransportError::Aborted)) => sys::LASP_ERROR_ABORTED,
        Some(Err(TransportError::Failed)) | None => sys::LASP_ERROR_TRANSPORT,
    }
}

// SAFETY, of all that follow: `user` is the T of `create`, alive until `destroy`; the library keeps the promises of
// lasp_transport: memory of a message stays until its request ends, a request is used once at a time and ended
// once.

unsafe extern "C" fn send<T: Transport>(
    user: *mut c_void,
    data: *const c_void,
    bytes: u64,
    peer: i32,
    tag: i32,
    _stream: sys::lasp_stream,
    request: *mut *mut c_void,
) -> sys::lasp_status {
    let sent = guard::callback(|| {
        let (transport, data) = unsafe { (&*user.cast::<T>(), slice(data.cast(), bytes)) };
        transport.send(data, peer as usize, tag)
    });
    let pending = |sent| Pending { request: sent, data: null_mut(), bytes: 0 };
    answer(sent, |sent| unsafe { *request = Box::into_raw(Box::new(pending(sent))).cast() }, |_| ())
}

unsafe extern "C" fn receive<T: Transport>(
    user: *mut c_void,
    data: *mut c_void,
    bytes: u64,
    peer: i32,
    tag: i32,
    _stream: sys::lasp_stream,
    request: *mut *mut c_void,
) -> sys::lasp_status {
    let begun = guard::callback(|| unsafe { &*user.cast::<T>() }.receive(bytes as usize, peer as usize, tag));
    let pending = |begun| Pending { request: begun, data: data.cast(), bytes: bytes as usize };
    answer(begun, |begun| unsafe { *request = Box::into_raw(Box::new(pending(begun))).cast() }, |_| ())
}

unsafe extern "C" fn test<T: Transport>(
    user: *mut c_void,
    request: *mut c_void,
    done: *mut i32,
) -> sys::lasp_status {
    let complete = guard::callback(|| {
        let (transport, pending) = unsafe { (&*user.cast::<T>(), &mut *request.cast::<Pending<T::Request>>()) };
        transport.test(&mut pending.request)
    });
    answer(complete, |complete| unsafe { *done = complete.into() }, |_| ())
}

unsafe extern "C" fn wait<T: Transport>(
    user: *mut c_void,
    request: *mut c_void,
    time_limit_ms: i64,
    lost_rank: *mut i32,
) -> sys::lasp_status {
    let waited = guard::callback(|| {
        let (transport, pending) = unsafe { (&*user.cast::<T>(), &mut *request.cast::<Pending<T::Request>>()) };
        let data = unsafe { slice_mut(pending.data, pending.bytes) };
        transport.wait(&mut pending.request, data, u64::try_from(time_limit_ms).ok().map(Duration::from_millis))
    });
    let end = |()| {
        // A panic while the request is dropped must not cross C either.
        let _ = guard::callback(|| drop(unsafe { Box::from_raw(request.cast::<Pending<T::Request>>()) }));
    };
    answer(waited, end, |rank| unsafe {
        if !lost_rank.is_null() {
            *lost_rank = rank;
        }
    })
}

unsafe extern "C" fn cancel<T: Transport>(user: *mut c_void, request: *mut c_void) {
    let _ = guard::callback(|| {
        let (transport, pending) =
            unsafe { (&*user.cast::<T>(), Box::from_raw(request.cast::<Pending<T::Request>>())) };
        transport.cancel(pending.request);
    });
}

unsafe extern "C" fn abort<T: Transport>(user: *mut c_void, lost_rank: i32) {
    let _ = guard::callback(|| unsafe { &*user.cast::<T>() }.abort(usize::try_from(lost_rank).ok()));
}

unsafe extern "C" fn destroy<T: Transport>(user: *mut c_void) {
    let _ = guard::callback(|| drop(unsafe { Box::from_raw(user.cast::<T>()) }));
}

unsafe fn slice<'a>(data: *const u8, bytes: u64) -> &'a [u8] {
    match bytes {
        0 => &[],
        _ => unsafe { std::slice::from_raw_parts(data, bytes as usize) },
    }
}

unsafe fn slice_mut<'a>(data: *mut u8, bytes: usize) -> &'a mut [u8] {
    match bytes {
        0 => &mut [],
        _ => unsafe { std::slice::from_raw_parts_mut(data, bytes) },
    }
}
