//! load.

use std::path::Path;
use std::time::Instant;

use isobath_lab::load::{
    Column, Delimited, LineFormat, Lines, Loaded, OnBad, Rows, load_directory, must_be,
};

use super::store::{self, LARGE_POOL};
use crate::args::{GlobalArgs, LoadArgs, LoadFrom, RecordFile};
use crate::failure::Failure;
use crate::output::{Output, count, counted, size};
use crate::progress::Progress;

pub(crate) fn load(args: &LoadArgs, global: &GlobalArgs, out: &mut Output) -> Result<(), Failure> {
    let on_bad = if args.skip_bad {
        OnBad::Skip
    } else {
        OnBad::Stop
    };
    let progress = Progress::start(global)?;
    // Files are stored one by one, everything else together at the end.
    if !matches!(args.from, LoadFrom::Directory { .. }) {
        store::remove_unfinished(&args.store, &args.create);
    }
    // The input is looked at before the store, so that a wrong name or column
    // leaves no new, empty store behind.
    let source = Source::open(&args.from, on_bad, &progress)?;
    let bytes = source.bytes();
    let target = store::write_or_create_for(&args.store, &args.create, LARGE_POOL, bytes)?;
    let began = Instant::now();
    let loaded = target.finish(|target| {
        let tree = target.tree(&args.tree, &args.new_tree)?;
        let loaded = match source {
            Source::Directory(path, cap) => {
                load_directory(&target.store, &tree, path, cap, &progress)
            }
            Source::Rows(rows) => rows.load(&tree),
            Source::Ndjson(lines, field) => lines.load_ndjson(&tree, field, on_bad),
            Source::Lines(lines, format) => lines.load(&tree, format, on_bad),
        };
        progress.clear();
        let loaded = loaded?;
        if target.is_new {
            // The volume and its log have grown ahead of the load.
            target.store.compact()?;
        }
        Ok(loaded)
    })?;
    print(&loaded, began.elapsed().as_secs_f64(), out)
}

/// An input that exists.
enum Source<'a> {
    Directory(&'a Path, Option<u64>),
    Rows(Box<Rows<'a>>),
    Ndjson(Lines<'a>, &'a str),
    Lines(Lines<'a>, LineFormat),
}

impl<'a> Source<'a> {
    fn open(
        from: &'a LoadFrom,
        on_bad: OnBad,
        progress: &'a Progress,
    ) -> Result<Source<'a>, Failure> {
        let rows = |file: &'a RecordFile, delimiter| {
            let rows = delimited(file, delimiter, on_bad).open(Some(&file.path), progress)?;
            Ok::<_, Failure>(Source::Rows(Box::new(rows)))
        };
        let lines = |path: &'a Path| Lines::open(Some(path), progress);
        Ok(match from {
            LoadFrom::Directory { path, cap } => {
                must_be(path, true)?;
                Source::Directory(path, cap.map(|size| size.0))
            }
            LoadFrom::Csv { file, delimiter } => rows(file, *delimiter)?,
            LoadFrom::Tsv(file) => rows(file, b'\t')?,
            LoadFrom::Ndjson { path, key_field } => Source::Ndjson(lines(path)?, key_field),
            LoadFrom::Lines { path, hex, escaped } => {
                let format = match (hex, escaped) {
                    (true, _) => LineFormat::Hex,
                    (_, true) => LineFormat::Escaped,
                    _ => LineFormat::Raw,
                };
                Source::Lines(lines(path)?, format)
            }
        })
    }

    /// Bytes that it has, as far as that is known.
    fn bytes(&self) -> u64 {
        let total = match self {
            Source::Directory(..) => None,
            Source::Rows(rows) => rows.bytes(),
            Source::Ndjson(lines, _) | Source::Lines(lines, _) => lines.bytes(),
        };
        total.unwrap_or(0)
    }
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
        "loaded {}, {} of values, in {seconds:.1} s",
        counted(loaded.records, "record"),
        size(loaded.value_bytes)
    ))?;
    if loaded.replaced_records > 0 {
        out.line(&format!(
            "{} had the key of a later one, which is the one that is kept:",
            counted(loaded.replaced_records, "more record")
        ))?;
        for replaced in &loaded.replaced_lines {
            out.line(&format!(
                "  line {}, replaced by line {}",
                count(replaced.line),
                count(replaced.by_line)
            ))?;
        }
        and_more(loaded.replaced_records, loaded.replaced_lines.len(), out)?;
    }
    if loaded.bad_records > 0 {
        out.line(&format!(
            "left out {} that could not be stored:",
            counted(loaded.bad_records, "record")
        ))?;
        for bad in &loaded.bad_lines {
            let reason = isobath_lab::escape(bad.reason.as_bytes());
            out.line(&format!("  line {}: {reason}", count(bad.line)))?;
        }
        and_more(loaded.bad_records, loaded.bad_lines.len(), out)?;
    }
    if let Some(text) = skipped(&loaded.skipped) {
        out.line(&format!("left out: {text}"))?;
    }
    Ok(())
}

/// Prints that not all lines are listed.
fn and_more(all: u64, told: usize, out: &mut Output) -> Result<(), Failure> {
    match all.saturating_sub(told as u64) {
        0 => Ok(()),
        more => out.line(&format!("  and {} more", count(more))),
    }
}

/// The files that a directory load left out, for the user; `None` if none.
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
