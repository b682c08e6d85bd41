//! One JSON object per line.

use std::path::Path;

use isobath::{Store, Tree};
use serde_json::Value;

use super::{Input, Loaded, OnBad, Sink};
use crate::{LabError, Monitor};

/// Loads one JSON object per line: the key is the text (or number, as
/// written) of field `key_field`, the value is the whole line. A field inside
/// another object is named by a JSON pointer, `/user/id`.
///
/// # Errors
/// A line that is no object or lacks the field, unless bad records are
/// skipped; engine and I/O errors.
pub fn load_ndjson(
    store: &Store,
    tree: &Tree,
    from: Option<&Path>,
    key_field: &str,
    on_bad: OnBad,
    monitor: &dyn Monitor,
) -> Result<Loaded, LabError> {
    let mut input = Input::open(from)?;
    input.begin(monitor);
    let mut sink = Sink::new(store, tree, &input.path, on_bad);
    let mut line = Vec::new();
    let mut number = 0;
    while input.line(&mut line)? {
        number += 1;
        monitor.advance(line.len() as u64 + 1);
        monitor.check()?;
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match key_of(&line, key_field) {
            Ok(key) => sink.store(number, key.into_bytes(), line.clone())?,
            Err(reason) => sink.bad(number, &reason)?,
        }
    }
    sink.finish()
}

fn key_of(line: &[u8], field: &str) -> Result<String, String> {
    let object: Value = serde_json::from_slice(line).map_err(|e| format!("it is no JSON ({e})"))?;
    let found = if field.starts_with('/') {
        object.pointer(field)
    } else {
        object.get(field)
    };
    match found {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Number(number)) => Ok(number.to_string()),
        Some(_) => Err(format!("its field `{field}` is neither text nor a number")),
        None => Err(format!("it has no field `{field}`")),
    }
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
    }
}
