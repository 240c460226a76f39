//! What was taken over and what was not, for whoever asks the library while the program runs.

use std::sync::atomic::{AtomicU64, Ordering};

/// Declares the counters with their names, in the order in which they are handed out.
macro_rules! counts {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Counters of this process; they only rise.
        #[derive(Debug, Default)]
        pub struct Counts {
            $($(#[doc = $doc])* pub $name: AtomicU64,)*
        }

        impl Counts {
            /// All, in the order of their declaration.
            pub fn all(&self) -> Vec<u64> {
                vec![$(self.$name.load(Ordering::Relaxed)),*]
            }
        }
    };
}

counts! {
    /// Copies through the ring.
    staged_copies,
    /// Their bytes.
    staged_bytes,
    /// Large copies that went to the driver: memory that it knows already.
    passed_known,
    /// … a stream capture is under way.
    passed_capturing,
    /// … another thread's copy had the ring.
    passed_busy,
    /// … no ring: no context, an old driver, no room, no threads.
    passed_no_ring,
    /// … ranges that are not surely valid.
    passed_unsure,
    /// … the driver refused the first chunk.
    passed_refused,
    /// Copies that failed on their way; the program got the driver's code.
    failed_copies,
    /// Pinned allocations from the pool.
    pooled_allocations,
    /// Their bytes.
    pooled_bytes,
    /// Those that went to the driver, small ones apart.
    passed_allocations,
    /// Addresses of ours that `cuGetProcAddress` gave out.
    given_addresses,
    /// Copies through the ring that the agent was not told of: too many at once, or no thread.
    untold_copies,
    /// Panics; with the first the process is left alone.
    panics,
}

/// Adds to a counter.
pub fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
