//! Records of a benchmark: their keys and their values.

use std::borrow::Cow;

use crate::engine::{KEY_BYTES_MAX, Key, Sorted};

/// Values are cut from this much noise: it stays in the first cache of a processor, so that
/// making and comparing values costs next to nothing beside a lookup.
const NOISE_BYTES: usize = 16 << 10;

/// Digits of YCSB's keys are made and read in two halves at a time: one division waits for the one
/// before.
const HALF_DIGITS: usize = 10;
/// The least number that a half does not hold.
const HALF: u64 = 10_000_000_000;
/// The decimal digits of 0 to 99, two each.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[b'0'; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

/// How the number of a record becomes a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyFormat {
    /// Eight bytes, most significant first, padded with `0` to this length (as `db_bench` does).
    Binary {
        /// Bytes of a key, 8 to 48.
        bytes: usize,
    },
    /// `user` and 20 decimal digits (as YCSB does): 24 bytes.
    User,
}

impl Default for KeyFormat {
    fn default() -> KeyFormat {
        KeyFormat::Binary { bytes: 16 }
    }
}

impl KeyFormat {
    /// Bytes of a key.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            KeyFormat::Binary { bytes } => bytes,
            KeyFormat::User => 24,
        }
    }
}

/// In which order the keys of successive records are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyOrder {
    /// Ascending and without gaps.
    #[default]
    Sequential,
    /// Scattered by a bijection: unique, in random order.
    Hashed,
}

/// Records `0..records`, and those that are inserted after them.
pub(crate) struct Records {
    pub(crate) records: u64,
    pub(crate) value_bytes: usize,
    format: KeyFormat,
    order: KeyOrder,
    noise: Vec<u8>,
}

impl Records {
    pub(crate) fn new(
        records: u64,
        value_bytes: usize,
        format: KeyFormat,
        order: KeyOrder,
    ) -> Records {
        let mut noise = vec![0; NOISE_BYTES + value_bytes];
        fastrand::Rng::with_seed(0x1506_a74d).fill(&mut noise);
        Records {
            records,
            value_bytes,
            format,
            order,
            noise,
        }
    }

    /// The key of record `index`.
    pub(crate) fn key(&self, index: u64) -> Key {
        self.key_of(match self.order {
            KeyOrder::Sequential => index,
            KeyOrder::Hashed => mix(index),
        })
    }

    /// The record that a key belongs to; the reverse of [`Records::key`].
    pub(crate) fn index(&self, key: &[u8]) -> u64 {
        let number = match self.format {
            KeyFormat::Binary { .. } => key[..8]
                .iter()
                .fold(0, |number, byte| number << 8 | u64::from(*byte)),
            KeyFormat::User => {
                let (mut high, mut low) = (0u64, 0u64);
                for at in 4..4 + HALF_DIGITS {
                    high = high * 10 + u64::from(key[at] - b'0');
                    low = low * 10 + u64::from(key[at + HALF_DIGITS] - b'0');
                }
                high.wrapping_mul(HALF).wrapping_add(low)
            }
        };
        match self.order {
            KeyOrder::Sequential => number,
            KeyOrder::Hashed => unmix(number),
        }
    }

    #[expect(
        clippy::big_endian_bytes,
        reason = "keys compare as bytes; big-endian bytes compare like the numbers in them"
    )]
    fn key_of(&self, number: u64) -> Key {
        let mut bytes = [b'0'; KEY_BYTES_MAX];
        match self.format {
            KeyFormat::Binary { .. } => bytes[..8].copy_from_slice(&number.to_be_bytes()),
            KeyFormat::User => {
                bytes[..4].copy_from_slice(b"user");
                let (mut high, mut low) = (number / HALF, number % HALF);
                for at in (4..4 + HALF_DIGITS).step_by(2).rev() {
                    bytes[at..at + 2].copy_from_slice(&PAIRS[(high % 100) as usize]);
                    let at = at + HALF_DIGITS;
                    bytes[at..at + 2].copy_from_slice(&PAIRS[(low % 100) as usize]);
                    (high, low) = (high / 100, low / 100);
                }
            }
        }
        Key::new(bytes, self.format.bytes())
    }

    /// The value that record `index` gets when it is loaded.
    pub(crate) fn value(&self, index: u64) -> &[u8] {
        let at = (mix(index) % NOISE_BYTES as u64) as usize;
        &self.noise[at..at + self.value_bytes]
    }

    /// All records in ascending order of their keys. Hashed ones take eight bytes of memory each
    /// while this lives.
    pub(crate) fn sorted(&self) -> Box<Sorted<'_>> {
        if self.order == KeyOrder::Sequential {
            let record = |index| (self.key(index), Cow::Borrowed(self.value(index)));
            return Box::new((0..self.records).map(record));
        }
        let mut numbers: Vec<u64> = (0..self.records).map(mix).collect();
        numbers.sort_unstable();
        let record = |number| {
            (
                self.key_of(number),
                Cow::Borrowed(self.value(unmix(number))),
            )
        };
        Box::new(numbers.into_iter().map(record))
    }

    /// Bytes of one record.
    pub(crate) fn record_bytes(&self) -> u64 {
        (self.format.bytes() + self.value_bytes) as u64
    }

    /// Bytes of keys and values.
    pub(crate) fn bytes(&self) -> u64 {
        self.records * self.record_bytes()
    }
}

const MULTIPLIERS: [u64; 2] = [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];

/// A bijection that scatters neighbouring numbers (SplitMix64's finisher).
pub(super) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(MULTIPLIERS[0]);
    z = (z ^ (z >> 27)).wrapping_mul(MULTIPLIERS[1]);
    z ^ (z >> 31)
}

/// The reverse of [`mix`].
fn unmix(number: u64) -> u64 {
    let unshift = |z: u64, by: u32| z ^ (z >> by) ^ (z >> (2 * by));
    let mut z = unshift(number, 31).wrapping_mul(inverse(MULTIPLIERS[1]));
    z = unshift(z, 27).wrapping_mul(inverse(MULTIPLIERS[0]));
    unshift(z, 30).wrapping_sub(0x9e37_79b9_7f4a_7c15)
}

/// The inverse of an odd number modulo 2⁶⁴, by Newton's iteration.
const fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    let mut round = 0;
    while round < 6 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        round += 1;
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_ascend_are_distinct_and_lead_back_to_their_record() {
        let formats = [
            KeyFormat::Binary { bytes: 8 },
            KeyFormat::Binary { bytes: 16 },
            KeyFormat::User,
        ];
        for format in formats {
            for order in [KeyOrder::Sequential, KeyOrder::Hashed] {
                let records = Records::new(1000, 120, format, order);
                let all: Vec<_> = records.sorted().collect();
                assert_eq!(all.len(), 1000);
                assert!(all.windows(2).all(|w| w[0].0 < w[1].0));
                assert!(all.iter().all(|(_, v)| v.len() == 120));
                let mut seen = vec![false; 1000];
                for (key, value) in &all {
                    let index = records.index(key);
                    assert_eq!(*value, records.value(index), "{format:?} {order:?}");
                    assert_eq!(records.key(index), *key);
                    assert_eq!(key.len(), format.bytes());
                    seen[index as usize] = true;
                }
                assert!(seen.iter().all(|s| *s));
                assert_eq!(records.bytes(), 1000 * (120 + format.bytes() as u64));
            }
        }
        let ycsb = records_of_ycsb();
        assert_eq!(&ycsb.key(7)[..], b"user00000000000000000007");
        assert_eq!(&ycsb.key(u64::MAX)[..], b"user18446744073709551615");
        for number in [0, 7, HALF - 1, HALF, u64::MAX] {
            assert_eq!(ycsb.index(&ycsb.key(number)), number);
        }
    }

    fn records_of_ycsb() -> Records {
        Records::new(1, 1, KeyFormat::User, KeyOrder::Sequential)
    }

    #[test]
    fn scattering_is_reversible() {
        for n in [0, 1, 2, 1 << 31, 1 << 40, u64::MAX - 1, u64::MAX] {
            assert_eq!(unmix(mix(n)), n);
        }
    }

    #[test]
    fn values_tell_records_apart() {
        let records = Records::new(1000, 120, KeyFormat::User, KeyOrder::Hashed);
        let values: std::collections::BTreeSet<_> = (0..1000).map(|n| records.value(n)).collect();
        // 16,384 places in the noise: some 30 of a thousand records share one.
        assert!(values.len() > 950, "{}", values.len());
    }
}
