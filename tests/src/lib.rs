//! Guest tests, host-kernel tests, the exerciser and the benches of tensortier.
pub mod allocators;
pub mod arena;
pub mod bench;
pub mod calibrate;
pub mod copier;
pub mod daemon;
pub mod emulated;
pub mod emulator;
pub mod exerciser;
pub mod golden;
pub mod guest;
pub mod memcpy;
pub mod peers;
pub mod perf;
pub mod points;
pub mod scenario;
pub mod worker;
