//! Numbers in as few bytes as they need (LEB128, as in DWARF), and what is read of them.

/// Appends `value`.
pub fn put(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// Signed numbers near 0 as unsigned ones near 0.
pub fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Why nothing could be read.
pub type Bad = &'static str;

/// A payload that is read from its beginning.
pub struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    /// The next number.
    #[inline]
    pub fn number(&mut self) -> Result<u64, Bad> {
        match self.0 {
            [byte, rest @ ..] if *byte < 0x80 => {
                self.0 = rest;
                Ok(u64::from(*byte))
            }
            _ => self.long(),
        }
    }

    fn long(&mut self) -> Result<u64, Bad> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let [byte, rest @ ..] = self.0 else { return Err("it ends within a number") };
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("a number of more than 64 bits")
    }

    /// The next signed number.
    #[inline]
    pub fn signed(&mut self) -> Result<i64, Bad> {
        self.number().map(unzigzag)
    }

    /// The next number, as an id or a small count.
    pub fn small(&mut self) -> Result<u32, Bad> {
        self.number()?.try_into().map_err(|_| "a number over 32 bits where a small one stands")
    }

    /// How many entries follow, each of at least `bytes`: never more than the payload can hold.
    pub fn count(&mut self, bytes: usize) -> Result<usize, Bad> {
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        if count > self.0.len() / bytes { Err("it announces more entries than it has bytes for") } else { Ok(count) }
    }

    /// The next so many bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Bad> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or("it ends within a name")?;
        self.0 = rest;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_come_back(value: u64, signed: i64) {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            put(&mut bytes, zigzag(signed));
            let mut cursor = Cursor(&bytes);
            prop_assert_eq!((cursor.number(), cursor.signed()), (Ok(value), Ok(signed)));
            prop_assert!(cursor.0.is_empty());
        }
    }

    #[test]
    fn small_numbers_take_a_byte_and_long_ones_end() {
        let mut bytes = Vec::new();
        put(&mut bytes, zigzag(-64));
        assert_eq!(bytes, [127]);
        assert!(Cursor(&[0x80]).number().is_err());
        assert!(Cursor(&[0xff; 10]).number().is_err());
        assert!(Cursor(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02]).number().is_err());
        assert!(Cursor(&[200, 1, 0, 0]).count(1).is_err());
        assert_eq!(Cursor(&[3, 0, 0, 0]).count(1), Ok(3));
    }
}
