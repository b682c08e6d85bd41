//! Keys and rows: a row is its numbers, eight bytes each, then its texts.

use crate::LabError;
use crate::engine::{KEY_BYTES_MAX, Key};

/// Bytes of a first or last name, padded with zeros.
pub(super) const NAME_BYTES: usize = 16;

/// Places of numbers in the rows of each table. Money is in cents, rates in ten thousandths.
pub(super) mod warehouse {
    pub(crate) const TAX: usize = 0;
    pub(crate) const YTD: usize = 1;
}

pub(super) mod district {
    pub(crate) const TAX: usize = 0;
    pub(crate) const YTD: usize = 1;
    pub(crate) const NEXT_ORDER: usize = 2;
}

pub(super) mod customer {
    pub(crate) const DISCOUNT: usize = 1;
    pub(crate) const BALANCE: usize = 2;
    pub(crate) const YTD_PAYMENT: usize = 3;
    pub(crate) const PAYMENTS: usize = 4;
    pub(crate) const DELIVERIES: usize = 5;
    /// 1 if the credit is good.
    pub(crate) const GOOD_CREDIT: usize = 6;
    pub(crate) const NUMBERS: usize = 7;
    /// Bytes of C_DATA, the last column, at most.
    pub(crate) const DATA_BYTES: usize = 500;
    /// Bytes of the texts before C_DATA: names, address, phone, credit.
    pub(crate) const TEXT_BYTES: usize = 16 + 2 + 16 + 71 + 16 + 2;
}

pub(super) mod orders {
    pub(crate) const CUSTOMER: usize = 0;
    pub(crate) const CARRIER: usize = 2;
    pub(crate) const LINES: usize = 3;
}

pub(super) mod order_line {
    pub(crate) const ITEM: usize = 0;
    pub(crate) const DELIVERED: usize = 2;
    pub(crate) const AMOUNT: usize = 4;
}

pub(super) mod item {
    pub(crate) const PRICE: usize = 1;
}

pub(super) mod stock {
    pub(crate) const QUANTITY: usize = 0;
    pub(crate) const YTD: usize = 1;
    pub(crate) const ORDERS: usize = 2;
    pub(crate) const REMOTE: usize = 3;
    pub(crate) const NUMBERS: usize = 4;
    /// Bytes of S_DIST_xx, one text per district.
    pub(crate) const DISTRICT_BYTES: usize = 24;
}

/// A key of these numbers, which compares like them.
pub(super) fn key(numbers: &[u32]) -> Key {
    let mut bytes = [0; KEY_BYTES_MAX];
    for (place, number) in bytes.chunks_exact_mut(4).zip(numbers) {
        place.copy_from_slice(&number.to_be_bytes());
    }
    Key::new(bytes, numbers.len() * 4)
}

/// Number `at` of a key.
pub(super) fn part(key: &[u8], at: usize) -> Result<u32, LabError> {
    let bytes = key.get(at * 4..at * 4 + 4).and_then(|b| b.try_into().ok());
    bytes.map(u32::from_be_bytes).ok_or_else(|| {
        LabError::Verify("a key has another length than the one that was stored".to_owned())
    })
}

/// The key of a customer in the index by name; without first name and number, where those customers
/// begin.
pub(super) fn name_key(
    district: [u32; 2],
    last: [u8; NAME_BYTES],
    rest: Option<([u8; NAME_BYTES], u32)>,
) -> Key {
    let mut bytes = [0; KEY_BYTES_MAX];
    bytes[..8].copy_from_slice(&key(&district));
    bytes[8..24].copy_from_slice(&last);
    let Some((first, customer)) = rest else {
        return Key::new(bytes, 24);
    };
    bytes[24..40].copy_from_slice(&first);
    bytes[40..44].copy_from_slice(&key(&[customer]));
    Key::new(bytes, 44)
}

/// The key of an order in the index by customer: a larger order is a smaller key.
pub(super) fn customer_order_key(customer: [u32; 3], order: u32) -> Key {
    key(&[customer[0], customer[1], customer[2], u32::MAX - order])
}

/// A row of these numbers.
pub(super) fn row(numbers: &[i64]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
}

/// Number `at` of a row.
pub(super) fn number(row: &[u8], at: usize) -> Result<i64, LabError> {
    let bytes = row.get(at * 8..at * 8 + 8).and_then(|b| b.try_into().ok());
    bytes
        .map(i64::from_le_bytes)
        .ok_or_else(|| LabError::Verify("a row is shorter than the one that was stored".to_owned()))
}

/// Changes number `at` of a row that has it.
pub(super) fn set(row: &mut [u8], at: usize, number: i64) -> Result<(), LabError> {
    self::number(row, at)?;
    row[at * 8..at * 8 + 8].copy_from_slice(&number.to_le_bytes());
    Ok(())
}

/// Adds to number `at` of a row.
pub(super) fn add(row: &mut [u8], at: usize, amount: i64) -> Result<(), LabError> {
    let now = number(row, at)?;
    set(row, at, now + amount)
}
