//! Everything about `lasp` that needs the library, in one program.
mod bad_input;
mod caches;
mod conformance;
mod gradients;
mod helpers;
mod json;
mod layouts;
mod npy;
mod ownership;
mod ranks;
mod run;
mod stages;
mod step;
mod trace;
mod transport;
mod vectors;
