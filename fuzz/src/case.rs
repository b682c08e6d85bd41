//! Cases: a valid input and mutations of it, all drawn from one number.

use arbitrary::{Arbitrary, Unstructured};
use isobath_flash::rng::Rng;

use crate::piece::{Piece, Seal};
use crate::targets::Input;

/// Random bytes that a case is made of.
const CASE_BYTES: usize = 192;
const MAX_MUTATIONS: usize = 12;
/// Bytes in which mutations near a piece's beginning fall: headers, counts, lengths.
const HEAD: usize = 96;
/// The longest that an input may become.
const MAX_GROWTH: usize = 64 << 10;

/// A place in the mutated bytes.
#[derive(Clone, Copy, Debug, Arbitrary)]
enum At {
    Head(u8),
    Anywhere(u32),
    FromEnd(u8),
}

impl At {
    fn of(self, length: usize) -> usize {
        match self {
            At::Head(at) => usize::from(at) % HEAD.min(length),
            At::Anywhere(at) => at as usize % length,
            At::FromEnd(at) => length - 1 - usize::from(at) % length,
        }
    }
}

/// Values that lengths, counts and offsets go wrong with.
#[derive(Clone, Copy, Debug, Arbitrary)]
enum Number {
    Zero,
    One,
    Max,
    Near(i8),
    Power(u8),
    Any(u64),
}

impl Number {
    fn value(self, before: u64) -> u64 {
        match self {
            Number::Zero => 0,
            Number::One => 1,
            Number::Max => u64::MAX,
            Number::Near(by) => before.wrapping_add_signed(i64::from(by)),
            Number::Power(bit) => 1 << (bit % 64),
            Number::Any(value) => value,
        }
    }
}

#[derive(Clone, Copy, Debug, Arbitrary)]
enum Width {
    U8,
    U16,
    U32,
    U64,
}

/// A change of a piece that leaves its length, or, of a whole input without pieces, perhaps not.
#[derive(Clone, Debug, Arbitrary)]
enum Change {
    Flip { at: At, bit: u8 },
    Set { at: At, width: Width, to: Number },
    Copy { from: At, to: At, length: u8 },
    Fill { at: At, length: u8, byte: u8 },
}

/// A change of an input's length; nothing is sealed after it.
#[derive(Clone, Debug, Arbitrary)]
enum Cut {
    Truncate(At),
    Remove { at: At, length: u8 },
    Repeat { at: At, length: u8, times: u8 },
    Insert { at: At, bytes: [u8; 4] },
}

#[derive(Clone, Debug, Arbitrary)]
enum Mutation {
    /// Changes the piece of this number, and seals it again.
    Piece(u16, Change),
    /// The same; half of all are of pieces.
    Other(u16, Change),
    /// Changes the piece of this number, and leaves its checksum.
    Broken(u16, Change),
    Cut(Cut),
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    input: usize,
    pub(crate) mutations: Vec<Step>,
}

/// One mutation.
#[derive(Clone, Debug)]
pub(crate) struct Step(Mutation);

impl Case {
    /// The case of this number; `None` without inputs.
    pub(crate) fn of(number: u64, inputs: &[Input]) -> Option<Case> {
        let mut rng = Rng::new(number);
        let bytes: Vec<u8> = (0..CASE_BYTES / 8)
            .flat_map(|_| rng.bits().to_le_bytes())
            .collect();
        let mut source = Unstructured::new(&bytes);
        let input = source.choose_index(inputs.len()).ok()?;
        let count = source.int_in_range(1..=MAX_MUTATIONS).ok()?;
        // A few mutations find more than many: the others would be refused first.
        let count = if source.arbitrary().ok()? { count } else { 1 };
        let mut mutations = Vec::new();
        for _ in 0..count {
            mutations.push(Step(Mutation::arbitrary(&mut source).ok()?));
        }
        Some(Case { input, mutations })
    }

    /// The mutated input.
    pub(crate) fn bytes(&self, inputs: &[Input]) -> Vec<u8> {
        let Some(input) = inputs.get(self.input) else {
            return Vec::new();
        };
        let mut bytes = input.bytes.clone();
        for Step(mutation) in &self.mutations {
            match mutation {
                Mutation::Piece(at, change) | Mutation::Other(at, change) => {
                    if let Some(piece) = pick(input, *at) {
                        alter(&mut bytes, piece, change);
                        piece.seal(&mut bytes);
                    } else if !bytes.is_empty() {
                        let whole = Piece {
                            range: 0..bytes.len(),
                            seal: Seal::None,
                        };
                        alter(&mut bytes, &whole, change);
                    }
                }
                Mutation::Broken(at, change) => {
                    if let Some(piece) = pick(input, *at) {
                        alter(&mut bytes, piece, change);
                    }
                }
                // Volumes have a length of their own, and cases of theirs that are cut say little.
                Mutation::Cut(cut) if !input.is_fixed => resize(&mut bytes, cut),
                Mutation::Cut(_) => {}
            }
        }
        bytes
    }
}

fn pick(input: &Input, at: u16) -> Option<&Piece> {
    let count = input.pieces.len().max(1);
    input.pieces.get(usize::from(at) % count)
}

fn alter(bytes: &mut [u8], piece: &Piece, change: &Change) {
    let Some(bytes) = bytes.get_mut(piece.range.clone()) else {
        return;
    };
    let length = bytes.len();
    if length == 0 {
        return;
    }
    match *change {
        Change::Flip { at, bit } => bytes[at.of(length)] ^= 1 << (bit % 8),
        Change::Set { at, width, to } => {
            let size = match width {
                Width::U8 => 1,
                Width::U16 => 2,
                Width::U32 => 4,
                Width::U64 => 8,
            };
            // Fields lie at multiples of their size.
            let at = at.of(length) / size * size;
            let Some(field) = bytes.get_mut(at..at + size) else {
                return;
            };
            let mut word = [0; 8];
            word[..size].copy_from_slice(field);
            let value = to.value(u64::from_le_bytes(word));
            field.copy_from_slice(&value.to_le_bytes()[..size]);
        }
        Change::Copy {
            from,
            to,
            length: count,
        } => {
            let (from, to) = (from.of(length), to.of(length));
            let count = usize::from(count).min(length - from).min(length - to);
            bytes.copy_within(from..from + count, to);
        }
        Change::Fill {
            at,
            length: count,
            byte,
        } => {
            let at = at.of(length);
            let end = (at + usize::from(count)).min(length);
            bytes[at..end].fill(byte);
        }
    }
}

fn resize(bytes: &mut Vec<u8>, cut: &Cut) {
    if bytes.is_empty() {
        return;
    }
    let length = bytes.len();
    let span = |at: At, count: u8| {
        let at = at.of(length);
        at..(at + usize::from(count)).min(length)
    };
    match *cut {
        Cut::Truncate(at) => bytes.truncate(at.of(length)),
        Cut::Remove { at, length: count } => drop(bytes.drain(span(at, count))),
        Cut::Repeat {
            at,
            length: count,
            times,
        } => {
            let range = span(at, count);
            let part = bytes[range.clone()].repeat(usize::from(times));
            if part.len() <= MAX_GROWTH {
                bytes.splice(range.end..range.end, part);
            }
        }
        Cut::Insert { at, bytes: part } => {
            let at = at.of(length);
            bytes.splice(at..at, part);
        }
    }
}
