//! What a device computes in tests and benches: a function of bytes whose every output byte hangs on every input byte.
//!
//! An operator of a real step needs its own kernel; this one stands for all of them where only time and data flow matter.
//! It reads whole tensors, writes whole tensors and takes a given time. So a tensor that was lost, is of an earlier
//! step or was overwritten changes everything computed after it. Ours:
//! * *checksum* of a tensor of words `w` (64 bits, little endian, zeros behind the end):
//!   `mix(length + Σ scramble(w[i] + (i + 1) · G))`;
//! * *key* of a run: `seed` and the checksums of what it reads, folded in order;
//! * word `i` of output `j`: `scramble(key + mix(j + 1) + (i + 1) · G)`.
//!
//! `scramble` is a bijection, so one changed word always changes a checksum, and sums have no order: many threads could
//! take part.

use tensortier_model::{Bytes, Nanos};

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const ODD: u64 = 0xd6e8_feb8_6659_fd93;
const WORD: usize = 8;

/// A part of device memory: address and bytes.
pub type Range = (u64, Bytes);

/// A tensor's parts, in the order of its bytes.
pub type Ranges = Vec<Range>;

/// One run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// What is computed: runs of equal seed and inputs have equal outputs.
    pub seed: u64,
    /// Time from begin to end.
    pub time: Nanos,
    /// Tensors it reads. One that it also writes is read first.
    pub reads: Vec<Ranges>,
    /// Tensors it writes, whole.
    pub writes: Vec<Ranges>,
}

/// Where a kernel's bytes are.
pub trait Memory {
    /// A part, to read.
    fn read(&self, range: Range) -> &[u8];
    /// A part, to write.
    fn write(&mut self, range: Range) -> &mut [u8];
}

impl Kernel {
    /// Does what it says, in no time; the checksums of what it read.
    pub fn run(&self, memory: &mut impl Memory) -> Vec<u64> {
        let sum = |ranges: &Ranges| {
            let mut sum = Checksum::default();
            ranges.iter().for_each(|range| sum.add(memory.read(*range)));
            sum.finish()
        };
        let sums: Vec<u64> = self.reads.iter().map(sum).collect();
        let key = key(self.seed, &sums);
        for (j, ranges) in (0..).zip(&self.writes) {
            let mut output = Output::new(key, j);
            ranges.iter().for_each(|range| output.fill(memory.write(*range)));
        }
        sums
    }
}

/// What a run computes, of its seed and the checksums of what it read.
pub fn key(seed: u64, sums: &[u64]) -> u64 {
    sums.iter().fold(mix(seed.wrapping_add(GOLDEN)), |key, sum| mix(key.rotate_left(23) ^ sum))
}

fn scramble(word: u64) -> u64 {
    let word = (word ^ (word >> 32)).wrapping_mul(ODD);
    word ^ (word >> 29)
}

fn mix(word: u64) -> u64 {
    scramble(scramble(word))
}

/// The words of `bytes`, and the rest, shorter than a word.
fn words(bytes: &[u8]) -> (&[[u8; WORD]], &[u8]) {
    bytes.as_chunks()
}

/// A checksum under way.
#[derive(Clone, Debug, Default)]
pub struct Checksum {
    sum: u64,
    /// Bytes so far.
    length: u64,
    /// The word that is not full yet.
    partial: [u8; WORD],
}

impl Checksum {
    /// Adds the next bytes.
    pub fn add(&mut self, mut bytes: &[u8]) {
        let begun = self.length as usize % WORD;
        if begun > 0 {
            let (first, rest) = bytes.split_at(bytes.len().min(WORD - begun));
            self.partial[begun..begun + first.len()].copy_from_slice(first);
            self.length += first.len() as u64;
            bytes = rest;
            if (self.length as usize).is_multiple_of(WORD) {
                self.word(self.partial, self.length / WORD as u64);
            }
        }
        let (whole, rest) = words(bytes);
        let before = self.length / WORD as u64;
        for (i, word) in (before + 1..).zip(whole) {
            self.word(*word, i);
        }
        self.length += bytes.len() as u64;
        // Where all went into a word that is still not full, `rest` is empty and that word stays.
        self.partial[..rest.len()].copy_from_slice(rest);
    }

    fn word(&mut self, word: [u8; WORD], i: u64) {
        let word = u64::from_le_bytes(word).wrapping_add(i.wrapping_mul(GOLDEN));
        self.sum = self.sum.wrapping_add(scramble(word));
    }

    /// The checksum of all that was added.
    pub fn finish(mut self) -> u64 {
        let begun = self.length as usize % WORD;
        if begun > 0 {
            self.partial[begun..].fill(0);
            self.word(self.partial, self.length / WORD as u64 + 1);
        }
        mix(self.sum.wrapping_add(self.length))
    }
}

/// An output under way.
#[derive(Clone, Debug)]
pub struct Output {
    base: u64,
    length: u64,
}

impl Output {
    /// Output `j` of a run of this key.
    pub fn new(key: u64, j: u64) -> Self {
        Self { base: key.wrapping_add(mix(j + 1)), length: 0 }
    }

    fn word(&self, i: u64) -> [u8; WORD] {
        scramble(self.base.wrapping_add((i + 1).wrapping_mul(GOLDEN))).to_le_bytes()
    }

    /// Writes the next bytes.
    pub fn fill(&mut self, mut bytes: &mut [u8]) {
        let begun = self.length as usize % WORD;
        if begun > 0 {
            let (first, rest) = bytes.split_at_mut(bytes.len().min(WORD - begun));
            let word = self.word(self.length / WORD as u64);
            first.copy_from_slice(&word[begun..begun + first.len()]);
            self.length += first.len() as u64;
            bytes = rest;
        }
        let before = self.length / WORD as u64;
        self.length += bytes.len() as u64;
        let (whole, rest) = bytes.as_chunks_mut::<WORD>();
        for (i, word) in (before..).zip(whole.iter_mut()) {
            *word = self.word(i);
        }
        let last = self.word(before + whole.len() as u64);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(parts: &[&[u8]]) -> u64 {
        let mut sum = Checksum::default();
        parts.iter().for_each(|part| sum.add(part));
        sum.finish()
    }

    /// The parts that `cuts` leave of `length` bytes.
    fn parts(length: usize, cuts: &[usize]) -> Vec<usize> {
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut % (length + 1)).chain([0, length]).collect();
        at.sort_unstable();
        at
    }

    proptest! {
        #[test]
        fn where_a_tensor_is_cut_changes_nothing(
            bytes in prop::collection::vec(any::<u8>(), 0..200), cuts in prop::collection::vec(0..200usize, 0..6)
        ) {
            let at = parts(bytes.len(), &cuts);
            let cut: Vec<&[u8]> = at.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
            prop_assert_eq!(sum(&cut), sum(&[&bytes]));
            let (mut whole, mut pieces) = (vec![0; bytes.len()], vec![0; bytes.len()]);
            Output::new(7, 1).fill(&mut whole);
            let mut output = Output::new(7, 1);
            at.windows(2).for_each(|w| output.fill(&mut pieces[w[0]..w[1]]));
            prop_assert_eq!(whole, pieces);
        }

        #[test]
        fn any_other_byte_length_seed_or_order_changes_all(
            bytes in prop::collection::vec(any::<u8>(), 1..200), at in 0..200usize, by in 1..=255u8
        ) {
            let mut other = bytes.clone();
            let at = at % bytes.len();
            other[at] ^= by;
            prop_assert_ne!(sum(&[&other]), sum(&[&bytes]));
            other[at] ^= by;
            other.push(0);
            prop_assert_ne!(sum(&[&other]), sum(&[&bytes]));
            let (a, b) = (sum(&[&other]), sum(&[&bytes]));
            prop_assert_ne!(key(1, &[a, b]), key(1, &[b, a]));
            prop_assert_ne!(key(1, &[a, b]), key(2, &[a, b]));
        }
    }
}
