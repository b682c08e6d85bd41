//! Backup, restore, salvage.

use std::time::Instant;

use isobath::{BackupOptions, SalvageOptions, Store};
use isobath_lab::{Unit, escape, partial_path};
use serde_json::json;

use super::store::{self, LARGE_POOL};
use crate::args::{BackupArgs, GlobalArgs, RestoreArgs, SalvageArgs};
use crate::failure::Failure;
use crate::interrupt::InOrder;
use crate::output::{Output, count, counted, size, soundness};
use crate::progress::{Progress, Stages};

/// The unit that the engine counts in a stage; see [`isobath::Watch`].
fn unit_of(stage: &str) -> Unit {
    match stage {
        "verifying" | "restoring" | "searching" => Unit::Bytes,
        _ => Unit::Items,
    }
}

pub(crate) fn backup(
    args: &BackupArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let store = store::read(&args.store, LARGE_POOL)?;
    let progress = Progress::start(global)?;
    let began = Instant::now();
    let mut options = BackupOptions::new()
        .overwrite(args.force)
        .verify(!args.no_verify);
    if let Some(base) = &args.since {
        options = options.since(base);
    }
    let mut shown = Stages::new(&progress);
    let in_order = InOrder::for_output(&args.file)?;
    let done = store.backup(&args.file, &options, &mut |stage, done, total| {
        shown.tell(stage, done, total, unit_of(stage))
    });
    drop(in_order);
    progress.clear();
    let closed = store.close();
    let done = done?;
    closed?;
    let seconds = began.elapsed().as_secs_f64();
    if out.json() {
        return out.document(&json!({
            "pages": done.pages,
            "page_bytes": done.page_bytes,
            "log_bytes": done.log_bytes,
            "file_bytes": done.file_bytes,
            "store_pages": done.store_pages,
            "rounds": done.rounds,
            "position": done.position.map(|position| position.to_string()),
            "verified": !args.no_verify,
            "seconds": seconds,
        }));
    }
    out.line(&format!(
        "backed up {} of {} pages and value chunks in {seconds:.1} s ({}: {}{})",
        count(done.pages),
        count(done.store_pages),
        args.file.display(),
        size(done.file_bytes),
        if args.no_verify { "" } else { ", verified" },
    ))?;
    match done.position {
        Some(position) => out.line(&format!("position in the log: {position}")),
        None => Ok(()),
    }
}

/// Answers whether the store is sound, as far as that was asked.
pub(crate) fn restore(
    args: &RestoreArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<bool, Failure> {
    let Some((first, backups)) = args.files.split_last() else {
        return Err(Failure::Usage("name a backup and the store to make".into()));
    };
    let mut paths = vec![first.clone()];
    paths.extend(args.also.iter().cloned());
    store::not_stdout(&paths)?;
    let options =
        store::with_pool(args.pool, LARGE_POOL).volume_limit_bytes(args.limit.map(|size| size.0));
    let progress = Progress::start(global)?;
    let began = Instant::now();
    let mut shown = Stages::new(&progress);
    let in_order = InOrder::begin()?;
    let done = Store::restore(backups, &paths, &options, &mut |stage, done, total| {
        shown.tell(stage, done, total, unit_of(stage))
    });
    drop(in_order);
    progress.clear();
    let done = done?;
    let problems = if args.check {
        let store = Store::open(&paths, &options.read_only(true))?;
        let report = store.check(&mut |done, total| {
            // A check of the restored store goes on to its end.
            let _ = shown.tell("checking", done, total, Unit::Items);
        });
        progress.clear();
        store.close()?;
        Some(report?.problems)
    } else {
        None
    };
    let seconds = began.elapsed().as_secs_f64();
    let sound = problems.as_ref().is_none_or(Vec::is_empty);
    if out.json() {
        out.document(&json!({
            "pages": done.pages,
            "page_bytes": done.page_bytes,
            "log_bytes": done.log_bytes,
            "file_bytes": done.file_bytes,
            "created": done.created,
            "problems": problems,
            "seconds": seconds,
        }))?;
        return Ok(sound);
    }
    out.each("problem", problems.as_deref().unwrap_or_default())?;
    out.line(&format!(
        "restored {} pages and value chunks, {} and {} of log, in {seconds:.1} s{}",
        count(done.pages),
        size(done.page_bytes),
        size(done.log_bytes),
        problems.map_or(String::new(), |all| format!(
            "; {}",
            soundness(all.len() as u64)
        ))
    ))?;
    Ok(sound)
}

/// Answers whether everything could be read.
pub(crate) fn salvage(
    args: &SalvageArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<bool, Failure> {
    store::not_stdout(std::slice::from_ref(&args.to))?;
    let partial = partial_path(&args.to);
    // Files of an earlier backup are not this one's to remove.
    let ours = match partial.exists() {
        true => Vec::new(),
        false => vec![partial],
    };
    let progress = Progress::in_order(global, &ours)?;
    let began = Instant::now();
    let options = SalvageOptions::new().search(args.search);
    let target = store::with_pool(args.store.pool, LARGE_POOL);
    let mut shown = Stages::new(&progress);
    let done = store::waiting(args.store.wait, || {
        let watch = &mut |stage, done, total| shown.tell(stage, done, total, unit_of(stage));
        let to = std::slice::from_ref(&args.to);
        isobath::salvage(&args.store.store, to, &options, &target, watch)
    });
    progress.clear();
    let done = done?;
    let seconds = began.elapsed().as_secs_f64();
    let whole = done.problems.is_empty();
    if out.json() {
        let trees: Vec<_> = done
            .trees
            .iter()
            .map(|tree| json!({"name": tree.name, "records": tree.records, "lost_values": tree.lost_values}))
            .collect();
        out.document(&json!({
            "trees": trees,
            "records": done.records(),
            "searched": done.searched,
            "log_records": done.log_records,
            "problems": done.problems,
            "seconds": seconds,
        }))?;
        return Ok(whole);
    }
    out.each("lost", &done.problems)?;
    for tree in &done.trees {
        let lost = match tree.lost_values {
            0 => String::new(),
            n => format!(", {} lost", counted(n, "value")),
        };
        let name = escape(tree.name.as_bytes());
        out.line(&format!(
            "{name}: {}{lost}",
            counted(tree.records, "record")
        ))?;
    }
    out.line(&format!(
        "salvaged {} of {} in {seconds:.1} s; {}",
        counted(done.records(), "record"),
        counted(done.trees.len() as u64, "tree"),
        match done.problems.len() {
            0 => "nothing was lost".to_owned(),
            n => counted(n as u64, "problem"),
        }
    ))?;
    Ok(whole)
}
