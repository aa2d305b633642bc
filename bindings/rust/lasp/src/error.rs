//! A failed call: the library's status and its sentence.
use std::ffi::CStr;
use std::fmt;

use lasp_sys as sys;

/// What a call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A status of the library. Its value never changes its meaning; a newer library may know more of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(i32);

/// What a status leaves usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StatusGroup {
    /// 1xx: the caller's mistake; everything lives on.
    Mistake,
    /// 2xx: not supported in this build or on this device; everything lives on.
    Unsupported,
    /// 3xx: the ranks disagree; no plan was made on any; contexts live on.
    Disagreement,
    /// 4xx: the context is unusable; drop it. After a plan's creation or a pass the comm is too: the other ranks see a
    /// 5xx.
    Context,
    /// 5xx: the group is broken; drop the comm with its context and build a new group.
    Group,
    /// 6xx: the call did its work, and a check found something in it; everything lives on.
    Values,
    /// A status that this crate does not know.
    Other,
}

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $raw:ident;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Status = Status(sys::$raw);)*

            /// The name of a status, such as `LASP_ERROR_PEER_LOST`.
            pub fn name(self) -> &'static str {
                match self.0 {
                    $(sys::$raw => stringify!($raw),)*
                    _ => "unknown status",
                }
            }
        }
    };
}
statuses! {
    /// Success.
    OK = LASP_OK;
    /// A null pointer, a value out of range, sizes that contradict.
    INVALID_ARGUMENT = LASP_ERROR_INVALID_ARGUMENT;
    /// Not a live handle of this kind.
    INVALID_HANDLE = LASP_ERROR_INVALID_HANDLE;
    /// A struct of a size that this library cannot read.
    INVALID_STRUCT = LASP_ERROR_INVALID_STRUCT;
    /// Header and library carry different ABI numbers.
    ABI_MISMATCH = LASP_ERROR_ABI_MISMATCH;
    /// A buffer holds fewer bytes than the plan needs.
    BUFFER_TOO_SMALL = LASP_ERROR_BUFFER_TOO_SMALL;
    /// A pointer is not aligned as the plan requires.
    MISALIGNED = LASP_ERROR_MISALIGNED;
    /// Others still use the object, or a second call was made into it.
    IN_USE = LASP_ERROR_IN_USE;
    /// A legal problem that no kernel here computes.
    UNSUPPORTED = LASP_ERROR_UNSUPPORTED;
    /// This build has no such backend or transport.
    NOT_BUILT = LASP_ERROR_NOT_BUILT;
    /// No driver, no such device, or an architecture not compiled in.
    NO_DEVICE = LASP_ERROR_NO_DEVICE;
    /// A library found at run time is absent or too old.
    LIBRARY_MISSING = LASP_ERROR_LIBRARY_MISSING;
    /// The device has not enough free memory.
    DEVICE_MEMORY = LASP_ERROR_DEVICE_MEMORY;
    /// Ranks gave different problems; the sentence names the field.
    DISAGREEMENT = LASP_ERROR_DISAGREEMENT;
    /// Another rank refused its problem.
    PEER_REFUSED = LASP_ERROR_PEER_REFUSED;
    /// A defect in liblasp.
    INTERNAL = LASP_ERROR_INTERNAL;
    /// The host allocator refused.
    OUT_OF_MEMORY = LASP_ERROR_OUT_OF_MEMORY;
    /// The CUDA runtime reported an error.
    DEVICE = LASP_ERROR_DEVICE;
    /// A rank did not come within the time limit; the sentence names it.
    PEER_LOST = LASP_ERROR_PEER_LOST;
    /// This rank or another aborted.
    ABORTED = LASP_ERROR_ABORTED;
    /// The transport itself failed.
    TRANSPORT = LASP_ERROR_TRANSPORT;
    /// A check of values found something; the sentence says what is where.
    VALUES = LASP_ERROR_VALUES;
}

impl Status {
    /// The status of this number.
    pub const fn from_raw(raw: i32) -> Status {
        Status(raw)
    }

    /// Its number.
    pub const fn as_raw(self) -> i32 {
        self.0
    }

    /// What it leaves usable.
    pub const fn group(self) -> StatusGroup {
        match self.0 {
            100..=199 => StatusGroup::Mistake,
            200..=299 => StatusGroup::Unsupported,
            300..=399 => StatusGroup::Disagreement,
            400..=499 => StatusGroup::Context,
            500..=599 => StatusGroup::Group,
            600..=699 => StatusGroup::Values,
            _ => StatusGroup::Other,
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

/// Why a call failed: a status, and one sentence that names the argument and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    status: Status,
    sentence: Box<str>,
}

impl Error {
    pub(crate) fn new(status: Status, sentence: impl Into<Box<str>>) -> Error {
        Error { status, sentence: sentence.into() }
    }

    /// The library's status.
    pub fn status(&self) -> Status {
        self.status
    }

    /// What the status leaves usable.
    pub fn group(&self) -> StatusGroup {
        self.status.group()
    }

    /// The library's sentence.
    pub fn sentence(&self) -> &str {
        &self.sentence
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.sentence, self.status.name())
    }
}

impl std::error::Error for Error {}

/// The result of a call that just returned on this thread.
#[inline]
pub(crate) fn check(status: sys::lasp_status) -> Result<()> {
    if status == sys::LASP_OK {
        return Ok(());
    }
    // SAFETY: never null; valid until this thread's next call into the library.
    let sentence = unsafe { CStr::from_ptr(sys::lasp_last_error()) };
    Err(Error::new(Status(status), sentence.to_string_lossy()))
}
