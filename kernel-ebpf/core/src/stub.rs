//! What a build without clang has instead of the iterators.

use std::collections::BTreeMap;

use crate::{PageBits, Vma, VmaError};

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

/// Cannot be made: the binary has no programs.
#[derive(Debug)]
pub enum AccessedPages {}

impl AccessedPages {
    /// # Errors
    /// Always [`VmaError::BuiltWithout`], with the reason.
    pub fn new() -> Result<Self, VmaError> {
        Err(VmaError::BuiltWithout(env!("TENSORTIER_CORE_MISSING")))
    }

    /// # Errors
    /// Never called: there is no value of this type.
    pub fn read(
        &mut self,
        _tgid: u32,
        _blocks: std::ops::Range<u64>,
        _found: &mut BTreeMap<u64, PageBits>,
    ) -> Result<(), VmaError> {
        match *self {}
    }
}
