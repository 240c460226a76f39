//! What a build without clang has instead of the iterator.

use crate::{Vma, VmaError};

/// Cannot be made: the binary has no programs.
#[derive(Debug)]
pub enum VmaIter {}

impl VmaIter {
    /// # Errors
    /// Always [`VmaError::BuiltWithout`], with the reason.
    pub fn new() -> Result<Self, VmaError> {
        Err(VmaError::BuiltWithout(env!("TENSORTIER_CORE_MISSING")))
    }

    /// # Errors
    /// Never called: there is no value of this type.
    pub fn read(&mut self, _tgid: u32, _vmas: &mut Vec<Vma>) -> Result<(), VmaError> {
        match *self {}
    }
}
