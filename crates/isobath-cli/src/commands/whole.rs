//! Verbs over a whole store: trees, stats, check, export, import.

use std::path::Path;
use std::time::Instant;

use isobath::Stats;
use isobath_lab::export::{ExportPlan, ImportFile, Transferred};
use isobath_lab::{LabError, Unit, escape};
use serde_json::{Map, Value, json};

use super::store::{self, LARGE_POOL, SMALL_POOL};
use super::watch::{Causes, fill};
use crate::args::{
    CheckArgs, ExportArgs, GlobalArgs, ImportArgs, RecoverArgs, StatsArgs, TreesArgs, TreesVerb,
};
use crate::failure::Failure;
use crate::output::{Output, count, counted, problems_found, size};
use crate::progress::{self, Stages};

pub(crate) fn trees(args: &TreesArgs, out: &mut Output) -> Result<(), Failure> {
    match &args.verb {
        TreesVerb::List => {
            let store = store::read(&args.store, SMALL_POOL)?;
            let trees = store.trees()?;
            store.close()?;
            if out.json() {
                for tree in &trees {
                    out.document(&json!({"name": tree.name, "id": tree.id}))?;
                }
                return Ok(());
            }
            for tree in &trees {
                out.line(&escape(tree.name.as_bytes()))?;
            }
            Ok(())
        }
        TreesVerb::Create { name, create } => {
            let target = store::write_or_create(&args.store, create, SMALL_POOL)?;
            target.finish(|target| Ok(target.store.create_tree(name).map(drop)?))?;
            changed("created", name, out)
        }
        TreesVerb::Drop { name } => {
            let store = store::write(&args.store, SMALL_POOL)?;
            store.drop_tree(name)?;
            store.close()?;
            changed("dropped", name, out)
        }
    }
}

fn changed(what: &str, name: &str, out: &mut Output) -> Result<(), Failure> {
    if out.json() {
        out.document(&json!({ what: name }))
    } else {
        out.line(&format!("{what} tree `{}`", escape(name.as_bytes())))
    }
}

/// The statistics of a store, and how many trees it has where it could be opened.
fn read_stats(args: &StatsArgs) -> Result<(Stats, Option<u64>), Failure> {
    // Whoever has it open for writing has published what happens to it.
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
    let amplification = Causes::of(&stats).amplification(stats.user_bytes_written);
    if out.json() {
        let mut object = Map::new();
        object.insert("trees".into(), trees.into());
        for (name, value, _) in numbers(&stats) {
            object.insert(name.into(), value.into());
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
    for (name, value, meaning) in numbers(&stats) {
        let shown = if name.contains("bytes") {
            size(value)
        } else {
            count(value)
        };
        rows.push(vec![name.to_owned(), shown, meaning.to_owned()]);
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
        "full segments by tenths of them that are dead".into(),
    ]);
    if let Some((total, parts)) = amplification {
        let parts: Vec<String> = Causes::of(&stats)
            .0
            .iter()
            .zip(parts)
            .map(|(cause, part)| format!("{} {part:.2}", cause.0))
            .collect();
        rows.push(vec!["WA-A".into(), format!("{total:.2}"), parts.join(", ")]);
    }
    let longest = format!("{:.1} ms", stats.stall_ns_max as f64 / 1e6);
    rows.push(vec![
        "longest stall".into(),
        longest,
        "since it was opened".into(),
    ]);
    rows.push(vec!["backend".into(), stats.backend, String::new()]);
    out.table(&[], &rows, false)
}

/// Name, value and meaning of every number in the statistics.
fn numbers(s: &Stats) -> [(&'static str, u64, &'static str); 24] {
    [
        ("volume_bytes", s.volume_bytes, "size of the store's files"),
        (
            "live_bytes",
            s.live_bytes,
            "current pages and value chunks on the volume",
        ),
        (
            "allocated_bytes",
            s.allocated_bytes,
            "all that exist, written yet or not",
        ),
        (
            "capacity_bytes",
            s.capacity_bytes,
            "what they may take before the volume grows",
        ),
        ("segments", s.segments, "units of allocation and cleaning"),
        ("free_segments", s.free_segments, "of these, empty"),
        ("segment_bytes", s.segment_bytes, "size of one"),
        (
            "page_ids",
            s.page_ids,
            "in use or free; 8 bytes of memory each",
        ),
        (
            "damaged_pages",
            s.damaged_pages,
            "that the cleaner came upon",
        ),
        (
            "unreadable_summaries",
            s.unreadable_summaries,
            "of segments; rebuilt by the cleaner",
        ),
        (
            "pool_frames",
            s.pool_frames,
            "4 KiB frames of the buffer pool",
        ),
        ("pool_free_frames", s.pool_free_frames, "of these, unused"),
        ("dirty_pages", s.dirty_pages, "changed and not yet written"),
        ("workers", s.workers, "worker threads"),
        ("page_reads", s.page_reads, "since it was opened"),
        ("page_writes", s.page_writes, "since it was opened"),
        ("bytes_read", s.bytes_read, "since it was opened"),
        ("bytes_written", s.bytes_written, "since it was opened"),
        (
            "user_bytes_written",
            s.user_bytes_written,
            "keys and values, since it was opened",
        ),
        (
            "cleaning_bytes_written",
            s.cleaning_bytes_written,
            "moved by the cleaner",
        ),
        (
            "relocations",
            s.relocations,
            "pages and chunks that it moved",
        ),
        ("segments_cleaned", s.segments_cleaned, "that it emptied"),
        ("evictions", s.evictions, "pages that left the pool"),
        ("stalls", s.stalls, "waits for writes or for cleaning"),
    ]
}

/// Answers whether the store is sound.
pub(crate) fn check(
    args: &CheckArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<bool, Failure> {
    let store = store::read(&args.store, LARGE_POOL)?;
    let progress = super::progress(global)?;
    let began = Instant::now();
    let mut shown = Stages::new(&progress);
    let report = store.check(&mut |done, total| {
        let _ = shown.tell("checking", done, total, Unit::Items);
        // It only reads.
        progress::leave_if_stopped();
    })?;
    progress.clear();
    store.close()?;
    if out.json() {
        out.document(&json!({
            "trees": report.trees,
            "pages": report.pages,
            "records": report.records,
            "value_chunks": report.value_chunks,
            "bytes_verified": report.bytes_verified,
            "unreadable_summaries": report.unreadable_summaries,
            "seconds": began.elapsed().as_secs_f64(),
            "problems": report.problems,
        }))?;
        return Ok(report.problems.is_empty());
    }
    for problem in &report.problems {
        out.line(&format!("problem: {}", escape(problem.as_bytes())))?;
    }
    if report.unreadable_summaries > 0 {
        out.line(&format!(
            "note: {} of segments cannot be read; cleaning rebuilds them",
            counted(report.unreadable_summaries, "summary")
        ))?;
    }
    out.line(&format!(
        "{}: {}, {}, {}, {}, {} verified in {:.1} s",
        match report.problems.len() {
            0 => "sound".to_owned(),
            n => problems_found(n),
        },
        counted(report.trees, "tree"),
        counted(report.records, "record"),
        counted(report.pages, "page"),
        counted(report.value_chunks, "value chunk"),
        size(report.bytes_verified),
        began.elapsed().as_secs_f64()
    ))?;
    Ok(report.problems.is_empty())
}

pub(crate) fn recover(args: &RecoverArgs, out: &mut Output) -> Result<(), Failure> {
    let recovered = match store::read(&args.store, SMALL_POOL) {
        Ok(closed) => {
            closed.close()?;
            0
        }
        Err(Failure::Lab(LabError::Engine(isobath::Error::NeedsRecovery { .. }))) => {
            let store = store::write(&args.store, LARGE_POOL)?;
            let bytes = store.stats().recovered_log_bytes;
            store.close()?;
            bytes
        }
        Err(other) => return Err(other),
    };
    if out.json() {
        return out.document(&json!({ "recovered_log_bytes": recovered }));
    }
    out.line(match recovered {
        0 => "the store was closed; there is nothing to recover",
        _ => "recovered",
    })
}

pub(crate) fn export(
    args: &ExportArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let to_stdout = args.file.as_os_str() == "-";
    let store = store::read(&args.store, LARGE_POOL)?;
    let progress = super::progress(global)?;
    let began = Instant::now();
    let plan = ExportPlan {
        to: (!to_stdout).then(|| args.file.clone()),
        trees: args.trees.clone(),
        overwrite: args.force,
    };
    let done = isobath_lab::export::export(&store, &plan, &progress);
    progress.clear();
    let closed = store.close();
    let done = done?;
    closed?;
    if to_stdout {
        return Ok(());
    }
    transferred("exported", &done, &args.file, began, out)
}

pub(crate) fn import(
    args: &ImportArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let from = (args.file.as_os_str() != "-").then(|| args.file.clone());
    let progress = super::progress(global)?;
    // The file is looked at before the store, so that a wrong one leaves no
    // new, empty store behind.
    let file = ImportFile::open(from.as_deref(), &progress)?;
    let target = store::write_or_create(&args.store, &args.create, LARGE_POOL)?;
    let began = Instant::now();
    let done = target.finish(|target| {
        let done = file.import(&target.store, args.merge);
        progress.clear();
        Ok(done?)
    })?;
    transferred("imported", &done, &args.file, began, out)
}

fn transferred(
    what: &str,
    done: &Transferred,
    file: &Path,
    began: Instant,
    out: &mut Output,
) -> Result<(), Failure> {
    let seconds = began.elapsed().as_secs_f64();
    if out.json() {
        let mut document = serde_json::to_value(done).unwrap_or_default();
        document["seconds"] = seconds.into();
        return out.document(&document);
    }
    out.line(&format!(
        "{what} {}, {}, {} of values in {seconds:.1} s ({}: {})",
        counted(done.trees, "tree"),
        counted(done.records, "record"),
        size(done.value_bytes),
        file.display(),
        size(done.file_bytes)
    ))
}
