//! Raw bindings to liblasp, as bindgen reads them out of `lasp/lasp.h`; the comments are the header's. The crate
//! `lasp` is the safe interface on top.
//!
//! Enumerations are plain `i32` constants, as in the header. The header's INIT macros are constants of the same
//! names. Links `liblasp.so`, found by `LASP_LIB_DIR` or pkg-config; with the feature `load` it links nothing, and looks
//! for the library when the first function is called.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags, rustdoc::bare_urls)]

#[cfg(not(any(feature = "generate", feature = "load")))]
#[path = "bindings.rs"]
#[rustfmt::skip]
mod bindings;

#[cfg(all(feature = "generate", not(feature = "load")))]
#[allow(clippy::all)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

#[cfg(feature = "load")]
#[allow(clippy::all)]
#[rustfmt::skip]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/loaded.rs"));
}

mod init;
#[cfg(feature = "load")]
mod load;

pub use bindings::*;
pub use init::*;
#[cfg(feature = "load")]
pub use load::load;
