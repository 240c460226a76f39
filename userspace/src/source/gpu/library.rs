//! The CUDA libraries that a process has mapped, and where their functions lie.
//!
//! A library is told by its file's name and opened through `/proc/PID/map_files`: that is the very file which is mapped,
//! in whatever mount namespace, and though it was deleted or replaced since. It is the job's own, so its tables are
//! believed only as far as they fit: what a wrong one costs is a probe in that very file.

use std::{collections::BTreeMap, fs::File, io, path::PathBuf};

use object::{
    Endianness, ReadCache,
    elf::{FileHeader64, PF_X, SHT_DYNSYM, STT_FUNC},
    read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym},
};
use tensortier_abi::gpu::call;

use crate::units::Pid;

/// A file with more sections is none of these libraries.
const MAX_SECTIONS: usize = 4096;
/// Nor is one with larger tables of symbols or of their names; the driver's take less than a tenth.
const MAX_TABLE: u64 = 4 << 20;
/// Libraries of one process.
const MAX_LIBRARIES: usize = 8;

/// The driver's functions. `_ptds` and `_ptsz` are those of programs compiled for a default stream of each thread.
const DRIVER: [(&str, u64); 18] = [
    ("cuMemcpyHtoD_v2", call::TO_DEVICE),
    ("cuMemcpyHtoD_v2_ptds", call::TO_DEVICE),
    ("cuMemcpyHtoDAsync_v2", call::TO_DEVICE),
    ("cuMemcpyHtoDAsync_v2_ptsz", call::TO_DEVICE),
    ("cuMemcpyDtoH_v2", call::TO_HOST),
    ("cuMemcpyDtoH_v2_ptds", call::TO_HOST),
    ("cuMemcpyDtoHAsync_v2", call::TO_HOST),
    ("cuMemcpyDtoHAsync_v2_ptsz", call::TO_HOST),
    ("cuMemcpy", call::COPY),
    ("cuMemcpy_ptds", call::COPY),
    ("cuMemcpyAsync", call::COPY),
    ("cuMemcpyAsync_ptsz", call::COPY),
    ("cuMemHostRegister_v2", call::REGISTER),
    ("cuMemHostRegister", call::REGISTER),
    ("cuMemHostAlloc", call::ALLOCATE),
    ("cuMemAllocHost_v2", call::ALLOCATE),
    ("cuMemHostUnregister", call::RELEASE),
    ("cuMemFreeHost", call::RELEASE),
];

/// The runtime library's functions.
const RUNTIME: [(&str, u64); 9] = [
    ("cudaMemcpy", call::RUNTIME_COPY),
    ("cudaMemcpy_ptds", call::RUNTIME_COPY),
    ("cudaMemcpyAsync", call::RUNTIME_COPY),
    ("cudaMemcpyAsync_ptsz", call::RUNTIME_COPY),
    ("cudaHostRegister", call::REGISTER),
    ("cudaHostAlloc", call::ALLOCATE),
    ("cudaMallocHost", call::ALLOCATE),
    ("cudaHostUnregister", call::RELEASE),
    ("cudaFreeHost", call::RELEASE),
];

/// What tells two files apart: device and inode, as the kernel names them in `maps`.
pub(super) type FileId = (String, u64);

/// A CUDA library as a process has it mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Library {
    pub id: FileId,
    /// Its file's name, for people.
    pub name: String,
    /// Where it can be opened as long as the process has it.
    pub path: PathBuf,
    functions: &'static [(&'static str, u64)],
}

/// A function of a library: its name, its place in the file, and its form ([`call`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub name: &'static str,
    pub offset: u64,
    pub form: u64,
}

/// The CUDA libraries in the text of a process's `maps`.
pub(super) fn mapped(pid: Pid, maps: &str) -> Vec<Library> {
    let mut found: BTreeMap<FileId, Library> = BTreeMap::new();
    for library in maps.lines().filter_map(|line| mapping(pid, line)) {
        if found.len() < MAX_LIBRARIES {
            found.entry(library.id.clone()).or_insert(library);
        }
    }
    found.into_values().collect()
}

/// An executable mapping of a CUDA library.
fn mapping(pid: Pid, line: &str) -> Option<Library> {
    let mut fields = line.splitn(6, ' ');
    let (range, rights) = (fields.next()?, fields.next()?);
    let (_offset, device, inode) = (fields.next()?, fields.next()?, fields.next()?.parse().ok()?);
    let path = fields.next()?.trim_start_matches(' ');
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let name = path.strip_prefix('/')?.rsplit('/').next()?;
    let functions: &[_] = match name {
        _ if name.starts_with("libcuda.so") => &DRIVER,
        // Wheels put a hash between: libcudart-d0da41ae.so.11.0.
        _ if name.starts_with("libcudart") && name.contains(".so") => &RUNTIME,
        _ => return None,
    };
    // Its ends name the file; a text of another form would name another one.
    let plain = |end: &str| !end.is_empty() && end.bytes().all(|byte| byte.is_ascii_hexdigit());
    range.split_once('-').filter(|(start, end)| plain(start) && plain(end))?;
    let executable = rights.as_bytes().get(2) == Some(&b'x');
    executable.then(|| Library {
        id: (device.to_owned(), inode),
        name: name.to_owned(),
        path: format!("/proc/{pid}/map_files/{range}").into(),
        functions,
    })
}

impl Library {
    /// Those of its functions that it has.
    ///
    /// # Errors
    /// It cannot be read, or is no such library.
    pub fn functions(&self) -> io::Result<Vec<Function>> {
        functions(File::open(&self.path)?, self.functions)
    }
}

fn functions(file: File, wanted: &[(&'static str, u64)]) -> io::Result<Vec<Function>> {
    let said = |error: object::read::Error| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
    let large = || io::Error::new(io::ErrorKind::InvalidData, "its tables are larger than any CUDA library's");
    let data = &ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(data).map_err(said)?;
    let endian = header.endian().map_err(said)?;
    if header.shnum(endian, data).map_err(said)? > MAX_SECTIONS {
        return Err(large());
    }
    let segments = header.program_headers(endian, data).map_err(said)?;
    let sections = header.sections(endian, data).map_err(said)?;
    let tables = || sections.iter().filter(|section| section.sh_type(endian) == SHT_DYNSYM);
    let names = tables().filter_map(|table| sections.section(table.link(endian)).ok());
    if tables().chain(names).any(|table| table.sh_size(endian) > MAX_TABLE) {
        return Err(large());
    }
    let symbols = sections.symbols(endian, data, SHT_DYNSYM).map_err(said)?;
    let mut found = Vec::new();
    for symbol in symbols.iter().filter(|symbol| symbol.st_type() == STT_FUNC && !symbol.is_undefined(endian)) {
        let Ok(name) = symbol.name(endian, symbols.strings()) else { continue };
        let Some(&(name, form)) = wanted.iter().find(|(wanted, _)| wanted.as_bytes() == name) else { continue };
        let address = symbol.st_value(endian);
        let within = segments.iter().filter(|segment| segment.p_flags(endian) & PF_X != 0).find_map(|segment| {
            let inside = address.checked_sub(segment.p_vaddr(endian))?;
            (inside < segment.p_filesz(endian)).then(|| segment.p_offset(endian).checked_add(inside))?
        });
        found.extend(within.map(|offset| Function { name, offset, form }));
    }
    // Two names of one place are one function.
    found.sort_by_key(|function| function.offset);
    found.dedup_by_key(|function| function.offset);
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{io::Write, os::unix::fs::FileExt};

    use proptest::prelude::*;

    use super::*;

    const MAPS: &str = "\
7f0000000000-7f0000001000 r--p 00000000 08:01 11                         /usr/lib/libcuda.so.550.54
7f0000001000-7f0000009000 r-xp 00001000 08:01 11                         /usr/lib/libcuda.so.550.54
7f0000010000-7f0000019000 r-xp 00001000 08:01 11                         /usr/lib/libcuda.so.550.54
7f0000020000-7f0000029000 r-xp 00001000 00:2a 12                         /a b/libcudart-d0da41ae.so.11.0 (deleted)
7f0000030000-7f0000039000 r-xp 00001000 08:01 13                         /usr/lib/libcudadebugger.so.1
7f0000040000-7f0000049000 r-xp 00001000 08:01 14                         /tmp/libcuda.so.1/libc.so.6
7f0000050000-7f0000051000 r--p 00001000 08:01 15                         /tmp/libcudart.so.12
7f0000060000-7f0000061000 r-xp 00000000 00:00 0                          [vdso]
";

    #[test]
    fn libraries_are_told_by_their_files_names_once_each() {
        let found = mapped(Pid(7), MAPS);
        let told: Vec<_> = found.iter().map(|one| (one.name.as_str(), one.path.to_str().unwrap(), one.id.1)).collect();
        let expected = [
            ("libcudart-d0da41ae.so.11.0", "/proc/7/map_files/7f0000020000-7f0000029000", 12),
            ("libcuda.so.550.54", "/proc/7/map_files/7f0000001000-7f0000009000", 11),
        ];
        assert_eq!(told, expected);
        assert_eq!((found[0].functions, found[1].functions), (&RUNTIME[..], &DRIVER[..]));
        let many: String = (0..100).map(|n| format!("1{n:x}-2{n:x} r-xp 0 08:01 {n} /libcuda.so.{n}\n")).collect();
        assert_eq!(mapped(Pid(7), &many).len(), MAX_LIBRARIES);
        assert_eq!(mapped(Pid(7), "../../1-2 r-xp 0 08:01 1 /libcuda.so\n"), []);
    }

    #[test]
    fn functions_are_found_where_they_lie_in_the_file() {
        let me = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = me.lines().find(|line| line.ends_with("libc.so.6")).unwrap().rsplit(' ').next().unwrap();
        let found = functions(File::open(libc).unwrap(), &[("getpid", 9), ("no such", 8), ("qsort", 7)]).unwrap();
        let forms: Vec<_> = found.iter().map(|one| one.form).collect();
        assert!(forms.len() == 2 && forms.contains(&9) && forms.contains(&7), "{found:?}");
        let bytes = std::fs::read(libc).unwrap();
        let at = found.iter().find(|one| one.name == "getpid").unwrap().offset as usize;
        let mut code = [0; 8];
        let address = libc::getpid as *const () as u64;
        File::open("/proc/self/mem").unwrap().read_exact_at(&mut code, address).unwrap();
        assert_eq!(bytes[at..at + 8], code, "the file has there what the memory has");
    }

    fn of_bytes(bytes: &[u8]) -> io::Result<Vec<Function>> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        functions(file, &DRIVER)
    }

    #[test]
    fn a_file_that_claims_more_than_it_has_is_an_error() {
        let mut program = std::fs::read("/bin/true").unwrap();
        assert_eq!(of_bytes(&program).unwrap(), [], "it has no such functions");
        assert!(of_bytes(b"").is_err() && of_bytes(b"\x7fELF").is_err());
        // e_shnum and e_shoff.
        program[60..62].copy_from_slice(&5000u16.to_le_bytes());
        assert!(of_bytes(&program).is_err());
        program[60..62].copy_from_slice(&30u16.to_le_bytes());
        program[40..48].copy_from_slice(&(u64::MAX - 7).to_le_bytes());
        assert!(of_bytes(&program).is_err());
    }

    proptest! {
        #[test]
        fn hostile_texts_and_files_are_no_panic(
            text in "(?s).{0,200}",
            cut in 0usize..40_000,
            at in 0usize..40_000,
            noise in prop::collection::vec(any::<u8>(), 1..64),
        ) {
            mapped(Pid(1), &text);
            let mut program = std::fs::read("/bin/true").unwrap();
            program.truncate(cut);
            let end = program.len().min(at + noise.len());
            if at < end {
                program[at..end].copy_from_slice(&noise[..end - at]);
            }
            drop(of_bytes(&program));
        }
    }
}
