//! The feature `load`: liblasp is looked up when the first function is called, not when the program starts. Where it is
//! not there, functions return `LASP_ERROR_LIBRARY_MISSING`, and `lasp_last_error` says what was tried.
use std::cell::RefCell;
use std::env;
use std::ffi::{c_void, CStr, CString};
use std::os::raw::{c_char, c_int};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Mutex;

use crate::bindings::{lasp_status, LASP_ABI, LASP_ERROR_LIBRARY_MISSING};

#[link(name = "dl")]
extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}
const RTLD_NOW: c_int = 2;

/// The handle of the library once it was found, as a number. It is never closed.
static LIBRARY: Mutex<Option<usize>> = Mutex::new(None);

thread_local! {
    /// Why this thread's last call did not reach the library.
    static SENTENCE: RefCell<CString> = RefCell::new(CString::default());
}

/// One function's address, once it was found.
pub(crate) struct Function(AtomicPtr<c_void>);

impl Function {
    pub(crate) const fn new() -> Function {
        Function(AtomicPtr::new(null_mut()))
    }

    /// `name` ends with a zero byte.
    pub(crate) fn find(&self, name: &str) -> Option<*const c_void> {
        let mut found = self.0.load(Ordering::Acquire);
        if found.is_null() {
            let library = library().ok()?;
            // SAFETY: the handle is open, and the name ends with a zero byte.
            found = unsafe { dlsym(library as *mut c_void, name.as_ptr().cast()) };
            self.0.store(found, Ordering::Release);
        }
        (!found.is_null()).then_some(found as *const c_void)
    }
}

/// Looks for liblasp now: in the folder that `LASP_LIB_DIR` names, and nowhere else where it is set; else where the
/// system's loader looks. It is looked for again at the next call where it was not found.
///
/// # Errors
///
/// What was tried, and what the loader says.
pub fn load() -> Result<(), String> {
    library().map(|_| ())
}

fn library() -> Result<usize, String> {
    let mut library = LIBRARY.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(handle) = *library {
        return Ok(handle);
    }
    let file = format!("liblasp.so.{}", LASP_ABI);
    let place = match env::var("LASP_LIB_DIR") {
        Ok(folder) => format!("{}/{}", folder, file),
        Err(_) => file,
    };
    let name = CString::new(place.clone()).map_err(|_| "LASP_LIB_DIR holds a zero byte".to_string())?;
    // SAFETY: the name ends with a zero byte; the loader's sentence is copied before another call of it.
    let handle = unsafe { dlopen(name.as_ptr(), RTLD_NOW) };
    if handle.is_null() {
        let reason = unsafe { CStr::from_ptr(dlerror()) }.to_string_lossy().into_owned();
        return Err(format!("liblasp cannot be loaded: {}. LASP_LIB_DIR may name its folder", reason));
    }
    *library = Some(handle as usize);
    Ok(handle as usize)
}

/// For a function that could not be reached: keeps the reason for `sentence`.
pub(crate) fn absent(name: &str) -> lasp_status {
    let reason = match library() {
        Ok(_) => format!("the liblasp that was loaded lacks {}: it is older than this crate", name),
        Err(reason) => reason,
    };
    SENTENCE.with(|sentence| *sentence.borrow_mut() = CString::new(reason).unwrap_or_default());
    LASP_ERROR_LIBRARY_MISSING
}

/// What `lasp_last_error` returns without a library: valid until this thread's next call.
pub(crate) fn sentence() -> *const c_char {
    SENTENCE.with(|sentence| sentence.borrow().as_ptr())
}

pub(crate) fn status_name(status: lasp_status) -> *const c_char {
    let name: &'static [u8] = match status {
        LASP_ERROR_LIBRARY_MISSING => b"LASP_ERROR_LIBRARY_MISSING\0",
        _ => b"unknown status\0",
    };
    name.as_ptr().cast()
}
