//! The bridge under an unmodified CUDA program.
//!
//! ```text
//! LD_PRELOAD=lib  hooks.rs    the driver's names, for programs that are linked with it; nothing unwinds out of them
//! LD_AUDIT=lib    audit.rs    what dlsym finds in libcuda leads to hooks.rs too; so does what cuGetProcAddress answers
//!                 state.rs    what is taken over and what goes to the driver untouched
//!                   copy.rs     large pageable copies, in chunks through a registered ring, on the program's stream
//!                   pinned.rs   pinned host memory, from the bridge's pool on the GPU's node
//!                   agent.rs    what was copied, for the agent; where memory lies, from it
//!                 driver.rs   the program's own driver · sys.rs: the kernel's calls · counts.rs: what was done
//! ```
//!
//! **Why both.** The least that can be done is to audit: the dynamic linker asks at each binding where it shall lead, be
//! it by the linker or by `dlsym`, and no symbol is shadowed. That was tried first and does not reach far enough: auditors
//! are asked about calls, not about functions whose address a linked program takes, and memory that one allocates must not
//! be freed by the other. So the few names are exported as well. `dlsym` itself stays libc's own: a wrapper of it changes
//! what `RTLD_NEXT` means to its callers, and auditing tells of it what is needed. An auditor lives in a linker namespace
//! of its own, with a libc of its own, where a program's threads and allocations do not belong; so it only leads into the
//! second copy of the same file, which `LD_PRELOAD` puts beside the program.
//!
//! **Rule.** Whatever is not surely the same for the program goes to the driver untouched: small copies, copies during
//! any stream capture, managed, device and registered memory, ranges that are not within one device allocation, host
//! memory that is not mapped, peers, default streams of one thread (`_ptds`), drivers before 12.0, children of `fork`.
//! A copy that is taken over ends before the call returns, so its source is captured; where the API allows an earlier
//! return, that is allowed and not promised. A fault of ours (a panic) ends all taking over in that process.
//!
//! **What differs.** A large pageable copy may overlap another thread's where the driver would have one wait. Memory that
//! a program may not read (`PROT_NONE`) or write faults in the program, as with a driver that copies by the CPU. Rings
//! and pinned memory of a context that is destroyed stay mapped to the end of the process.

mod agent;
mod audit;
mod copy;
mod counts;
mod driver;
mod hooks;
mod pinned;
mod state;
mod sys;

#[cfg(test)]
mod tests;
