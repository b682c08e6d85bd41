//! Encoded keys compare as keys do, and read back.

use std::cmp::Ordering;
use std::fmt::Debug;

use proptest::prelude::*;

use super::*;

fn bytes<K: EncodeKey>(key: &K) -> Vec<u8> {
    let mut bytes = Vec::new();
    key.encode_key(&mut bytes);
    bytes
}

/// Properties of every pair of keys.
fn keeps<K: Key + Debug>(a: &K, b: &K, order: Ordering) {
    let (one, other) = (bytes(a), bytes(b));
    assert_eq!(one.cmp(&other), order, "{a:?} {b:?}: {one:x?} {other:x?}");
    for (key, encoded) in [(a, &one), (b, &other)] {
        let back: K = decode_all(encoded, "a key").unwrap();
        assert_eq!(bytes(&back), *encoded, "{key:?} {back:?}");
        // Nothing shorter is a key of the type, nor is anything longer read to its end.
        if !encoded.is_empty() {
            assert!(decode_all::<K>(&encoded[..encoded.len() - 1], "a key").is_err());
        }
        let mut longer = encoded.clone();
        longer.push(7);
        assert!(decode_all::<K>(&longer, "a key").is_err());
    }
}

/// Bytes among which zeros, and 0xff behind them, are many.
fn tricky() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![Just(0), Just(0xff), Just(1), any::<u8>()], 0..6)
}

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(prop_oneof![Just('\0'), Just('a'), any::<char>()], 0..5)
        .prop_map(|chars| chars.into_iter().collect())
}

macro_rules! ordered {
    ($($name:ident: $strategy:expr;)+) => {
        proptest! {
            $(#[test]
            fn $name(a in $strategy, b in $strategy) {
                keeps(&a, &b, a.cmp(&b));
                keeps(&a, &a, Ordering::Equal);
            })+
        }
    };
}

ordered! {
    u8_keys: any::<u8>();
    u16_keys: any::<u16>();
    u32_keys: any::<u32>();
    u64_keys: any::<u64>();
    u128_keys: any::<u128>();
    i8_keys: any::<i8>();
    i16_keys: any::<i16>();
    i32_keys: any::<i32>();
    i64_keys: any::<i64>();
    i128_keys: any::<i128>();
    bool_keys: any::<bool>();
    char_keys: any::<char>();
    byte_keys: tricky();
    text_keys: text();
    array_keys: any::<[u8; 5]>();
    option_keys: prop::option::of(tricky());
    nested_options: prop::option::of(prop::option::of(any::<i32>()));
    pairs: (tricky(), any::<u16>());
    text_first: (text(), text());
    triples: (prop::option::of(text()), any::<i64>(), tricky());
    six: (any::<u8>(), tricky(), any::<bool>(), text(), any::<i8>(), prop::option::of(any::<u8>()));
}

proptest! {
    #[test]
    fn floats(a in any::<u64>(), b in any::<u64>()) {
        let (a, b) = (f64::from_bits(a), f64::from_bits(b));
        keeps(&a, &b, a.total_cmp(&b));
        let (a, b) = (a as f32, b as f32);
        keeps(&a, &b, a.total_cmp(&b));
        for edge in [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, f64::MIN_POSITIVE] {
            let a = f64::from(a);
            keeps(&a, &edge, a.total_cmp(&edge));
        }
    }

    /// Whatever bytes come, decoding answers.
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let _ = decode_all::<(String, Option<i64>, char)>(&bytes, "");
        let _ = decode_all::<(bool, Vec<u8>, [u8; 3])>(&bytes, "");
        let _ = String::decode_value(&bytes);
        let _ = <(f32, u128)>::decode_value(&bytes);
    }

    #[test]
    fn values_read_back(text in text(), raw in tricky(), number in any::<i128>()) {
        let mut bytes = Vec::new();
        text.encode_value(&mut bytes);
        prop_assert_eq!(bytes.as_slice(), text.as_bytes());
        prop_assert_eq!(&String::decode_value(&bytes).unwrap(), &text);
        bytes.clear();
        raw.encode_value(&mut bytes);
        prop_assert_eq!(&Vec::decode_value(&bytes).unwrap(), &raw);
        bytes.clear();
        let value = (number, Some(text), raw);
        value.encode_value(&mut bytes);
        prop_assert_eq!(<(i128, Option<String>, Vec<u8>)>::decode_value(&bytes).unwrap(), value);
    }
}

/// Every later version reads the bytes written today.
#[test]
fn the_encoding_is_this() {
    assert_eq!(bytes(&0x0102u16), [1, 2]);
    assert_eq!(bytes(&-1i16), [0x7f, 0xff]);
    assert_eq!(bytes(&0i32), [0x80, 0, 0, 0]);
    assert_eq!(bytes(&1.0f32), [0xbf, 0x80, 0, 0]);
    assert_eq!(bytes(&-1.0f32), [0x40, 0x7f, 0xff, 0xff]);
    assert_eq!(bytes(&"a\0b"), [b'a', 0, 0xff, b'b', 0, 0]);
    assert_eq!(bytes(&(true, 'A')), [1, 0, 0, 0, 0x41]);
    assert_eq!(bytes(&Some([9u8; 2])), [1, 9, 9]);
    assert_eq!(bytes(&None::<u8>), [0]);
    assert_eq!(bytes(&u128::MAX), [0xff; 16]);
}
