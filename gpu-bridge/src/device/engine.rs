//! A copy engine by the driver's calls: copies in one stream, their notes in another.
//!
//! A note in the stream of the copies would keep the engine from the next copy until the driver's thread has called back.
#![allow(unsafe_code)]

use std::{
    ffi::c_void,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use cudarc::driver::sys::{self, CUevent, CUresult, CUstream};
use tensortier_model::{Bytes, Clock, Nanos, RealClock};

use super::{
    cuda::{CudaError, check},
    threads::Ends,
};
use crate::pipeline::{Direction, Done};

/// What a callback needs.
struct Note {
    ends: Arc<Ends>,
    clock: Arc<RealClock>,
    before: Arc<AtomicU64>,
    id: u64,
    started: Nanos,
}

/// Runs in a thread of the driver's once the copy before it is over; calls nothing of CUDA.
unsafe extern "C" fn note(data: *mut c_void) {
    // SAFETY: `Engine::copy` made the box and gave it to this one call.
    let note = unsafe { Box::from_raw(data.cast::<Note>()) };
    let ended = note.clock.now();
    // The engine turned to it when the one before was over.
    let before = note.before.swap(ended, Ordering::SeqCst);
    note.ends.push(Done { id: note.id, began: note.started.max(before).min(ended), ended });
}

/// One engine.
#[derive(Debug)]
pub struct Engine {
    copies: CUstream,
    notes: CUstream,
    /// The last copy's end, which its note waits for.
    over: CUevent,
    /// When the last copy ended.
    ended: Arc<AtomicU64>,
    ends: Arc<Ends>,
    clock: Arc<RealClock>,
}

impl Engine {
    /// Has the driver make streams and event; ends of copies are pushed to `ends`.
    ///
    /// # Errors
    /// The driver's.
    pub fn make(ends: &Arc<Ends>, clock: &Arc<RealClock>) -> Result<Self, CudaError> {
        let (ends, clock, ended) = (Arc::clone(ends), Arc::clone(clock), Arc::default());
        // Dropped with what there is of it where the driver refuses the rest.
        let (copies, notes, over) = (stream()?, ptr::null_mut(), ptr::null_mut());
        let mut engine = Self { copies, notes, over, ended, ends, clock };
        engine.notes = stream()?;
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the driver writes a handle.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut engine.over, flags) })?;
        Ok(engine)
    }

    /// Begins a copy after those before it, of which `id` will be told.
    ///
    /// # Errors
    /// The driver's; nothing is under way then.
    ///
    /// # Safety
    /// Both ranges stay valid, and unused by others, until that end.
    pub unsafe fn copy(
        &self,
        id: u64,
        direction: Direction,
        host: u64,
        device: u64,
        bytes: Bytes,
    ) -> Result<(), CudaError> {
        let bytes = bytes as usize;
        let (call, code) = match direction {
            Direction::H2d => {
                // SAFETY: by the caller's promise.
                let code = unsafe { sys::cuMemcpyHtoDAsync_v2(device, host as *const c_void, bytes, self.copies) };
                ("cuMemcpyHtoDAsync", code)
            }
            Direction::D2h => {
                // SAFETY: as above.
                let code = unsafe { sys::cuMemcpyDtoHAsync_v2(host as *mut c_void, device, bytes, self.copies) };
                ("cuMemcpyDtoHAsync", code)
            }
        };
        check(call, code)?;
        let (ends, clock, before) = (Arc::clone(&self.ends), Arc::clone(&self.clock), Arc::clone(&self.ended));
        let noted = self.note(Note { ends, before, id, started: clock.now(), clock });
        if noted.is_err() {
            // SAFETY: a stream of ours. The copy must not be under way once this has failed.
            let _ = unsafe { sys::cuStreamSynchronize(self.copies) };
        }
        noted
    }

    fn note(&self, what: Note) -> Result<(), CudaError> {
        // SAFETY: streams and the event are ours. A wait is for the record before it, whatever is recorded later.
        unsafe {
            check("cuEventRecord", sys::cuEventRecord(self.over, self.copies))?;
            check("cuStreamWaitEvent", sys::cuStreamWaitEvent(self.notes, self.over, 0))?;
        }
        let data = Box::into_raw(Box::new(what)).cast::<c_void>();
        // SAFETY: the driver calls `note` once with `data`.
        let code: CUresult = unsafe { sys::cuLaunchHostFunc(self.notes, Some(note), data) };
        check("cuLaunchHostFunc", code).inspect_err(|_| {
            // SAFETY: it will not be called: the box is ours again.
            drop(unsafe { Box::from_raw(data.cast::<Note>()) });
        })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        end(self.copies);
        end(self.notes);
        if !self.over.is_null() {
            // SAFETY: an event of ours that nothing waits for any more.
            let _ = unsafe { sys::cuEventDestroy_v2(self.over) };
        }
    }
}

/// A stream that does not wait for the default one.
///
/// # Errors
/// The driver's.
pub fn stream() -> Result<CUstream, CudaError> {
    let mut stream = ptr::null_mut();
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: the driver writes a handle.
    check("cuStreamCreate", unsafe { sys::cuStreamCreate(&raw mut stream, flags) })?;
    Ok(stream)
}

/// Ends a stream of ours on which nothing runs any more.
pub fn end(stream: CUstream) {
    if !stream.is_null() {
        // SAFETY: by what it is for.
        let _ = unsafe { sys::cuStreamDestroy_v2(stream) };
    }
}
