//! Hints: what a process tells the agent about copies between its memory and the GPU.
//!
//! A message is one datagram: a [`Header`] and `count` [`Hint`]s. Whoever can reach the socket can send anything, so
//! [`decode`] trusts no field: a message that is not one is refused whole, a hint that cannot be is dropped and
//! counted. There is no pid in a message: the sender is who the kernel says it is (`SCM_CREDENTIALS`), and a hint is
//! about the sender's own memory or about nothing; the agent cuts it to the sender's mappings.

use crate::VERSION;

/// First word of each message: `tthi` in ASCII, low byte first.
pub const MAGIC: u32 = u32::from_le_bytes(*b"tthi");
/// Hints of one message; it then fits well into a socket's default buffer.
pub const MAX_HINTS: usize = 1024;
/// Bytes of the longest message.
pub const MAX_BYTES: usize = size_of::<Header>() + MAX_HINTS * size_of::<Hint>();
/// One past the highest address of a user process: 5-level paging on x86-64, 52 bits on arm64.
const ADDRESS_END: u64 = 1 << 56;

/// What happens to the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Kind {
    /// It was copied to the GPU.
    HostToDevice = 1,
    /// The GPU wrote it.
    DeviceToHost = 2,
    /// It will be copied soon: not to be demoted.
    Expected = 3,
    /// It was registered, so it is pinned and cannot move.
    Registered = 4,
    /// It is no longer registered.
    Unregistered = 5,
}

impl Kind {
    fn from_wire(value: u32) -> Option<Self> {
        [Self::HostToDevice, Self::DeviceToHost, Self::Expected, Self::Registered, Self::Unregistered]
            .into_iter()
            .find(|&kind| kind as u32 == value)
    }
}

/// Begins each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`VERSION`].
    pub version: u32,
    /// Hints that follow.
    pub count: u32,
    /// Hints that the sender had to drop since its last message.
    pub dropped: u32,
}

/// One range and what happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Hint {
    /// First address, in the sender's address space.
    pub start: u64,
    /// Bytes; never 0.
    pub bytes: u64,
    /// What happens.
    pub kind: Kind,
    /// How often since the last message; never 0.
    pub times: u32,
    /// `CLOCK_MONOTONIC` of the last time, or of the time expected, nanoseconds.
    pub at_ns: u64,
}

const _: () = assert!(size_of::<Header>() == 16 && size_of::<Hint>() == 32);

/// Why a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HintError {
    /// Shorter than a header.
    Short {
        /// Its bytes.
        bytes: usize,
    },
    /// Not a message of hints.
    Magic {
        /// What it begins with.
        found: u32,
    },
    /// From a bridge of another version.
    Version {
        /// Its version.
        found: u32,
    },
    /// Its length is not that of its count, or the count is above [`MAX_HINTS`].
    Count {
        /// Hints that it claims.
        count: u32,
        /// Its bytes.
        bytes: usize,
    },
}

impl std::fmt::Display for HintError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Short { bytes } => write!(f, "hints in {bytes} bytes, shorter than a header"),
            Self::Magic { found } => write!(f, "no hints: begins with {found:#x}, not {MAGIC:#x}"),
            Self::Version { found } => write!(f, "hints of version {found}, this agent reads {VERSION}"),
            Self::Count { count, bytes } => {
                write!(f, "{count} hints in {bytes} bytes; at most {MAX_HINTS} of {} bytes", size_of::<Hint>())
            }
        }
    }
}

impl std::error::Error for HintError {}

/// What a message held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// Hints that can be.
    pub hints: Vec<Hint>,
    /// Hints that cannot: unknown kind, empty, or beyond any user address.
    pub malformed: u32,
    /// Hints that the sender dropped, by its own word.
    pub dropped: u32,
}

/// The message of `hints`; `dropped` counts those that the sender had no room for. Only the first [`MAX_HINTS`] go in:
/// send the rest in another message.
pub fn encode(hints: &[Hint], dropped: u32) -> Vec<u8> {
    let hints = &hints[..hints.len().min(MAX_HINTS)];
    let mut bytes = Vec::with_capacity(size_of::<Header>() + size_of_val(hints));
    for word in [MAGIC, VERSION, hints.len() as u32, dropped] {
        bytes.extend(word.to_ne_bytes());
    }
    for &Hint { start, bytes: length, kind, times, at_ns } in hints {
        bytes.extend(start.to_ne_bytes());
        bytes.extend(length.to_ne_bytes());
        bytes.extend((kind as u32).to_ne_bytes());
        bytes.extend(times.to_ne_bytes());
        bytes.extend(at_ns.to_ne_bytes());
    }
    bytes
}

/// Reads one message. Nothing in it is believed before it is checked; memory used is bounded by the message's own
/// length.
///
/// # Errors
/// [`HintError`]: the whole message counts as malformed.
pub fn decode(message: &[u8]) -> Result<Decoded, HintError> {
    let (header, body) =
        message.split_at_checked(size_of::<Header>()).ok_or(HintError::Short { bytes: message.len() })?;
    let [magic, version, count, dropped] = std::array::from_fn(|i| u32_at(header, i * 4));
    if magic != MAGIC {
        return Err(HintError::Magic { found: magic });
    }
    if version != VERSION {
        return Err(HintError::Version { found: version });
    }
    let (records, rest) = body.as_chunks::<{ size_of::<Hint>() }>();
    if records.len() != count as usize || !rest.is_empty() || records.len() > MAX_HINTS {
        return Err(HintError::Count { count, bytes: message.len() });
    }
    let hints: Vec<_> = records.iter().filter_map(|record| hint(record)).collect();
    let malformed = count - hints.len() as u32;
    Ok(Decoded { hints, malformed, dropped })
}

fn hint(record: &[u8]) -> Option<Hint> {
    let (start, bytes) = (u64_at(record, 0), u64_at(record, 8));
    let times = u32_at(record, 20);
    let possible = bytes > 0 && times > 0 && start.checked_add(bytes).is_some_and(|end| end <= ADDRESS_END);
    let kind = Kind::from_wire(u32_at(record, 16))?;
    possible.then(|| Hint { start, bytes, kind, times, at_ns: u64_at(record, 24) })
}

/// The word at `at`; callers stay within the record, whose length they have checked.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Hint {
        Hint { start: 0x7f00_0000_0000, bytes: 4096, kind: Kind::HostToDevice, times: 3, at_ns: 99 }
    }

    /// A message of one hint with the bytes at `at` replaced.
    fn with(at: usize, value: &[u8]) -> Vec<u8> {
        let mut message = encode(&[sample()], 0);
        message[at..at + value.len()].copy_from_slice(value);
        message
    }

    #[test]
    fn too_many_hints_are_cut_to_one_message() {
        let message = encode(&vec![sample(); MAX_HINTS + 5], 7);
        assert_eq!(message.len(), MAX_BYTES);
        let decoded = decode(&message).expect("whole");
        assert_eq!((decoded.hints.len(), decoded.malformed, decoded.dropped), (MAX_HINTS, 0, 7));
    }

    #[test]
    fn messages_that_are_none_are_refused_by_name() {
        assert_eq!(decode(b"short"), Err(HintError::Short { bytes: 5 }));
        assert_eq!(decode(&with(0, &[1, 0, 0, 0])), Err(HintError::Magic { found: 1 }));
        assert_eq!(decode(&with(4, &8_u32.to_ne_bytes())), Err(HintError::Version { found: 8 }));
        for count in [0_u32, 2, u32::MAX] {
            assert_eq!(decode(&with(8, &count.to_ne_bytes())), Err(HintError::Count { count, bytes: 48 }));
        }
        assert!(matches!(decode(&encode(&[sample()], 0)[..47]), Err(HintError::Count { count: 1, bytes: 47 })));
        let mut many = encode(&vec![sample(); MAX_HINTS], 0);
        many[8..12].copy_from_slice(&(MAX_HINTS as u32 + 1).to_ne_bytes());
        many.extend_from_slice(&encode(&[sample()], 0)[16..]);
        assert!(matches!(decode(&many), Err(HintError::Count { .. })));
    }

    #[test]
    fn hints_that_cannot_be_are_dropped_and_counted() {
        let bad = [
            with(16, &u64::MAX.to_ne_bytes()),
            with(16, &(ADDRESS_END - 4095).to_ne_bytes()),
            with(24, &0_u64.to_ne_bytes()),
            with(24, &u64::MAX.to_ne_bytes()),
            with(32, &0_u32.to_ne_bytes()),
            with(32, &6_u32.to_ne_bytes()),
            with(36, &0_u32.to_ne_bytes()),
        ];
        for message in bad {
            assert_eq!(decode(&message), Ok(Decoded { hints: vec![], malformed: 1, dropped: 0 }));
        }
        assert_eq!(decode(&with(16, &(ADDRESS_END - 4096).to_ne_bytes())).expect("whole").malformed, 0);
    }

    fn any_hint() -> impl Strategy<Value = Hint> {
        (0..ADDRESS_END / 2, 1..ADDRESS_END / 2, 1_u32..=5, 1..u32::MAX, any::<u64>()).prop_map(
            |(start, bytes, kind, times, at_ns)| Hint {
                start,
                bytes,
                kind: Kind::from_wire(kind).expect("1 to 5"),
                times,
                at_ns,
            },
        )
    }

    proptest! {
        #[test]
        fn hints_survive_the_way(hints in prop::collection::vec(any_hint(), 0..20), dropped in any::<u32>()) {
            prop_assert_eq!(decode(&encode(&hints, dropped)), Ok(Decoded { hints, malformed: 0, dropped }));
        }

        /// Any bytes after an honest header: every hint that comes out can be, and each one is accounted for.
        #[test]
        fn any_bytes_are_safe(noise in prop::collection::vec(any::<u8>(), 0..200), honest in any::<bool>()) {
            let mut message = noise;
            if honest && message.len() >= 16 {
                let count = (message.len() as u32 - 16) / 32;
                message.truncate(16 + count as usize * 32);
                for (i, word) in [MAGIC, VERSION, count].into_iter().enumerate() {
                    message[i * 4..i * 4 + 4].copy_from_slice(&word.to_ne_bytes());
                }
            }
            if let Ok(decoded) = decode(&message) {
                prop_assert_eq!(decoded.hints.len() + decoded.malformed as usize, (message.len() - 16) / 32);
                prop_assert!(decoded.hints.iter().all(|h| h.bytes > 0 && h.start + h.bytes <= ADDRESS_END));
            }
        }
    }
}
