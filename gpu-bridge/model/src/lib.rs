//! Cost model of a training host: GPU, links and memory tiers as named profiles with
//! their sources, and a clock that is either real or virtual.
//!
//! The figures are data ([`Profiles::builtin`], `profiles/*.toml`) and can be replaced
//! from a file ([`Profiles::extend_from_file`]). [`Machine`] puts a GPU, its link and its
//! backing tiers together and answers how long an operator or a copy takes. Times are
//! nanoseconds, sizes bytes, rates bytes (or operations) per second everywhere.

mod clock;
mod machine;
mod profile;

pub use clock::{Clock, RealClock, VirtualClock};
pub use machine::{Machine, Tier};
pub use profile::{GpuProfile, LinkProfile, ProfileError, Profiles, TierKind, TierProfile};

/// A duration or an instant in nanoseconds.
pub type Nanos = u64;
/// A size in bytes.
pub type Bytes = u64;
