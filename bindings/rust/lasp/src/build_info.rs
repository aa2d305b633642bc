//! What the loaded library is.
use std::ffi::CStr;
use std::os::raw::c_char;

use lasp_sys as sys;

use crate::error::{check, Result};
use crate::guard;

/// The loaded library's version and ABI number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Of `major.minor.patch`.
    pub major: i32,
    /// Of `major.minor.patch`.
    pub minor: i32,
    /// Of `major.minor.patch`.
    pub patch: i32,
    /// Changes when a program compiled against an earlier header would break.
    pub abi: i32,
}

/// The loaded library's version.
pub fn version() -> Result<Version> {
    guard::enter()?;
    let mut v = Version { major: 0, minor: 0, patch: 0, abi: 0 };
    // SAFETY: four places to write to.
    check(unsafe { sys::lasp_version(&mut v.major, &mut v.minor, &mut v.patch, &mut v.abi) })?;
    Ok(v)
}

/// What the loaded library contains and what it found on this machine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BuildInfo {
    /// `0.2.0`
    pub version: &'static str,
    /// `gcc 12.2.0`
    pub compiler: &'static str,
    /// Build type and sanitizers.
    pub flags: &'static str,
    /// The CBLAS library in this process, its configuration and core.
    pub blas: &'static str,
    /// Toolkit version, or why the GPU backend is absent.
    pub cuda: &'static str,
    /// Version found in the process, or why it is absent.
    pub nccl: &'static str,
    /// The CUDA backend is compiled in.
    pub has_cuda: bool,
    /// The NCCL transport is compiled in.
    pub has_nccl: bool,
    /// CPUs that this process may use.
    pub cpu_count: i32,
}

impl BuildInfo {
    /// Asks the library.
    pub fn get() -> Result<BuildInfo> {
        guard::enter()?;
        let mut raw = sys::LASP_BUILD_INFO_INIT;
        // SAFETY: a struct that states its size.
        check(unsafe { sys::lasp_get_build_info(&mut raw) })?;
        Ok(BuildInfo {
            version: text(raw.version),
            compiler: text(raw.compiler),
            flags: text(raw.flags),
            blas: text(raw.blas),
            cuda: text(raw.cuda),
            nccl: text(raw.nccl),
            has_cuda: raw.has_cuda != 0,
            has_nccl: raw.has_nccl != 0,
            cpu_count: raw.cpu_count,
        })
    }
}

fn text(s: *const c_char) -> &'static str {
    if s.is_null() {
        return "";
    }
    // SAFETY: the library's strings are static.
    unsafe { CStr::from_ptr(s) }.to_str().unwrap_or("")
}
