//! Records and operations of the benchmark.

use std::str::FromStr;

use serde::Serialize;

use crate::engine::Key;

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 8;
/// Values are cut from this much noise: it stays in a CPU cache, so that
/// making and comparing values costs next to nothing beside a lookup.
const NOISE_BYTES: usize = 256 << 10;

/// An operation of the mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Operation {
    Get,
    GetMany,
    Scan,
    Update,
    Insert,
}

impl Operation {
    pub(crate) const ALL: [Operation; 5] = [
        Operation::Get,
        Operation::GetMany,
        Operation::Scan,
        Operation::Update,
        Operation::Insert,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Get => "get",
            Operation::GetMany => "get-many",
            Operation::Scan => "scan",
            Operation::Update => "update",
            Operation::Insert => "insert",
        }
    }

    pub(crate) fn writes(self) -> bool {
        matches!(self, Operation::Update | Operation::Insert)
    }
}

/// Operations and their weights, as `get:50,update:50` says them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mix {
    weights: [u32; 5],
    total: u32,
}

impl Mix {
    /// Lookups only.
    #[must_use]
    pub fn get() -> Mix {
        Mix {
            weights: [1, 0, 0, 0, 0],
            total: 1,
        }
    }

    /// Draws an operation from `random`, uniform below [`Mix::total`].
    pub(crate) fn draw(&self, mut random: u32) -> Operation {
        for (operation, weight) in Operation::ALL.into_iter().zip(self.weights) {
            if random < weight {
                return operation;
            }
            random -= weight;
        }
        Operation::Get
    }

    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    /// The single operation, where there is one.
    pub(crate) fn only(&self) -> Option<Operation> {
        let mut present = self.present();
        let first = present.next()?;
        present.next().is_none().then_some(first)
    }

    pub(crate) fn present(&self) -> impl Iterator<Item = Operation> + '_ {
        Operation::ALL
            .into_iter()
            .filter(|o| self.weights[*o as usize] > 0)
    }

    pub(crate) fn has(&self, operation: Operation) -> bool {
        self.weights[operation as usize] > 0
    }

    /// Whether any operation changes records.
    pub(crate) fn writes(&self) -> bool {
        self.present().any(Operation::writes)
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Mix, String> {
        let mut weights = [0u32; 5];
        for part in text.split(',') {
            let (name, weight) = part.split_once(':').unwrap_or((part, "1"));
            let operation = Operation::ALL
                .into_iter()
                .find(|o| o.name() == name.trim())
                .ok_or_else(|| {
                    format!(
                        "`{name}` is no operation; there are get, get-many, scan, update, insert"
                    )
                })?;
            let weight = weight
                .trim()
                .parse::<u16>()
                .map_err(|_| format!("`{weight}` is no weight; write a number up to 65535"))?;
            weights[operation as usize] += u32::from(weight);
        }
        let total = weights.iter().sum();
        if total == 0 {
            return Err("all weights are zero".to_owned());
        }
        Ok(Mix { weights, total })
    }
}

impl std::fmt::Display for Mix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<String> = self
            .present()
            .map(|o| match self.only() {
                Some(_) => o.name().to_owned(),
                None => format!("{}:{}", o.name(), self.weights[o as usize]),
            })
            .collect();
        f.write_str(&parts.join(","))
    }
}

/// Records `0..records`: their keys and their values.
pub(crate) struct Records {
    pub(crate) records: u64,
    pub(crate) value_bytes: usize,
    /// Distance of neighbouring keys: 1, or wide where inserts must fall
    /// between them.
    stride: u64,
    noise: Vec<u8>,
}

impl Records {
    pub(crate) fn new(records: u64, value_bytes: usize, spread: bool) -> Records {
        let mut noise = vec![0; NOISE_BYTES + value_bytes];
        fastrand::Rng::with_seed(0x1506_a74d).fill(&mut noise);
        Records {
            records,
            value_bytes,
            stride: if spread { u64::MAX / records.max(1) } else { 1 },
            noise,
        }
    }

    /// The key of record `index`; keys sort as the records' numbers do.
    pub(crate) fn key(&self, index: u64) -> Key {
        key_of(index.wrapping_mul(self.stride))
    }

    /// The value that record `index` gets when it is loaded.
    pub(crate) fn value(&self, index: u64) -> &[u8] {
        let at = (mix(index) % NOISE_BYTES as u64) as usize;
        &self.noise[at..at + self.value_bytes]
    }

    /// All records in order.
    pub(crate) fn sorted(&self) -> impl Iterator<Item = (Key, &[u8])> {
        (0..self.records).map(|index| (self.key(index), self.value(index)))
    }

    /// Bytes of keys and values.
    pub(crate) fn bytes(&self) -> u64 {
        self.records * (KEY_BYTES + self.value_bytes) as u64
    }
}

/// Eight bytes that sort like the number.
#[expect(
    clippy::big_endian_bytes,
    reason = "keys compare as bytes; big-endian bytes compare like the numbers in them"
)]
pub(crate) fn key_of(number: u64) -> Key {
    number.to_be_bytes()
}

/// A bijection that scatters neighbouring numbers (SplitMix64's finisher).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_parsed_and_printed() {
        let mix: Mix = "get:50,update:50".parse().unwrap();
        assert_eq!(mix.to_string(), "get:50,update:50");
        assert!(mix.writes() && mix.only().is_none());
        assert_eq!(mix.draw(49), Operation::Get);
        assert_eq!(mix.draw(50), Operation::Update);
        let mix: Mix = "scan".parse().unwrap();
        assert_eq!(mix.only(), Some(Operation::Scan));
        assert_eq!(mix.to_string(), "scan");
        assert!("fly".parse::<Mix>().is_err_and(|e| e.contains("get-many")));
        assert!("get:0".parse::<Mix>().is_err());
        assert!("get:x".parse::<Mix>().is_err());
    }

    #[test]
    fn records_ascend_and_have_their_length() {
        for spread in [false, true] {
            let records = Records::new(1000, 120, spread);
            let all: Vec<_> = records.sorted().collect();
            assert_eq!(all.len(), 1000);
            assert!(all.windows(2).all(|w| w[0].0 < w[1].0));
            assert!(all.iter().all(|(_, v)| v.len() == 120));
            assert_eq!(records.bytes(), 128_000);
            let distinct: std::collections::HashSet<_> = all.iter().map(|(_, v)| *v).collect();
            assert!(distinct.len() > 900);
        }
    }
}
