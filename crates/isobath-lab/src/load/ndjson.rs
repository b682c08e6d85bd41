//! One JSON object per line.

use std::collections::HashMap;

use isobath::Tree;
use serde_json::value::RawValue;

use super::lines::BYTE_ORDER_MARK;
use super::{Lines, Loaded, OnBad};
use crate::LabError;

impl Lines<'_> {
    /// Loads one JSON object per line: the key is the text (or number, as
    /// written) of field `key_field`, the value is the whole line. A field inside
    /// another object is named by a JSON pointer, `/user/id`.
    ///
    /// # Errors
    /// A line that is no object or lacks the field, unless bad records are
    /// skipped; engine and I/O errors.
    pub fn load_ndjson(
        self,
        tree: &Tree,
        key_field: &str,
        on_bad: OnBad,
    ) -> Result<Loaded, LabError> {
        let blank = |line: &[u8]| line.iter().all(u8::is_ascii_whitespace);
        self.each(tree, on_bad, blank, |line| {
            // Also before the first line of a file that was appended to others; it is part of no
            // JSON.
            let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
            Ok((key_of(line, key_field)?.into_bytes().into(), line.into()))
        })
    }
}

fn key_of(line: &[u8], field: &str) -> Result<String, String> {
    // Its line is the only one, and not the one of the file.
    let no_json = |e: serde_json::Error| {
        let told = e.to_string();
        let what = told.split(" at line ").next().unwrap_or_default();
        format!("it is no JSON ({what} at column {})", e.column())
    };
    let object: &RawValue = serde_json::from_slice(line).map_err(no_json)?;
    let found = find(object, field).ok_or_else(|| format!("it has no field `{field}`"))?;
    // As it is written: a number may have more digits than any type of ours.
    let text = found.get();
    match text.as_bytes().first() {
        Some(b'"') => serde_json::from_str(text).map_err(no_json),
        Some(b'-' | b'0'..=b'9') => Ok(text.to_owned()),
        _ => Err(format!("its field `{field}` is neither text nor a number")),
    }
}

/// The field of that name, or what a JSON pointer leads to.
fn find<'l>(object: &'l RawValue, field: &str) -> Option<&'l RawValue> {
    let Some(pointer) = field.strip_prefix('/') else {
        return member(object, field);
    };
    pointer.split('/').try_fold(object, |at, name| {
        let name = name.replace("~1", "/").replace("~0", "~");
        member(at, &name).or_else(|| element(at, &name))
    })
}

/// A member of an object; of several with one name the last.
fn member<'l>(object: &'l RawValue, name: &str) -> Option<&'l RawValue> {
    let mut members: HashMap<String, &RawValue> = serde_json::from_str(object.get()).ok()?;
    members.remove(name)
}

/// An element of an array.
fn element<'l>(array: &'l RawValue, number: &str) -> Option<&'l RawValue> {
    let is_plain = number == "0" || !number.starts_with(['0', '+']);
    let at: usize = number.parse().ok().filter(|_| is_plain)?;
    let elements: Vec<&RawValue> = serde_json::from_str(array.get()).ok()?;
    elements.get(at).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_from_text_numbers_and_pointers() {
        let line = br#"{"id": 7, "user": {"name": "Ada"}, "list": []}"#;
        assert_eq!(key_of(line, "id"), Ok("7".to_owned()));
        assert_eq!(key_of(line, "/user/name"), Ok("Ada".to_owned()));
        assert!(key_of(line, "list").is_err_and(|e| e.contains("neither")));
        assert!(key_of(line, "nothing").is_err_and(|e| e.contains("no field `nothing`")));
        assert!(key_of(b"{", "id").is_err_and(|e| e.contains("no JSON")));
        assert!(key_of(b"[1]", "id").is_err());
        assert_eq!(key_of(b"[[1, 2]]", "/0/1"), Ok("2".to_owned()));
        assert!(key_of(b"[[1, 2]]", "/0/01").is_err());
        assert_eq!(
            key_of(br#"{"a/b": {"~": "x\u0041"}}"#, "/a~1b/~0"),
            Ok("xA".to_owned())
        );
        assert_eq!(key_of(br#"{"id": 1, "id": 2}"#, "id"), Ok("2".to_owned()));
    }

    #[test]
    fn numbers_are_keys_as_they_are_written() {
        for number in [
            "12345678901234567890123",
            "12345678901234567890124",
            "-0",
            "1e3",
            "1E+3",
            "1.50",
            "1e999",
            "0.1000000000000000055511151231257827",
        ] {
            let line = format!(r#" {{"x": 1, "id": {number} , "y": 2}}"#);
            assert_eq!(key_of(line.as_bytes(), "id"), Ok(number.to_owned()));
        }
        for wrong in ["01", "+1", "1.", ".5", "0x10", "1e"] {
            let line = format!(r#"{{"id": {wrong}}}"#);
            assert!(key_of(line.as_bytes(), "id").is_err(), "{wrong}");
        }
    }
}
