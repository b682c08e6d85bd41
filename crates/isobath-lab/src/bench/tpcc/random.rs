//! Random values as the specification asks for them (clauses 2.1.6, 4.3.2, 4.3.3).

use fastrand::Rng;

use super::rows::NAME_BYTES;
use super::{Scale, Table};
use crate::bench::keys::mix;

/// Last names that there are.
const LAST_NAMES: u32 = 1000;

/// The constants C of the non-uniform choices.
#[derive(Debug, Clone, Copy)]
pub(super) struct Constants {
    last_name_load: u32,
    last_name_run: u32,
    customer: u32,
    item: u32,
}

impl Constants {
    pub(super) fn new(seed: u64) -> Constants {
        let mut rng = Rng::with_seed(mix(seed));
        // Clause 2.1.6.1: the two of last names are 65 to 119 apart, but not 96 or 112.
        let apart: Vec<u32> = (65..=119).filter(|d| ![96, 112].contains(d)).collect();
        let last_name_load = rng.u32(0..=255 - 119);
        Constants {
            last_name_load,
            last_name_run: last_name_load + apart[rng.usize(..apart.len())],
            customer: rng.u32(0..=1023),
            item: rng.u32(0..=8191),
        }
    }

    /// The customer of a transaction, from 1.
    pub(super) fn customer(&self, rng: &mut Rng, scale: Scale) -> u32 {
        nonuniform(rng, 1023, self.customer, 1, scale.customers)
    }

    /// The item of an order line, from 1.
    pub(super) fn item(&self, rng: &mut Rng, scale: Scale) -> u32 {
        nonuniform(rng, 8191, self.item, 1, scale.items)
    }

    /// The last name of a transaction; one that is there, at smaller scales too.
    pub(super) fn last_name(&self, rng: &mut Rng, scale: Scale) -> [u8; NAME_BYTES] {
        let number = nonuniform(rng, 255, self.last_name_run, 0, LAST_NAMES - 1);
        last_name(number % scale.customers.min(LAST_NAMES))
    }

    /// First and last name of a customer that is loaded.
    pub(super) fn names(&self, seed: u64, customer: [u32; 3]) -> [[u8; NAME_BYTES]; 2] {
        let mut rng = rng_of(seed, Table::CustomerByName, &customer);
        let number = match customer[2] {
            first @ 1..=LAST_NAMES => first - 1,
            _ => nonuniform(&mut rng, 255, self.last_name_load, 0, LAST_NAMES - 1),
        };
        let mut first = [0; NAME_BYTES];
        let len = rng.usize(8..=NAME_BYTES);
        first[..len].fill_with(|| rng.alphabetic() as u8);
        [first, last_name(number)]
    }
}

/// NURand(A, x, y) of clause 2.1.6.
fn nonuniform(rng: &mut Rng, a: u32, c: u32, x: u32, y: u32) -> u32 {
    ((rng.u32(0..=a) | rng.u32(x..=y)) + c) % (y - x + 1) + x
}

/// The last name of a number below 1000 (clause 4.3.2.3).
pub(super) fn last_name(number: u32) -> [u8; NAME_BYTES] {
    const SYLLABLES: [&str; 10] = [
        "BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING",
    ];
    let digits = [number / 100 % 10, number / 10 % 10, number % 10];
    let mut name = [0; NAME_BYTES];
    let letters = digits
        .iter()
        .flat_map(|digit| SYLLABLES[*digit as usize].bytes());
    for (place, letter) in name.iter_mut().zip(letters) {
        *place = letter;
    }
    name
}

/// The randomness of one row: it depends on nothing but the seed and the row.
pub(super) fn rng_of(seed: u64, table: Table, row: &[u32]) -> Rng {
    let start = mix(seed ^ (table as u64) << 56);
    Rng::with_seed(row.iter().fold(start, |hash, n| mix(hash ^ u64::from(*n))))
}

/// Adds a text of this many letters and digits.
pub(super) fn text(rng: &mut Rng, row: &mut Vec<u8>, bytes: usize) {
    row.extend(std::iter::repeat_with(|| rng.alphanumeric() as u8).take(bytes));
}

/// Adds a text of 26 to 50 letters; in a tenth of them stands ORIGINAL.
pub(super) fn data(rng: &mut Rng, row: &mut Vec<u8>) {
    const ORIGINAL: &[u8] = b"ORIGINAL";
    let (start, bytes) = (row.len(), rng.usize(26..=50));
    text(rng, row, bytes);
    if rng.u32(..10) == 0 {
        let at = start + rng.usize(..=bytes - ORIGINAL.len());
        row[at..at + ORIGINAL.len()].copy_from_slice(ORIGINAL);
    }
}
