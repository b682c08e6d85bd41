//! scan.

use std::io::IsTerminal;
use std::ops::Bound;

use isobath::prefix_range;
use isobath_lab::{escape, hex};
use serde_json::{Map, Value, json};

use super::store::{self, LARGE_POOL};
use crate::args::ScanArgs;
use crate::failure::Failure;
use crate::output::{Output, counted, put_bytes, size};

/// Bytes of a value shown on a terminal before it is cut.
const TERMINAL_WIDTH: usize = 160;

pub(crate) fn scan(args: &ScanArgs, out: &mut Output) -> Result<(), Failure> {
    let key = |text: &Option<String>| match text {
        None => Ok(None),
        Some(text) => store::bytes(text, args.hex).map(Some),
    };
    let (from, to, prefix) = (key(&args.from)?, key(&args.to)?, key(&args.prefix)?);
    let store = store::read(&args.store, LARGE_POOL)?;
    let tree = store::tree(&store, &args.tree)?;
    if matches!((from.as_deref(), to.as_deref()), (Some(from), Some(to)) if from > to) {
        return Err(Failure::Usage(
            "--from is above --to, so no key lies between them; swap them, and add --reverse to go down".into(),
        ));
    }
    let bounds = match prefix {
        Some(prefix) => prefix_range(prefix),
        None => (
            from.map_or(Bound::Unbounded, Bound::Included),
            to.map_or(Bound::Unbounded, Bound::Excluded),
        ),
    };
    if args.keys_only || args.count {
        // No large value is read.
        let keys = tree.keys(bounds);
        let keys = one_way(keys, args).map(|key| key.map(|(key, length)| (key, None, length)));
        print(keys, args, out)?;
    } else {
        let records = one_way(tree.range(bounds), args).map(|record| {
            let (key, value) = record?;
            let length = value.len() as u64;
            Ok((key, Some(value), length))
        });
        print(records, args, out)?;
    }
    store.close()?;
    Ok(())
}

/// The records that are asked for, from the end that is asked for.
fn one_way<'r, T: 'r>(
    range: impl DoubleEndedIterator<Item = T> + 'r,
    args: &ScanArgs,
) -> Box<dyn Iterator<Item = T> + 'r> {
    let limit = usize::try_from(args.limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    match args.reverse {
        true => Box::new(range.rev().take(limit)),
        false => Box::new(range.take(limit)),
    }
}

fn print(
    records: impl Iterator<Item = Result<(Vec<u8>, Option<Vec<u8>>, u64), isobath::Error>>,
    args: &ScanArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let (mut number, mut key_bytes, mut value_bytes) = (0u64, 0u64, 0u64);
    let width = args
        .width
        .or_else(|| (!out.json() && std::io::stdout().is_terminal()).then_some(TERMINAL_WIDTH));
    for record in records {
        let (key, value, length) = record?;
        number += 1;
        key_bytes += key.len() as u64;
        value_bytes += length;
        if args.count {
            continue;
        }
        if out.json() {
            let mut object = Map::new();
            put_bytes(&mut object, "key", &key);
            match value {
                Some(value) => put_bytes(&mut object, "value", &value),
                None => {
                    object.insert("value_bytes".into(), length.into());
                }
            }
            out.document(&Value::Object(object))?;
        } else {
            let text = if args.hex { hex } else { escape };
            let Some(value) = value else {
                out.line(&text(&key))?;
                continue;
            };
            let shown = &value[..width.map_or(value.len(), |w| w.min(value.len()))];
            let rest = if shown.len() < value.len() {
                format!("... ({})", size(length))
            } else {
                String::new()
            };
            out.fields(&[&text(&key), &format!("{}{rest}", text(shown))])?;
        }
    }
    if !args.count {
        return Ok(());
    }
    if out.json() {
        out.document(
            &json!({"records": number, "key_bytes": key_bytes, "value_bytes": value_bytes}),
        )
    } else {
        out.line(&format!(
            "{}, {} of keys, {} of values",
            counted(number, "record"),
            size(key_bytes),
            size(value_bytes)
        ))
    }
}
