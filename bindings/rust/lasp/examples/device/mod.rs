//! Memory and streams of the first GPU by the CUDA driver's own functions, found at run time; and the recurrence
//! that results are held to. A program with a CUDA crate has the former from there.
#![allow(dead_code)] // each program uses a part
use std::ffi::{c_void, CString};
use std::mem::size_of_val;
use std::os::raw::{c_char, c_int};

// In the C library, or in libdl of one before glibc 2.34.
#[link(name = "dl")]
extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Calls a function of the CUDA driver by its name.
macro_rules! driver {
    ($name:literal $(, $argument:expr => $kind:ty)*) => {{
        let (library, name) = (CString::new("libcuda.so.1").unwrap(), CString::new($name).unwrap());
        // SAFETY: the driver's function of this name has these parameters; the pointers are to memory of that size.
        let code = unsafe {
            let function = dlsym(dlopen(library.as_ptr(), 2), name.as_ptr());
            assert!(!function.is_null(), "the driver has no {}", $name);
            let function: unsafe extern "C" fn($($kind),*) -> c_int = std::mem::transmute(function);
            function($($argument),*)
        };
        assert_eq!(code, 0, "{}", $name);
    }};
}

/// Makes the first GPU's context, the one that the library uses too, this thread's.
pub fn use_device() {
    let (mut device, mut context) = (0, std::ptr::null_mut());
    driver!("cuInit", 0 => u32);
    driver!("cuDeviceGet", &mut device => *mut c_int, 0 => c_int);
    driver!("cuDevicePrimaryCtxRetain", &mut context => *mut *mut c_void, device => c_int);
    driver!("cuCtxSetCurrent", context => *mut c_void);
}

pub struct DeviceMemory {
    pub data: u64,
    pub bytes: usize,
}

impl DeviceMemory {
    pub fn new(bytes: usize) -> Self {
        let mut data = 0;
        driver!("cuMemAlloc_v2", &mut data => *mut u64, bytes.max(1) => usize); // the driver refuses 0
        DeviceMemory { data, bytes }
    }

    pub fn of<T: Copy>(values: &[T]) -> Self {
        let memory = DeviceMemory::new(size_of_val(values));
        let from = values.as_ptr().cast();
        driver!("cuMemcpyHtoD_v2", memory.data => u64, from => *const c_void, memory.bytes => usize);
        memory
    }

    /// Waits for the default stream first.
    pub fn read<T: Copy>(&self, values: &mut [T]) {
        assert_eq!(size_of_val(values), self.bytes);
        let to = values.as_mut_ptr().cast();
        driver!("cuMemcpyDtoH_v2", to => *mut c_void, self.data => u64, self.bytes => usize);
    }

    /// A copy on the device, in the stream's order.
    pub fn copy_from(&self, other: &DeviceMemory, stream: &DeviceStream) {
        assert_eq!(self.bytes, other.bytes);
        driver!("cuMemcpyDtoDAsync_v2", self.data => u64, other.data => u64, self.bytes => usize,
                stream.0 => *mut c_void);
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        driver!("cuMemFree_v2", self.data => u64); // waits for the work that uses it
    }
}

/// A stream that does not wait for the default one.
pub struct DeviceStream(pub *mut c_void);

impl DeviceStream {
    pub fn new() -> Self {
        let mut stream = std::ptr::null_mut();
        driver!("cuStreamCreate", &mut stream => *mut *mut c_void, 1 => u32);
        DeviceStream(stream)
    }

    /// Puts `function` into the stream's order, on the host.
    pub fn call(&self, function: extern "C" fn(*mut c_void)) {
        let nothing = std::ptr::null_mut();
        driver!("cuLaunchHostFunc", self.0 => *mut c_void, function => extern "C" fn(*mut c_void),
                nothing => *mut c_void);
    }

    pub fn synchronize(&self) {
        driver!("cuStreamSynchronize", self.0 => *mut c_void);
    }
}

impl Drop for DeviceStream {
    fn drop(&mut self) {
        driver!("cuStreamDestroy_v2", self.0 => *mut c_void);
    }
}

/// o, dq, dk and dv of one sequence `[1, T, H, D]` with a decay per head, token by token in f64.
pub fn recurrence(q: &[f64], k: &[f64], v: &[f64], d_o: &[f64], g: &[f32], dim: usize) -> [Vec<f64>; 4] {
    let (heads, scale) = (g.len(), 1.0 / (dim as f64).sqrt());
    let tokens = q.len() / (heads * dim);
    let [mut o, mut dq, mut dk, mut dv] = [(); 4].map(|_| vec![0.0; q.len()]);
    for (h, g) in g.iter().enumerate() {
        let at = |t: usize, i: usize| (t * heads + h) * dim + i;
        let decay = f64::from(*g).exp();
        let (mut state, mut d_state) = (vec![0.0; dim * dim], vec![0.0; dim * dim]);
        for t in 0..tokens {
            for i in 0..dim {
                for j in 0..dim {
                    let s = &mut state[i * dim + j];
                    *s = decay * *s + k[at(t, i)] * v[at(t, j)];
                    o[at(t, j)] += scale * *s * q[at(t, i)];
                    dq[at(t, i)] += scale * *s * d_o[at(t, j)];
                }
            }
        }
        for t in (0..tokens).rev() {
            for i in 0..dim {
                for j in 0..dim {
                    let s = &mut d_state[i * dim + j];
                    *s += scale * q[at(t, i)] * d_o[at(t, j)];
                    dk[at(t, i)] += *s * v[at(t, j)];
                    dv[at(t, j)] += *s * k[at(t, i)];
                    *s *= decay;
                }
            }
        }
    }
    [o, dq, dk, dv]
}

/// The relative Frobenius norm of a difference; infinite where a value is not a number.
pub fn error_of(actual: impl IntoIterator<Item = f64>, expected: &[f64]) -> f64 {
    let (mut wrong, mut size, mut count) = (0.0, 0.0, 0);
    for (actual, expected) in actual.into_iter().zip(expected) {
        wrong += (actual - expected).powi(2);
        size += expected.powi(2);
        count += 1;
    }
    let error = (wrong / size).sqrt();
    if count == expected.len() && !error.is_nan() {
        error
    } else {
        f64::INFINITY
    }
}
