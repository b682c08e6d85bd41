//! Verbs over a whole store: trees, check, export, import.

use std::path::Path;
use std::time::Instant;

use isobath::{PAGE_SIZE, Store, TreeInfo};
use isobath_lab::export::{ExportPlan, ImportFile, Transferred};
use isobath_lab::{Unit, escape};
use serde_json::json;

use super::store::{self, LARGE_POOL, SMALL_POOL};
use crate::args::{
    CheckArgs, ExportArgs, GlobalArgs, ImportArgs, RecoverArgs, TreesArgs, TreesVerb,
};
use crate::failure::Failure;
use crate::interrupt::InOrder;
use crate::output::{Output, count, counted, size, soundness};
use crate::progress::{Progress, Stages};

pub(crate) fn trees(args: &TreesArgs, out: &mut Output) -> Result<(), Failure> {
    match &args.verb {
        TreesVerb::List => {
            let store = store::read(&args.store, SMALL_POOL)?;
            let trees = store.trees()?;
            if args.stats {
                tree_stats(&store, &trees, out)?;
                return Ok(store.close()?);
            }
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

/// Prints the statistics of each tree.
fn tree_stats(store: &Store, trees: &[TreeInfo], out: &mut Output) -> Result<(), Failure> {
    let (mut rows, mut has_overlays) = (Vec::new(), false);
    for tree in trees {
        let stats = store.tree(&tree.name)?.stats()?;
        if out.json() {
            out.document(&json!({
                "name": tree.name,
                "id": tree.id,
                "is_exact": stats.is_exact,
                "levels": stats.levels,
                "leaf_pages": stats.leaf_pages,
                "inner_pages": stats.inner_pages,
                "records": stats.records,
                "key_bytes": stats.key_bytes,
                "value_bytes": stats.value_bytes,
                "large_values": stats.large_values,
                "large_value_bytes": stats.large_value_bytes,
                "bytes": stats.bytes,
                "leaf_fill": stats.leaf_fill,
                "memory_records": stats.memory_records,
                "runs": stats.runs,
                "run_records": stats.run_records,
                "run_bytes": stats.run_bytes,
            }))?;
            continue;
        }
        let about = if stats.is_exact { "" } else { "~" };
        rows.push(vec![
            escape(tree.name.as_bytes()),
            format!("{about}{}", count(stats.records)),
            format!("{about}{}", size(stats.bytes)),
            count(stats.leaf_pages + stats.inner_pages + stats.run_bytes / PAGE_SIZE as u64),
            stats.levels.to_string(),
            format!("{:.0}%", 100.0 * stats.leaf_fill),
            count(stats.large_values),
            count(stats.memory_records + stats.run_records),
        ]);
        has_overlays |= stats.memory_records + stats.runs > 0;
    }
    if out.json() {
        return Ok(());
    }
    let header = [
        "tree", "records", "bytes", "pages", "levels", "fill", "large", "overlaid",
    ];
    let columns = header.len() - usize::from(!has_overlays);
    rows.iter_mut().for_each(|row| row.truncate(columns));
    out.table(&header[..columns], &rows, true)
}

fn changed(what: &str, name: &str, out: &mut Output) -> Result<(), Failure> {
    if out.json() {
        out.document(&json!({ what: name }))
    } else {
        out.line(&format!("{what} tree `{}`", escape(name.as_bytes())))
    }
}

/// Answers whether the store is sound.
pub(crate) fn check(
    args: &CheckArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<bool, Failure> {
    let store = store::read(&args.store, LARGE_POOL)?;
    let progress = Progress::start(global)?;
    let began = Instant::now();
    let mut shown = Stages::new(&progress);
    let report = store.check(&mut |done, total| {
        // A check goes on to its end.
        let _ = shown.tell("checking", done, total, Unit::Items);
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
    out.each("problem", &report.problems)?;
    if report.unreadable_summaries > 0 {
        out.line(&format!(
            "note: {} of segments cannot be read; cleaning rebuilds them",
            counted(report.unreadable_summaries, "summary")
        ))?;
    }
    out.line(&format!(
        "{}: {}, {}, {}, {}, {} verified in {:.1} s",
        soundness(report.problems.len() as u64),
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
    let mut recovered = None;
    if store::needs_recovery(&args.store)? {
        let store = store::write(&args.store, LARGE_POOL)?;
        recovered = Some(store.stats().recovered_log_bytes);
        store.close()?;
    }
    if out.json() {
        return out.document(&json!({
            "recovered_log_bytes": recovered.unwrap_or(0),
            "was_closed": recovered.is_none(),
        }));
    }
    out.line(match recovered {
        None => "the store was closed; there is nothing to recover",
        Some(0) => "the store was not closed, and is now; nothing was only in its log",
        Some(_) => "recovered",
    })
}

pub(crate) fn export(
    args: &ExportArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let to_stdout = args.file.as_os_str() == "-";
    let store = store::read(&args.store, LARGE_POOL)?;
    let progress = Progress::start(global)?;
    let began = Instant::now();
    let plan = ExportPlan {
        to: (!to_stdout).then(|| args.file.clone()),
        trees: args.trees.clone(),
        overwrite: args.force,
    };
    let in_order = InOrder::for_output(&args.file)?;
    let done = isobath_lab::export::export(&store, &plan, &progress);
    drop(in_order);
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
    let progress = Progress::start(global)?;
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
