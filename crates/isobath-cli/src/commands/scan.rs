//! scan.

use std::io::IsTerminal;
use std::ops::Bound;

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
    let range = match &prefix {
        Some(prefix) => tree.prefix(prefix),
        None => {
            let low = from.as_deref().map_or(Bound::Unbounded, Bound::Included);
            let high = to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            if inverted(from.as_deref(), to.as_deref()) {
                return Err(Failure::Usage(
                    "--from is above --to, so no key lies between them; swap them, and add --reverse to go down".into(),
                ));
            }
            tree.range((low, high))
        }
    };
    let limit = usize::try_from(args.limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    if args.reverse {
        print(range.rev().take(limit), args, out)?;
    } else {
        print(range.take(limit), args, out)?;
    }
    store.close()?;
    Ok(())
}

fn inverted(from: Option<&[u8]>, to: Option<&[u8]>) -> bool {
    matches!((from, to), (Some(from), Some(to)) if from > to)
}

fn print(
    records: impl Iterator<Item = Result<(Vec<u8>, Vec<u8>), isobath::Error>>,
    args: &ScanArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let (mut number, mut key_bytes, mut value_bytes) = (0u64, 0u64, 0u64);
    let width = args
        .width
        .or_else(|| (!out.json() && std::io::stdout().is_terminal()).then_some(TERMINAL_WIDTH));
    for record in records {
        let (key, value) = record?;
        number += 1;
        key_bytes += key.len() as u64;
        value_bytes += value.len() as u64;
        if args.count {
            continue;
        }
        if out.json() {
            let mut object = Map::new();
            put_bytes(&mut object, "key", &key);
            if !args.keys_only {
                put_bytes(&mut object, "value", &value);
            }
            out.document(&Value::Object(object))?;
        } else {
            let text = if args.hex { hex } else { escape };
            if args.keys_only {
                out.line(&text(&key))?;
            } else {
                let shown = &value[..width.map_or(value.len(), |w| w.min(value.len()))];
                let rest = if shown.len() < value.len() {
                    format!("... ({})", size(value.len() as u64))
                } else {
                    String::new()
                };
                out.line(&format!("{}\t{}{rest}", text(&key), text(shown)))?;
            }
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
