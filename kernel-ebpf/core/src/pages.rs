//! The safe face of the program that reads accessed bits.
#![allow(unsafe_code)]

use std::{
    collections::BTreeMap,
    fs,
    io::{self, ErrorKind, Read},
    mem::{self, MaybeUninit},
    ops, ptr,
};

use libbpf_rs::{
    OpenObject, ProgramInput,
    skel::{OpenSkel, SkelBuilder},
};
use skeleton::{PagesSkel, PagesSkelBuilder, types::block_record};

use crate::{
    PageBits, VmaError,
    iter::{ESRCH, open},
};

mod skeleton {
    #![allow(missing_docs, unsafe_code, clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
    include!(concat!(env!("OUT_DIR"), "/pages.skel.rs"));
}

const RECORD: usize = size_of::<block_record>();
/// Blocks of one pass: what the kernel's buffer of eight pages holds of one VMA.
const PASS: u64 = 448;
const BLOCK: u64 = 2 << 20;

/// Reads which pages of a process have been accessed since their accessed bits were taken away.
pub struct AccessedPages {
    skeleton: PagesSkel<'static>,
    buffer: Vec<u8>,
}

impl AccessedPages {
    /// Loads the program. Made once and kept, as [`crate::VmaIter::new`].
    ///
    /// # Errors
    /// [`VmaError::Load`]; [`VmaError::NoSymbol`] where the machine is no x86-64, among others.
    pub fn new() -> Result<Self, VmaError> {
        let place: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let opened = PagesSkelBuilder::default().open(place).map_err(VmaError::Load)?;
        let mut skeleton = opened.load().map_err(VmaError::Load)?;
        let found = skeleton.progs.find_offset.test_run(ProgramInput::default()).map_err(VmaError::Load)?;
        if found.return_value != 0 {
            return Err(VmaError::NoSymbol("page_offset_base"));
        }
        if let Some(data) = &mut skeleton.maps.bss_data {
            data.five_levels = i32::from(five_levels(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()));
        }
        Ok(Self { skeleton, buffer: vec![0; PASS as usize * RECORD] })
    }

    /// Adds which pages of the blocks (address / 2 MiB) of `tgid` were accessed; blocks without any, and huge pages, are
    /// left out. A process that is gone has none.
    ///
    /// # Errors
    /// [`VmaError::Read`]; `found` has what was read before.
    pub fn read(
        &mut self,
        tgid: u32,
        blocks: ops::Range<u64>,
        found: &mut BTreeMap<u64, PageBits>,
    ) -> Result<(), VmaError> {
        for first in blocks.clone().step_by(PASS as usize) {
            let pass = first..blocks.end.min(first + PASS);
            match self.pass(tgid, pass, found) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(ESRCH) => return Ok(()),
                Err(source) => return Err(VmaError::Read { tgid, source }),
            }
        }
        Ok(())
    }

    fn pass(&mut self, tgid: u32, blocks: ops::Range<u64>, found: &mut BTreeMap<u64, PageBits>) -> io::Result<()> {
        let data = self.skeleton.maps.bss_data.as_mut().ok_or(ErrorKind::Unsupported)?;
        data.wanted_tgid = tgid.cast_signed();
        (data.wanted_start, data.wanted_end) = (blocks.start * BLOCK, blocks.end * BLOCK);
        let mut iterator = open(&self.skeleton.progs.accessed_pages, tgid)?;
        let mut filled = 0;
        loop {
            match iterator.read(&mut self.buffer[filled..]) {
                Ok(0) => return Ok(()),
                Ok(bytes) => filled += bytes,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => continue,
                Err(error) => return Err(error),
            }
            let whole = filled - filled % RECORD;
            let mut more = whole == 0;
            for record in self.buffer[..whole].chunks_exact(RECORD).map(record) {
                // Two VMAs can share a block, and the kernel can give a VMA twice.
                let bits = found.entry(record.block).or_default();
                let before = *bits;
                bits.iter_mut().zip(record.accessed).for_each(|(bits, seen)| *bits |= seen);
                more |= *bits != before;
            }
            if !more {
                return Ok(());
            }
            self.buffer.copy_within(whole..filled, 0);
            filled -= whole;
        }
    }
}

/// Whether the kernel uses five levels of page tables: the flag is the processor's and the kernel's at once.
fn five_levels(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_ascii_whitespace().any(|flag| flag == "la57"))
}

fn record(bytes: &[u8]) -> block_record {
    // SAFETY: `RECORD` bytes (the caller's chunks), and the type is integers alone.
    unsafe { ptr::read_unaligned(bytes.as_ptr().cast()) }
}

const _: () = assert!(mem::size_of::<block_record>() == 72);

#[cfg(test)]
mod tests {
    use super::five_levels;

    #[test]
    fn five_levels_are_a_flag_of_the_processor() {
        assert!(five_levels("processor\t: 0\nflags\t\t: fpu la57 rdpid\n"));
        assert!(!five_levels("flags\t\t: fpu la577 rdpid\nbugs\t\t: la57\n"));
        assert!(!five_levels(""));
    }
}
