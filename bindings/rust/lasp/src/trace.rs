//! What a rank did when: `Context::start_trace` and the rest.
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use lasp_sys as sys;

use crate::context::Context;
use crate::error::{check, Error, Result, Status};
use crate::guard;

impl Context {
    /// Begins to record what this rank does: calls, the phases of passes, messages, waits, and on a GPU when it did each
    /// part. `max_records` are kept, of 64 bytes each, and older ones give way; 0: 65,536. What was recorded before is
    /// gone. [`Status::IN_USE`] where the comm is traced already.
    pub fn start_trace(&self, max_records: u64) -> Result<()> {
        guard::enter()?;
        let options = sys::lasp_trace_options {
            max_records: i64::try_from(max_records).unwrap_or(i64::MAX),
            ..sys::LASP_TRACE_OPTIONS_INIT
        };
        // SAFETY: a live handle, a struct of its own size.
        check(unsafe { sys::lasp_trace_start(self.as_raw(), &options) })
    }

    /// Ends the recording; what was recorded is kept for [`write_trace`](Context::write_trace). Waits for no device.
    pub fn stop_trace(&self) -> Result<()> {
        guard::enter()?;
        // SAFETY: a live handle.
        check(unsafe { sys::lasp_trace_stop(self.as_raw()) })
    }

    /// Writes what was recorded so far to a file, which is replaced: JSON that Perfetto opens. It has what the device has
    /// done by now, so synchronise its streams first.
    pub fn write_trace(&self, path: impl AsRef<Path>) -> Result<()> {
        guard::enter()?;
        let path = CString::new(path.as_ref().as_os_str().as_bytes())
            .map_err(|_| Error::new(Status::INVALID_ARGUMENT, "path: a zero byte in it"))?;
        // SAFETY: a live handle, a string that ends with a zero.
        check(unsafe { sys::lasp_trace_write(self.as_raw(), path.as_ptr()) })
    }
}
