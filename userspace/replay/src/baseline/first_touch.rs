//! Modelled after the kernel without tiering: memory is where it was first touched.
//!
//! **Rule.** A new page comes from the nearest node with free memory, DRAM first (the kernel's default memory policy,
//! `Documentation/admin-guide/mm/numa_memory_policy.rst`). Nothing moves.

use crate::policy::{Move, Policy, View};

/// Never moves anything.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstTouch;

impl Policy for FirstTouch {
    fn name(&self) -> String {
        "first touch".into()
    }

    fn decide(&mut self, _: &View) -> Vec<Move> {
        Vec::new()
    }
}
