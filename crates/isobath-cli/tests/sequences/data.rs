//! Keys and values that sequences are made of: lengths on both sides of every boundary.

use fastrand::Rng;

/// How a store is laid out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) segment_bytes: u32,
}

impl Layout {
    /// Payloads of a full chunk of a large value, for drives of either block size.
    fn payloads(self) -> [usize; 2] {
        let room = (self.segment_bytes as usize - 4096) / 8;
        let chunk = room.min(256 << 10);
        [512, 4096].map(|block| chunk - chunk % block - 64)
    }

    /// A length on or beside a boundary.
    fn boundary(self, rng: &mut Rng) -> usize {
        let [small, large] = self.payloads();
        let at = match rng.u32(..100) {
            // A value inside its leaf, and the longest record there.
            0..25 => *one_of(rng, &[1, 32, 256, 1024, 1280, 1600]),
            25..45 => *one_of(rng, &[4096, 4096 - 64, 8192 - 64, 2 * 4096]),
            45..85 => one_of(rng, &[small, large]) * rng.usize(1..=3),
            // Files that are streamed, and values that are exported in blocks of their own.
            85..97 => *one_of(rng, &[64 << 10, 256 << 10]),
            _ => *one_of(rng, &[512 << 10, 1 << 20]),
        };
        at + rng.usize(0..3) - 1
    }

    fn length(self, rng: &mut Rng) -> usize {
        match rng.u32(..100) {
            0..10 => 0,
            10..50 => rng.usize(1..200),
            50..60 => rng.usize(200..3000),
            _ => self.boundary(rng),
        }
    }
}

fn one_of<'a, T>(rng: &mut Rng, of: &'a [T]) -> &'a T {
    &of[rng.usize(..of.len())]
}

/// A record of a sequence; its bytes follow from this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) key: Key,
    pub(crate) value: Value,
}

/// A key, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    /// One that every format can carry, and that can be a file's name.
    Text(u32),
    /// Digits, more than any type of number has.
    Number(u32),
    /// Any bytes, of lengths from 0 to the longest.
    Bytes(u32),
}

/// A value's seed and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Value {
    seed: u32,
    length: usize,
}

impl Key {
    pub(crate) fn draw(rng: &mut Rng) -> Key {
        match rng.u32(..10) {
            0..7 => Key::Text(rng.u32(..60)),
            7 => Key::Number(rng.u32(..6)),
            _ => Key::Bytes(rng.u32(..10)),
        }
    }

    pub(crate) fn bytes(self) -> Vec<u8> {
        match self {
            Key::Text(n) => {
                let mut bytes = format!("t{n:05}").into_bytes();
                let padding = [0, 0, 0, 3, 40, 200][n as usize % 6];
                bytes.resize(bytes.len() + padding, b'-');
                bytes
            }
            Key::Number(n) => format!("123456789012345678901{n}").into_bytes(),
            Key::Bytes(n) => {
                let length = [0, 1, 2, 255, 256, 257, 600, 1000, 1023, 1024][n as usize % 10];
                let fill = if n % 2 == 0 { 0xff } else { 0 };
                let mut bytes = vec![fill; length];
                if let Some(first) = bytes.first_mut() {
                    *first = n as u8;
                }
                bytes
            }
        }
    }
}

impl Value {
    pub(crate) fn draw(layout: Layout, rng: &mut Rng) -> Value {
        Value {
            seed: rng.u32(..),
            length: layout.length(rng),
        }
    }

    fn short(rng: &mut Rng) -> Value {
        Value {
            seed: rng.u32(..),
            length: rng.usize(..300),
        }
    }

    /// Any bytes.
    pub(crate) fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        Rng::with_seed(u64::from(self.seed)).fill(&mut bytes);
        bytes
    }

    /// Letters and digits, as many.
    pub(crate) fn text(self) -> Vec<u8> {
        let mut rng = Rng::with_seed(u64::from(self.seed));
        (0..self.length).map(|_| rng.alphanumeric() as u8).collect()
    }
}

/// Records for a load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batch {
    seed: u64,
    count: u32,
    /// Number of the first key.
    first: u32,
    /// Whether all values are short, so that there can be many.
    short: bool,
}

impl Batch {
    pub(crate) fn draw(rng: &mut Rng) -> Batch {
        let short = rng.u32(..3) == 0;
        Batch {
            seed: rng.u64(..),
            count: if short {
                rng.u32(..1500)
            } else {
                rng.u32(..40)
            },
            first: *one_of(rng, &[0, 0, 0, 30, 2000, 5000]),
            short,
        }
    }

    /// In any order, the same key several times.
    pub(crate) fn records(self, layout: Layout) -> Vec<Record> {
        let mut rng = Rng::with_seed(self.seed);
        let span = self.count + self.count / 2 + 1;
        (0..self.count)
            .map(|_| Record {
                key: Key::Text(self.first + rng.u32(..span)),
                value: if self.short {
                    Value::short(&mut rng)
                } else {
                    Value::draw(layout, &mut rng)
                },
            })
            .collect()
    }

    /// In ascending order, each key once.
    pub(crate) fn ascending(self, layout: Layout) -> Vec<Record> {
        let mut rng = Rng::with_seed(self.seed);
        let mut at = self.first;
        let mut records = Vec::new();
        for _ in 0..self.count {
            at += rng.u32(1..3);
            records.push(Record {
                key: Key::Text(at),
                value: if self.short {
                    Value::short(&mut rng)
                } else {
                    Value::draw(layout, &mut rng)
                },
            });
        }
        records
    }
}
