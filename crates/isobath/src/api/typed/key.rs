//! Keys and values of Rust types as bytes. Encoded keys compare as the keys do.

use crate::Error;

/// A type that can be looked up as a key: its bytes compare as it does.
///
/// | type | bytes |
/// | --- | --- |
/// | `u8` … `u128` | big-endian |
/// | `i8` … `i128` | big-endian, the sign bit inverted |
/// | `f32`, `f64` | as the integer of their bits, all bits inverted where negative: the order of `total_cmp` |
/// | `bool`, `char`, `()` | one byte; as `u32`; none |
/// | `str`, `String`, `[u8]`, `Vec<u8>` | each byte, 0 as `00 FF`; then `00 00` |
/// | `[u8; N]` | the bytes |
/// | `Option<T>` | 0 for `None`; 1 and the rest for `Some` |
/// | tuples | one after another |
///
/// The encodings are part of the stable format of a store: they never change.
pub trait EncodeKey {
    /// Appends the key's bytes.
    fn encode_key(&self, into: &mut Vec<u8>);
}

/// A type of keys: what [`EncodeKey`] writes can be read back, also with other bytes behind it.
///
/// An implementation for a type of your own usually goes by a tuple:
///
/// ```
/// use isobath::{EncodeKey, Error, Key};
///
/// #[derive(Debug, PartialEq, PartialOrd)]
/// struct Reading { sensor: u32, second: i64 }
///
/// impl EncodeKey for Reading {
///     fn encode_key(&self, into: &mut Vec<u8>) {
///         (self.sensor, self.second).encode_key(into);
///     }
/// }
/// impl Key for Reading {
///     fn decode_key(from: &mut &[u8]) -> Result<Reading, Error> {
///         let (sensor, second) = Key::decode_key(from)?;
///         Ok(Reading { sensor, second })
///     }
/// }
/// ```
pub trait Key: EncodeKey + Sized {
    /// Takes the key's bytes from the front.
    ///
    /// # Errors
    ///
    /// [`Error::BadEncoding`] if they are none of this type.
    fn decode_key(from: &mut &[u8]) -> Result<Self, Error>;
}

/// A type of values. Strings and bytes are stored as they are, everything else as by [`EncodeKey`].
pub trait Value: Sized {
    /// Appends the value's bytes.
    fn encode_value(&self, into: &mut Vec<u8>);

    /// The value that these are the bytes of.
    ///
    /// # Errors
    ///
    /// [`Error::BadEncoding`] if they are none of this type.
    fn decode_value(bytes: &[u8]) -> Result<Self, Error>;
}

/// An error of the type named.
fn bad(what: &'static str) -> Error {
    Error::BadEncoding { what }
}

/// Takes `N` bytes from the front.
fn take<const N: usize>(from: &mut &[u8], what: &'static str) -> Result<[u8; N], Error> {
    let (first, rest) = from.split_first_chunk::<N>().ok_or_else(|| bad(what))?;
    *from = rest;
    Ok(*first)
}

/// All of `bytes` as one key.
pub(super) fn decode_all<K: Key>(mut bytes: &[u8], what: &'static str) -> Result<K, Error> {
    let key = K::decode_key(&mut bytes)?;
    match bytes.is_empty() {
        true => Ok(key),
        false => Err(bad(what)),
    }
}

/// Values that are stored as keys are.
macro_rules! values_as_keys {
    ($($type:ty),+) => {
        $(impl Value for $type {
            fn encode_value(&self, into: &mut Vec<u8>) {
                self.encode_key(into);
            }
            fn decode_value(bytes: &[u8]) -> Result<Self, Error> {
                decode_all(bytes, stringify!($type))
            }
        })+
    };
}

/// Integers and floats, by the unsigned integer that compares as they do.
macro_rules! numbers {
    ($($type:ty as $bits:ty: $to:expr, $from:expr;)+) => {
        $(impl EncodeKey for $type {
            fn encode_key(&self, into: &mut Vec<u8>) {
                let to: fn($type) -> $bits = $to;
                put_big_endian(u128::from(to(*self)), size_of::<$bits>(), into);
            }
        }
        impl Key for $type {
            fn decode_key(from: &mut &[u8]) -> Result<Self, Error> {
                const BYTES: usize = size_of::<$bits>();
                let bytes = take::<BYTES>(from, stringify!($type))?;
                let back: fn($bits) -> $type = $from;
                Ok(back(bytes.iter().fold(0, |bits, byte| bits.checked_shl(8).unwrap_or(0) | <$bits>::from(*byte))))
            }
        })+
        values_as_keys!($($type),+);
    };
}

fn put_big_endian(bits: u128, bytes: usize, into: &mut Vec<u8>) {
    into.extend((0..bytes).rev().map(|at| (bits >> (8 * at)) as u8));
}

/// The bits of a float as an integer that compares as `total_cmp` does.
macro_rules! float_bits {
    ($bits:expr, $type:ty) => {{
        let bits = $bits;
        let sign: $type = 1 << (<$type>::BITS - 1);
        if bits & sign == 0 { bits | sign } else { !bits }
    }};
}

/// The bits that [`float_bits`] was made of.
macro_rules! bits_float {
    ($bits:expr, $type:ty) => {{
        let bits = $bits;
        let sign: $type = 1 << (<$type>::BITS - 1);
        if bits & sign == 0 {
            !bits
        } else {
            bits & !sign
        }
    }};
}

numbers! {
    u8 as u8: |n| n, |n| n;
    u16 as u16: |n| n, |n| n;
    u32 as u32: |n| n, |n| n;
    u64 as u64: |n| n, |n| n;
    u128 as u128: |n| n, |n| n;
    i8 as u8: |n| n.cast_unsigned() ^ 1 << 7, |n| (n ^ 1 << 7).cast_signed();
    i16 as u16: |n| n.cast_unsigned() ^ 1 << 15, |n| (n ^ 1 << 15).cast_signed();
    i32 as u32: |n| n.cast_unsigned() ^ 1 << 31, |n| (n ^ 1 << 31).cast_signed();
    i64 as u64: |n| n.cast_unsigned() ^ 1 << 63, |n| (n ^ 1 << 63).cast_signed();
    i128 as u128: |n| n.cast_unsigned() ^ 1 << 127, |n| (n ^ 1 << 127).cast_signed();
    f32 as u32: |n| float_bits!(n.to_bits(), u32), |n| f32::from_bits(bits_float!(n, u32));
    f64 as u64: |n| float_bits!(n.to_bits(), u64), |n| f64::from_bits(bits_float!(n, u64));
}

impl EncodeKey for bool {
    fn encode_key(&self, into: &mut Vec<u8>) {
        into.push(u8::from(*self));
    }
}

impl Key for bool {
    fn decode_key(from: &mut &[u8]) -> Result<bool, Error> {
        match take(from, "bool")? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(bad("bool")),
        }
    }
}

impl EncodeKey for char {
    fn encode_key(&self, into: &mut Vec<u8>) {
        u32::from(*self).encode_key(into);
    }
}

impl Key for char {
    fn decode_key(from: &mut &[u8]) -> Result<char, Error> {
        char::from_u32(u32::decode_key(from)?).ok_or_else(|| bad("char"))
    }
}

impl EncodeKey for () {
    fn encode_key(&self, _: &mut Vec<u8>) {}
}

impl Key for () {
    fn decode_key(_: &mut &[u8]) -> Result<(), Error> {
        Ok(())
    }
}

values_as_keys!(bool, char, ());

impl EncodeKey for [u8] {
    fn encode_key(&self, into: &mut Vec<u8>) {
        for byte in self {
            into.push(*byte);
            if *byte == 0 {
                into.push(0xff);
            }
        }
        into.extend([0, 0]);
    }
}

impl EncodeKey for Vec<u8> {
    fn encode_key(&self, into: &mut Vec<u8>) {
        self.as_slice().encode_key(into);
    }
}

impl Key for Vec<u8> {
    fn decode_key(from: &mut &[u8]) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        loop {
            match take::<1>(from, "bytes")? {
                [0] => match take::<1>(from, "bytes")? {
                    [0] => return Ok(bytes),
                    [0xff] => bytes.push(0),
                    _ => return Err(bad("bytes")),
                },
                [byte] => bytes.push(byte),
            }
        }
    }
}

impl Value for Vec<u8> {
    fn encode_value(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(self);
    }
    fn decode_value(bytes: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(bytes.to_vec())
    }
}

impl EncodeKey for str {
    fn encode_key(&self, into: &mut Vec<u8>) {
        self.as_bytes().encode_key(into);
    }
}

impl EncodeKey for String {
    fn encode_key(&self, into: &mut Vec<u8>) {
        self.as_bytes().encode_key(into);
    }
}

impl Key for String {
    fn decode_key(from: &mut &[u8]) -> Result<String, Error> {
        String::from_utf8(Vec::decode_key(from)?).map_err(|_| bad("String"))
    }
}

impl Value for String {
    fn encode_value(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(self.as_bytes());
    }
    fn decode_value(bytes: &[u8]) -> Result<String, Error> {
        String::from_utf8(bytes.to_vec()).map_err(|_| bad("String"))
    }
}

impl<const N: usize> EncodeKey for [u8; N] {
    fn encode_key(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(self);
    }
}

impl<const N: usize> Key for [u8; N] {
    fn decode_key(from: &mut &[u8]) -> Result<[u8; N], Error> {
        take(from, "bytes of a fixed number")
    }
}

impl<const N: usize> Value for [u8; N] {
    fn encode_value(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(self);
    }
    fn decode_value(bytes: &[u8]) -> Result<[u8; N], Error> {
        decode_all(bytes, "bytes of a fixed number")
    }
}

impl<T: EncodeKey> EncodeKey for Option<T> {
    fn encode_key(&self, into: &mut Vec<u8>) {
        into.push(u8::from(self.is_some()));
        if let Some(key) = self {
            key.encode_key(into);
        }
    }
}

impl<T: Key> Key for Option<T> {
    fn decode_key(from: &mut &[u8]) -> Result<Option<T>, Error> {
        match bool::decode_key(from)? {
            true => T::decode_key(from).map(Some),
            false => Ok(None),
        }
    }
}

impl<T: Key> Value for Option<T> {
    fn encode_value(&self, into: &mut Vec<u8>) {
        self.encode_key(into);
    }
    fn decode_value(bytes: &[u8]) -> Result<Option<T>, Error> {
        decode_all(bytes, "Option")
    }
}

impl<T: EncodeKey + ?Sized> EncodeKey for &T {
    fn encode_key(&self, into: &mut Vec<u8>) {
        (**self).encode_key(into);
    }
}

macro_rules! tuples {
    ($(($($name:ident),+))+) => {
        $(
            impl<$($name: EncodeKey),+> EncodeKey for ($($name,)+) {
                #[allow(non_snake_case, reason = "types name their values")]
                fn encode_key(&self, into: &mut Vec<u8>) {
                    let ($($name,)+) = self;
                    $($name.encode_key(into);)+
                }
            }
            impl<$($name: Key),+> Key for ($($name,)+) {
                fn decode_key(from: &mut &[u8]) -> Result<Self, Error> {
                    Ok(($($name::decode_key(from)?,)+))
                }
            }
            impl<$($name: Key),+> Value for ($($name,)+) {
                fn encode_value(&self, into: &mut Vec<u8>) {
                    self.encode_key(into);
                }
                fn decode_value(bytes: &[u8]) -> Result<Self, Error> {
                    decode_all(bytes, "a tuple")
                }
            }
        )+
    };
}

tuples! {
    (A) (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) (A, B, C, D, E, F)
}

#[cfg(test)]
#[path = "key_tests.rs"]
mod tests;
