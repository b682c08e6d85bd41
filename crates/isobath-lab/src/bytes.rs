//! Keys and values as text: UTF-8 with escapes, or hexadecimal.

use std::fmt::Write;

/// `bytes` for a terminal: UTF-8 as it is, with control characters,
/// backslashes and invalid bytes as `\n`, `\t`, `\\` and `\xNN`.
#[must_use]
pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => out.push_str("\\\\"),
                c => push_escaped(&mut out, c),
            }
        }
        for byte in chunk.invalid() {
            push_hex_escape(&mut out, *byte);
        }
    }
    out
}

/// The bytes that [`escape`] has made a text of.
///
/// # Errors
/// A sentence that names the first backslash that begins no escape.
pub fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
        bytes.extend_from_slice(&rest[..at]);
        let (byte, length) = match &rest[at + 1..] {
            [b'n', ..] => (b'\n', 2),
            [b'r', ..] => (b'\r', 2),
            [b't', ..] => (b'\t', 2),
            [b'\\', ..] => (b'\\', 2),
            [b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                (digit(*high) << 4 | digit(*low), 4)
            }
            _ => {
                let at = text.len() - rest.len() + at + 1;
                return Err(format!(
                    "the backslash at byte {at} begins none of \\n, \\r, \\t, \\\\ and \\xNN"
                ));
            }
        };
        bytes.push(byte);
        rest = &rest[at + length..];
    }
    bytes.extend_from_slice(rest);
    Ok(bytes)
}

fn digit(hexadecimal: u8) -> u8 {
    char::from(hexadecimal).to_digit(16).unwrap_or_default() as u8
}

/// A message with control characters escaped; backslashes stay as they are, because what messages
/// quote is escaped already.
#[must_use]
pub fn escape_controls(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    text.chars().for_each(|c| push_escaped(&mut out, c));
    out
}

/// Appends a character, escaped where a terminal would act on it.
fn push_escaped(out: &mut String, character: char) {
    match character {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if c.is_control() || is_bidi_control(c) || c == BYTE_ORDER_MARK => {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                push_hex_escape(out, byte);
            }
        }
        c => out.push(c),
    }
}

/// Those who read a text drop it at its beginning.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Characters that make a terminal show text in another order than stored.
fn is_bidi_control(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn push_hex_escape(out: &mut String, byte: u8) {
    out.push_str("\\x");
    push_hex(out, byte);
}

fn push_hex(out: &mut String, byte: u8) {
    // Writing to a String cannot fail.
    let _ = write!(out, "{byte:02x}");
}

/// `bytes` in hexadecimal, two lower-case digits each.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        push_hex(&mut out, *byte);
    }
    out
}

/// The bytes that hexadecimal digits say; blanks and underscores between
/// bytes are ignored.
///
/// # Errors
/// A sentence that names the first character that is wrong.
pub fn unhex(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len() / 2);
    let mut high: Option<u8> = None;
    for (at, character) in text.char_indices() {
        match (character.to_digit(16), high) {
            (Some(digit), None) => high = Some(digit as u8),
            (Some(digit), Some(first)) => {
                bytes.push(first << 4 | digit as u8);
                high = None;
            }
            (None, None) if character == ' ' || character == '_' => {}
            (None, _) => {
                return Err(format!(
                    "`{}` at position {} is no hexadecimal digit",
                    character.escape_default(),
                    at + 1
                ));
            }
        }
    }
    match high {
        None => Ok(bytes),
        Some(_) => Err("the number of hexadecimal digits is odd".to_owned()),
    }
}

/// `bytes` as text if they are UTF-8, else in hexadecimal; how JSON shows keys
/// and values, in a field `name` or `name_hex`.
///
/// # Errors
/// The hexadecimal digits, if the bytes are no UTF-8.
pub fn text_or_hex(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|_| hex(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_bytes_never_reach_the_terminal() {
        assert_eq!(escape(b"a\x1b[31m\n\0\\z"), "a\\x1b[31m\\n\\x00\\\\z");
        assert_eq!(escape("grün\u{85}".as_bytes()), "grün\\xc2\\x85");
        assert_eq!(escape(b"\xff\xfe"), "\\xff\\xfe");
        assert_eq!(escape("\u{202e}x".as_bytes()), "\\xe2\\x80\\xaex");
    }

    #[test]
    fn bad_hex_is_named() {
        assert!(unhex("0g").is_err_and(|e| e.contains("`g` at position 2")));
        assert!(unhex("abc").is_err_and(|e| e.contains("odd")));
        assert_eq!(unhex("de ad_BE ef"), Ok(vec![0xde, 0xad, 0xbe, 0xef]));
        assert!(unhex("d e").is_err());
    }

    #[test]
    fn bad_escapes_are_named() {
        for (text, at) in [("a\\", 2), ("\\n\\q", 3), ("\\x4", 1), ("\\xg0", 1)] {
            let error = unescape(text.as_bytes()).unwrap_err();
            assert!(error.contains(&format!("at byte {at} ")), "{text}: {error}");
        }
        assert_eq!(unescape(b"\xff\\x4A\\x4a"), Ok(b"\xffJJ".to_vec()));
        assert_eq!(escape("\u{feff}a".as_bytes()), "\\xef\\xbb\\xbfa");
    }

    proptest! {
        #[test]
        fn hex_round_trips(bytes: Vec<u8>) {
            prop_assert_eq!(unhex(&hex(&bytes)), Ok(bytes));
        }

        #[test]
        fn escaped_text_has_no_control_characters(bytes: Vec<u8>) {
            prop_assert!(!escape(&bytes).chars().any(char::is_control));
        }

        #[test]
        fn escapes_round_trip(bytes: Vec<u8>, text: String) {
            for bytes in [&bytes[..], text.as_bytes()] {
                prop_assert_eq!(unescape(escape(bytes).as_bytes()), Ok(bytes.to_vec()));
            }
        }
    }
}
