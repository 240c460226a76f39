//! The VMA iterator's safe face. libbpf-rs opens iterators over maps and cgroups, not over one task: that one call is
//! made here.
#![allow(unsafe_code)]

use std::{
    fs::File,
    io::{self, ErrorKind, Read},
    mem::{self, MaybeUninit},
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    ptr,
};

use libbpf_rs::{
    OpenObject, libbpf_sys,
    skel::{OpenSkel, SkelBuilder},
};
use skeleton::{VmaIterSkel, VmaIterSkelBuilder, types::vma_record};

use crate::{Vma, VmaError, VmaKind};

mod skeleton {
    #![allow(missing_docs, unsafe_code, clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
    include!(concat!(env!("OUT_DIR"), "/vma_iter.skel.rs"));
}

const RECORD: usize = size_of::<vma_record>();

/// Reads the VMAs of processes in one pass each, without formatting or parsing text.
pub struct VmaIter {
    skeleton: VmaIterSkel<'static>,
    buffer: Vec<u8>,
}

impl VmaIter {
    /// Loads the program. Made once and kept: libbpf wants a place for its object that outlives it, and that place, a
    /// few words, is never given back.
    ///
    /// # Errors
    /// [`VmaError::Load`].
    pub fn new() -> Result<Self, VmaError> {
        let place: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let opened = VmaIterSkelBuilder::default().open(place).map_err(VmaError::Load)?;
        let skeleton = opened.load().map_err(VmaError::Load)?;
        Ok(Self { skeleton, buffer: vec![0; 512 * RECORD] })
    }

    /// Appends the VMAs of `tgid`, ordered by address. A process that is gone has none.
    ///
    /// # Errors
    /// [`VmaError::Read`], with [`ErrorKind::InvalidData`] where one grew between two reads; `vmas` has those before.
    pub fn read(&mut self, tgid: u32, vmas: &mut Vec<Vma>) -> Result<(), VmaError> {
        let failed = |source| VmaError::Read { tgid, source };
        match &mut self.skeleton.maps.bss_data {
            Some(data) => data.wanted_tgid = tgid.cast_signed(),
            None => return Err(failed(ErrorKind::Unsupported.into())),
        }
        let mut iterator = match self.open(tgid) {
            Ok(iterator) => iterator,
            Err(error) if error.raw_os_error() == Some(ESRCH) => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        let (mut filled, first) = (0, vmas.len());
        loop {
            match iterator.read(&mut self.buffer[filled..]) {
                Ok(0) => return Ok(()),
                Ok(bytes) => filled += bytes,
                // The kernel breaks off where it passed very many tasks that were not wanted.
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => continue,
                Err(error) => return Err(failed(error)),
            }
            let (before, whole) = (vmas.len(), filled - filled % RECORD);
            // Before each further read the kernel looks its place up again: it can give the last VMA twice, and where it
            // has given all, those since it last looked, over and over.
            for vma in self.buffer[..whole].chunks_exact(RECORD).map(vma) {
                match vmas[first..].last().map_or(0, |last| last.end) {
                    seen if vma.start >= seen => vmas.push(vma),
                    seen if vma.end <= seen => {}
                    _ => return Err(failed(ErrorKind::InvalidData.into())),
                }
            }
            if vmas.len() == before && whole > 0 {
                return Ok(());
            }
            self.buffer.copy_within(whole..filled, 0);
            filled -= whole;
        }
    }

    fn open(&self, tgid: u32) -> io::Result<File> {
        open(&self.skeleton.progs.vma_iter, tgid)
    }
}

/// An iterator of a loaded program over the VMAs of one process.
pub(crate) fn open(program: &impl AsFd, tgid: u32) -> io::Result<File> {
    let mut which = libbpf_sys::bpf_iter_link_info::default();
    which.task.tid = tgid;
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        iter_info: ptr::from_mut(&mut which),
        iter_info_len: size_of::<libbpf_sys::bpf_iter_link_info>() as _,
        ..Default::default()
    };
    let program = program.as_fd().as_raw_fd();
    // SAFETY: the descriptor is the loaded program's, `options` and what it points to outlive the call.
    let link = owned(unsafe { libbpf_sys::bpf_link_create(program, 0, libbpf_sys::BPF_TRACE_ITER, &options) })?;
    // SAFETY: a plain call on a descriptor that is open.
    let iterator = owned(unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) })?;
    Ok(File::from(iterator))
}

/// The process is gone.
pub(crate) const ESRCH: i32 = 3;

/// A descriptor that libbpf gave, or the negative errno that it gives instead.
fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the call just made it, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn vma(bytes: &[u8]) -> Vma {
    // SAFETY: `RECORD` bytes (the caller's chunks), and the type is integers alone.
    let record: vma_record = unsafe { ptr::read_unaligned(bytes.as_ptr().cast()) };
    Vma {
        start: record.start,
        end: record.end,
        flags: record.flags,
        kind: match record.kind {
            0 => VmaKind::Anon,
            1 => VmaKind::Shmem,
            3 => VmaKind::Hugetlb,
            _ => VmaKind::File,
        },
        dev: (record.dev >> 20, record.dev & 0xf_ffff),
        inode: record.inode,
    }
}

const _: () = assert!(mem::size_of::<vma_record>() == 40);
