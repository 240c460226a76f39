//! Sizes: what a request is rounded to. Ours; the bound on waste is [`MAX_WASTE`].

use tensortier_model::Bytes;

/// The base page. Larger base pages (arm64) are multiples of it that `mmap` rounds to by itself.
pub const PAGE: Bytes = 4096;
/// A huge page of x86-64 and the granule of device-dax.
pub const HUGE: Bytes = 2 << 20;
/// Objects up to this size live in slabs.
pub const SLAB_MAX: Bytes = 32 << 10;
/// Objects above this size begin at a multiple of [`HUGE`].
pub const ALIGN_ABOVE: Bytes = 32 << 20;
/// Largest object: what x86-64 addresses with four levels.
pub const MAX: Bytes = 1 << 47;
/// Rounding adds less than this share of the request, or less than [`QUANTUM`] bytes.
pub const MAX_WASTE: f64 = 0.125;
/// The least step between sizes: a cache line.
pub const QUANTUM: Bytes = 64;

/// What `bytes` take: eight classes to each doubling up to [`SLAB_MAX`], whole pages above.
pub fn rounded(bytes: Bytes) -> Bytes {
    if bytes > SLAB_MAX {
        return bytes.next_multiple_of(PAGE);
    }
    let step = (1 << bytes.max(1).ilog2()) / 8;
    bytes.next_multiple_of(step.max(QUANTUM))
}

/// What an object of `bytes` above [`SLAB_MAX`] begins at a multiple of; one below does at a multiple of its size.
pub fn alignment(bytes: Bytes) -> Bytes {
    if bytes > ALIGN_ABOVE { HUGE } else { PAGE }
}

/// Bytes of a slab of objects of `size`: 32 of them, between a page and 256 KiB.
pub fn slab(size: Bytes) -> Bytes {
    (size * 32).clamp(PAGE, 64 * PAGE).next_multiple_of(PAGE)
}

/// Bytes to map when a region that has `reserved` needs `need` more: a sixteenth of what it has, so that a half-used
/// last extent stays a small share, and few extents for a large region; exactly `need` for a large object. A whole number
/// of `need`, since objects of one size come in rows: what is left over beside them would lie idle.
pub fn growth(reserved: Bytes, need: Bytes) -> Bytes {
    if need > ALIGN_ABOVE {
        return need;
    }
    let want = (reserved / 16).next_multiple_of(HUGE).clamp(HUGE, ALIGN_ABOVE);
    need * (want / need.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rounding_is_small(bytes in prop_oneof![1..=SLAB_MAX, 1..=MAX]) {
            let size = rounded(bytes);
            let waste = size - bytes;
            prop_assert!(waste < QUANTUM || (waste as f64) < bytes as f64 * MAX_WASTE, "{bytes} takes {size}");
            prop_assert_eq!(rounded(size), size);
            prop_assert!(bytes < 1 << 20 || waste as f64 <= bytes as f64 * 0.004);
        }

        #[test]
        fn slabs_are_nearly_full(bytes in 1..=SLAB_MAX) {
            let size = rounded(bytes);
            prop_assert!(slab(size) % size <= slab(size) / 8);
        }
    }

    #[test]
    fn no_power_of_two() {
        assert_eq!(rounded((4 << 30) + 1), (4 << 30) + PAGE);
        assert_eq!(rounded(33 << 10), 36 << 10);
        assert_eq!(rounded(17 << 10), 18 << 10);
    }
}
