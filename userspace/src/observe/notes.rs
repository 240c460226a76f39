//! The USDT notes of a binary, and whether perf finds the right addresses for them.
//!
//! perf takes a probe's file offset from the note and the section `.stapsdt.base` alone. That is right where every segment
//! keeps the same distance between address and offset, as GNU ld and gold lay binaries out, and wrong by 0x1000 under
//! rust-lld: perf would then write a breakpoint into the middle of unrelated instructions.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use object::{
    Endianness,
    elf::{FileHeader64, PF_X},
    read::elf::{FileHeader, ProgramHeader, SectionHeader},
};

/// The note type of version 3, the only one in use.
const NT_STAPSDT: u32 = 3;

/// One probe in a binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Who provides it.
    pub provider: String,
    /// Its name.
    pub name: String,
    /// Its arguments as the assembler named them, such as `-8@%rcx`.
    pub arguments: Vec<String>,
    /// Where the probe's instruction lies in the file; `None` where no executable segment holds it.
    pub offset: Option<u64>,
    /// Where perf looks for it.
    pub perf_offset: u64,
    /// Address of its semaphore; 0 where it has none.
    pub semaphore: u64,
}

impl Note {
    /// Whether a breakpoint that perf sets is on the probe.
    pub fn perf_agrees(&self) -> bool {
        self.offset == Some(self.perf_offset)
    }
}

/// Why a binary's notes could not be read.
#[derive(Debug, thiserror::Error)]
pub enum NotesError {
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The binary.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is not a 64-bit ELF file, or its tables do not fit together.
    #[error("{} is no ELF file with readable notes: {reason}", path.display())]
    Elf {
        /// The binary.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
}

/// The USDT notes of the binary at `path`, in the file's order.
///
/// # Errors
/// [`NotesError`]. A binary without probes is no error.
pub fn read(path: &Path) -> Result<Vec<Note>, NotesError> {
    let data = fs::read(path).map_err(|source| NotesError::Read { path: path.to_owned(), source })?;
    parse(&data).map_err(|reason| NotesError::Elf { path: path.to_owned(), reason })
}

fn parse(data: &[u8]) -> Result<Vec<Note>, String> {
    let said = |error: object::read::Error| error.to_string();
    let header = FileHeader64::<Endianness>::parse(data).map_err(said)?;
    let endian = header.endian().map_err(said)?;
    let segments = header.program_headers(endian, data).map_err(said)?;
    let sections = header.sections(endian, data).map_err(said)?;
    let base = sections.section_by_name(endian, b".stapsdt.base").map(|(_, section)| section.sh_offset(endian));
    let offset = |address: u64| {
        let holds = |segment: &&object::elf::ProgramHeader64<Endianness>| {
            let within = address.checked_sub(segment.p_vaddr(endian)).is_some_and(|at| at < segment.p_filesz(endian));
            segment.p_flags(endian) & PF_X != 0 && within
        };
        let segment = segments.iter().find(holds)?;
        Some(address - segment.p_vaddr(endian) + segment.p_offset(endian))
    };
    let mut found = Vec::new();
    for section in sections.iter() {
        let Some(mut notes) = section.notes(endian, data).map_err(said)? else { continue };
        while let Some(note) = notes.next().map_err(said)? {
            if note.name() != b"stapsdt" || note.n_type(endian) != NT_STAPSDT {
                continue;
            }
            let Description { pc, base: linked, semaphore, provider, name, arguments } =
                describe(note.desc()).ok_or("a stapsdt note is too short")?;
            // perf does not adjust where a binary has no base.
            let perf_offset = base.map_or(pc, |base| pc.wrapping_add(base).wrapping_sub(linked));
            found.push(Note { provider, name, arguments, offset: offset(pc), perf_offset, semaphore });
        }
    }
    Ok(found)
}

struct Description {
    pc: u64,
    base: u64,
    semaphore: u64,
    provider: String,
    name: String,
    arguments: Vec<String>,
}

/// Three addresses, then provider, name and arguments, each ended by a zero byte.
fn describe(note: &[u8]) -> Option<Description> {
    let (addresses, text) = note.split_at_checked(24)?;
    let mut addresses = addresses.chunks_exact(8).map(|bytes| bytes.try_into().map(u64::from_ne_bytes));
    let mut address = || addresses.next()?.ok();
    let mut words = text.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    Some(Description {
        pc: address()?,
        base: address()?,
        semaphore: address()?,
        provider: words.next()?,
        name: words.next()?,
        arguments: words.next()?.split_whitespace().map(str::to_owned).collect(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_binary_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "#!/bin/sh\n").unwrap();
        let said = read(file.path()).unwrap_err().to_string();
        assert!(said.contains(file.path().to_str().unwrap()), "{said}");
        assert!(read(Path::new("/nonexistent")).is_err());
        assert!(describe(&[0; 23]).is_none() && describe(&[0; 24]).is_none());
    }

    proptest! {
        #[test]
        fn a_damaged_binary_is_read_or_refused(at in 0usize..4096, byte in any::<u8>(), cut in 64usize..8192) {
            let mut data = fs::read("/bin/true").unwrap();
            data.truncate(cut.max(at + 1));
            data[at] = byte;
            let _ = parse(&data);
        }
    }
}
