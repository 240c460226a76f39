//! What this machine's own threads copy: what modelled links are set beside.

use std::{
    hint::black_box,
    panic::resume_unwind,
    thread::{self, ScopedJoinHandle},
    time::Instant,
};

/// Bytes that a copy at a wrong place would change.
pub fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect()
}

/// Bytes per second that a thread copies, `bytes` at a time: more than a cache holds.
pub fn memcpy(bytes: usize) -> f64 {
    let (from, mut to) = (pattern(bytes), vec![1_u8; bytes]);
    let began = Instant::now();
    for _ in 0..3 {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
    }
    3.0 * bytes as f64 / began.elapsed().as_secs_f64()
}

/// What two threads copy together.
pub fn memcpy_by_two(bytes: usize) -> f64 {
    thread::scope(|scope| [(); 2].map(|()| scope.spawn(|| memcpy(bytes))).into_iter().map(joined).sum())
}

fn joined(thread: ScopedJoinHandle<'_, f64>) -> f64 {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}
