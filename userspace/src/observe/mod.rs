//! What happened, for people and machines.

pub mod arm;
pub mod counters;
pub mod damo;
pub mod notes;
pub mod progress;
pub mod prometheus;
pub mod record;
pub mod status;
pub mod summary;
mod text;
pub mod usdt;
