//! stats: every number that a store has, as a table, as JSON, or as a page for Prometheus.

use std::io::Write as _;

use isobath::{OutputFile, StatKind, Stats};
use isobath_lab::LabError;
use serde_json::{Map, Value};

use super::store::{self, SMALL_POOL};
use super::watch::{Causes, fill};
use crate::args::{StatsArgs, StatsFormat};
use crate::failure::Failure;
use crate::output::{Output, count, size};

/// The statistics of a store, and how many trees it has where it could be opened.
fn read_stats(args: &StatsArgs) -> Result<(Stats, Option<u64>), Failure> {
    // The process that has it open for writing has published its statistics.
    let published = args
        .store
        .store
        .first()
        .map(|path| Stats::of_store_in_use(path));
    if let Some(Ok(stats)) = published {
        return Ok((stats, None));
    }
    let store = store::read(&args.store, SMALL_POOL)?;
    let stats = store.stats();
    let trees = store.trees()?.len() as u64;
    store.close()?;
    Ok((stats, Some(trees)))
}

pub(crate) fn stats(args: &StatsArgs, out: &mut Output) -> Result<(), Failure> {
    let (stats, trees) = read_stats(args)?;
    if args.format == Some(StatsFormat::Openmetrics) {
        return openmetrics(args, &stats, out);
    }
    let amplification = Causes::of(&stats).amplification(stats.user_bytes_written);
    if out.json() {
        let mut object = Map::new();
        object.insert("trees".into(), trees.into());
        for number in stats.numbers() {
            object.insert(number.name.into(), number.value.into());
        }
        object.insert("fill_ratio".into(), fill(&stats).into());
        object.insert("wa_a_ratio".into(), amplification.map(|wa| wa.0).into());
        for (cause, bytes) in Causes::of(&stats).0 {
            object.insert(format!("{cause}_bytes_written"), bytes.into());
        }
        object.insert(
            "segment_emptiness".into(),
            stats.segment_emptiness.to_vec().into(),
        );
        object.insert("backend".into(), stats.backend.into());
        return out.document(&Value::Object(object));
    }
    let mut rows = Vec::new();
    if let Some(trees) = trees {
        rows.push(vec!["trees".to_owned(), count(trees), String::new()]);
    }
    // Of a store that no process has open, counters would only say what this command did.
    let is_in_use = trees.is_none();
    let numbers = stats.numbers();
    for number in numbers.filter(|n| is_in_use || n.kind == StatKind::Gauge && n.value > 0) {
        let shown = if number.name.contains("bytes") {
            size(number.value)
        } else {
            count(number.value)
        };
        rows.push(vec![number.name.to_owned(), shown, meaning(number.help)]);
    }
    let percent = format!("{:.1}%", 100.0 * fill(&stats));
    rows.push(vec![
        "fill".into(),
        percent,
        "live bytes over all segments".into(),
    ]);
    let bins: Vec<String> = stats.segment_emptiness.iter().map(u64::to_string).collect();
    rows.push(vec![
        "segment_emptiness".into(),
        bins.join(" "),
        "full segments by tenths of them that are obsolete".into(),
    ]);
    if let Some((total, parts)) = amplification.filter(|_| is_in_use) {
        let parts: Vec<String> = Causes::of(&stats)
            .0
            .iter()
            .zip(parts)
            .map(|(cause, part)| format!("{} {part:.2}", cause.0))
            .collect();
        rows.push(vec!["WA-A".into(), format!("{total:.2}"), parts.join(", ")]);
    }
    if is_in_use {
        let longest = format!("{:.1} ms", stats.stall_ns_max as f64 / 1e6);
        let since = "since it was opened".to_owned();
        rows.push(vec!["longest stall".into(), longest, since]);
    }
    rows.push(vec!["backend".into(), stats.backend, String::new()]);
    out.table(&[], &rows, false)?;
    match is_in_use {
        true => Ok(()),
        false => out.paragraph("counters are of the process that has a store open for writing, and none of yours has this one; `isobath info` says what is in it"),
    }
}

/// The first sentence of what a number says, in a few words.
fn meaning(help: &str) -> String {
    let first = help.split(['.', ';', ':']).next().unwrap_or(help);
    first.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Prints the page for Prometheus, or replaces a file by it at once: a program that reads the file
/// finds all of it.
fn openmetrics(args: &StatsArgs, stats: &Stats, out: &mut Output) -> Result<(), Failure> {
    let first = args.store.store.first();
    let name = first.map_or_else(String::new, |path| path.display().to_string());
    let page = stats.to_openmetrics(&[("store", &name)]);
    let Some(path) = &args.output else {
        return out.raw(page.as_bytes());
    };
    let mut file = OutputFile::create(path, true)?;
    file.write_all(page.as_bytes())
        .map_err(LabError::io("write", path))?;
    Ok(file.finish()?)
}
