//! load.

use std::path::Path;
use std::time::Instant;

use isobath_lab::load::{
    Column, Delimited, Loaded, OnBad, Rows, load_directory, load_lines, load_ndjson, must_be,
};

use super::store::{self, LARGE_POOL};
use crate::args::{GlobalArgs, LoadArgs, LoadFrom, RecordFile};
use crate::failure::Failure;
use crate::output::{Output, count, size};

pub(crate) fn load(args: &LoadArgs, global: &GlobalArgs, out: &mut Output) -> Result<(), Failure> {
    let on_bad = if args.skip_bad {
        OnBad::Skip
    } else {
        OnBad::Stop
    };
    // The input is looked at before the store, so that a wrong name or column
    // leaves no new, empty store behind.
    let source = Source::open(&args.from, on_bad)?;
    let store = store::write_or_create(&args.store, &args.create, LARGE_POOL)?;
    let tree = store::tree_or_new(&store, &args.tree)?;
    let progress = super::progress(global)?;
    let began = Instant::now();
    let loaded = match source {
        Source::Directory(path, cap) => load_directory(&store, &tree, path, cap, &progress),
        Source::Rows(rows) => rows.load(&tree, &progress),
        Source::Ndjson(path, field) => load_ndjson(&tree, path, field, on_bad, &progress),
        Source::Lines(path) => load_lines(&tree, path, on_bad, &progress),
    };
    progress.clear();
    // What was stored before an error stays; closing makes it last.
    let closed = store.close();
    let loaded = loaded?;
    closed?;
    print(&loaded, began.elapsed().as_secs_f64(), out)
}

/// An input that exists.
enum Source<'a> {
    Directory(&'a Path, Option<u64>),
    Rows(Box<Rows>),
    Ndjson(Option<&'a Path>, &'a str),
    Lines(Option<&'a Path>),
}

impl Source<'_> {
    fn open(from: &LoadFrom, on_bad: OnBad) -> Result<Source<'_>, Failure> {
        let file = |path| {
            let path = input(path);
            path.map_or(Ok(path), |p| must_be(p, false).map(|()| path))
        };
        Ok(match from {
            LoadFrom::Directory { path, cap } => {
                must_be(path, true)?;
                Source::Directory(path, cap.map(|size| size.0))
            }
            LoadFrom::Csv(record) => Source::rows(record, b',', on_bad)?,
            LoadFrom::Tsv(record) => Source::rows(record, b'\t', on_bad)?,
            LoadFrom::Ndjson { path, key_field } => Source::Ndjson(file(path)?, key_field),
            LoadFrom::Lines { path } => Source::Lines(file(path)?),
        })
    }

    fn rows(file: &RecordFile, delimiter: u8, on_bad: OnBad) -> Result<Source<'_>, Failure> {
        let rows = delimited(file, delimiter, on_bad).open(input(&file.path))?;
        Ok(Source::Rows(Box::new(rows)))
    }
}

/// `-` is standard input.
fn input(path: &Path) -> Option<&Path> {
    (path.as_os_str() != "-").then_some(path)
}

fn column(text: &str) -> Column {
    match text.parse() {
        Ok(number) => Column::Number(number),
        Err(_) => Column::Name(text.to_owned()),
    }
}

fn delimited(file: &RecordFile, delimiter: u8, on_bad: OnBad) -> Delimited {
    Delimited {
        delimiter,
        header: !file.no_header,
        key: column(&file.key_column),
        value: file.value_column.as_deref().map(column),
        on_bad,
    }
}

fn print(loaded: &Loaded, seconds: f64, out: &mut Output) -> Result<(), Failure> {
    if out.json() {
        let mut document = serde_json::to_value(loaded).unwrap_or_default();
        document["seconds"] = seconds.into();
        return out.document(&document);
    }
    out.line(&format!(
        "loaded {} records, {} of values, in {seconds:.1} s",
        count(loaded.records),
        size(loaded.value_bytes)
    ))?;
    if loaded.replaced_records > 0 {
        out.line(&format!(
            "{} more had the key of a later one, which replaced them",
            count(loaded.replaced_records)
        ))?;
    }
    if loaded.bad_records > 0 {
        out.line(&format!(
            "left out {} records that could not be stored",
            count(loaded.bad_records)
        ))?;
    }
    if let Some(text) = skipped(&loaded.skipped) {
        out.line(&format!("left out: {text}"))?;
    }
    Ok(())
}

/// What a directory load left out, for a person; `None` where nothing.
pub(crate) fn skipped(skipped: &isobath_lab::load::Skipped) -> Option<String> {
    let parts: Vec<String> = [
        (skipped.links, "links"),
        (skipped.special, "devices and sockets"),
        (skipped.unreadable, "unreadable"),
        (skipped.too_large, "over 1 GiB"),
        (skipped.long_paths, "with too long a path"),
        (skipped.over_cap, "beyond the size limit"),
    ]
    .iter()
    .filter(|(number, _)| *number > 0)
    .map(|(number, what)| format!("{} {what}", count(*number)))
    .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}
