//! Care of stores: checkpoints, compaction, checks, statistics, backups.

use std::ffi::{c_char, c_void};
use std::ops::ControlFlow;

use isobath::{BackupOptions, Stats, Store};

use super::bytes::isobath_bytes;
use super::options::{isobath_options, options_of};
use super::status::{Failure, isobath_status};
use super::store::isobath_store;
use super::tree::isobath_tree;
use super::{done, guard, object, path_of, paths_of, text_of};
use isobath_status::*;

/// Called with the progress of long work: how much is done of how much, 0 if that is not known.
/// Returning false ends the work, if the function says so. Must not call the library.
pub type isobath_progress =
    Option<unsafe extern "C" fn(argument: *mut c_void, is_done: u64, total: u64) -> bool>;

/// A progress function with its argument; called by one thread at a time.
struct Watcher(isobath_progress, *mut c_void);

// SAFETY: the program gives a function that may be called from another thread while its own one
// waits.
unsafe impl Send for Watcher {}

impl Watcher {
    fn tell(&self, is_done: u64, total: u64) -> bool {
        // SAFETY: a function of the program's.
        self.0
            .is_none_or(|tell| unsafe { tell(self.1, is_done, total) })
    }
}

/// Writes a checkpoint now: recovery has to read only later records. Any thread.
///
/// # Safety
///
/// As of all: objects are the library's and were not freed, or NULL; texts end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_checkpoint(store: *const isobath_store) -> isobath_status {
    guard(|| done(given!(object(store)?).0.checkpoint()))
}

/// What compaction has gained, in bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct isobath_compaction {
    /// The volume's length before.
    pub bytes_before: u64,
    /// The volume's length after.
    pub bytes_after: u64,
    /// Bytes that block devices were asked to discard.
    pub bytes_discarded: u64,
}

/// Packs the stored data and gives the space behind it back to the file system, while the store is
/// used. `gained` may be NULL. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_compact(
    store: *const isobath_store,
    gained: *mut isobath_compaction,
) -> isobath_status {
    guard(|| {
        let found = given!(object(store)?).0.compact()?;
        if !gained.is_null() {
            let report = isobath_compaction {
                bytes_before: found.bytes_before,
                bytes_after: found.bytes_after,
                bytes_discarded: found.bytes_discarded,
            };
            given!(gained.write(report));
        }
        Ok(ISOBATH_OK)
    })
}

/// Discards the segments that hold nothing on the drive; `bytes` says how much that was, and may be
/// NULL. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_discard_free_segments(
    store: *const isobath_store,
    bytes: *mut u64,
) -> isobath_status {
    guard(|| {
        let discarded = given!(object(store)?).0.discard_free_segments()?;
        if !bytes.is_null() {
            given!(bytes.write(discarded));
        }
        Ok(ISOBATH_OK)
    })
}

/// What a check found.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct isobath_check_report {
    /// Named trees.
    pub trees: u64,
    /// Their pages.
    pub pages: u64,
    /// Their records.
    pub records: u64,
    /// Chunks of large values.
    pub value_chunks: u64,
    /// Bytes that were read and verified.
    pub bytes_verified: u64,
    /// The problem.
    pub problem_count: u64,
    /// A sentence for each, in lines; freed by isobath_bytes_free. `data` is NULL if nothing is
    /// wrong.
    pub problems: isobath_bytes,
}

/// Reads and verifies everything; the store must not be changed during that. ISOBATH_CORRUPT where
/// something is wrong, which the report says. `progress` may be NULL and cannot end the work. Any
/// thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_check(
    store: *const isobath_store,
    progress: isobath_progress,
    argument: *mut c_void,
    report: *mut isobath_check_report,
) -> isobath_status {
    guard(|| {
        let store = given!(object(store)?);
        crate::not_null(report)?;
        let watcher = Watcher(progress, argument);
        let found = store.0.check(&mut move |is_done, total| {
            let watcher = &watcher;
            watcher.tell(is_done, total);
        })?;
        let text = found.problems.join("\n");
        let is_sound = found.problems.is_empty();
        let answer = isobath_check_report {
            trees: found.trees,
            pages: found.pages,
            records: found.records,
            value_chunks: found.value_chunks,
            bytes_verified: found.bytes_verified,
            problem_count: found.problems.len() as u64,
            problems: isobath_bytes::of((!is_sound).then(|| text.clone().into_bytes())),
        };
        given!(report.write(answer));
        match is_sound {
            true => Ok(ISOBATH_OK),
            false => Err(Failure::Status(ISOBATH_CORRUPT, text)),
        }
    })
}

/// All statistics, one name and number per line, without a zero at the end; freed by
/// isobath_bytes_free. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_stats_text(
    store: *const isobath_store,
    text: *mut isobath_bytes,
) -> isobath_status {
    guard(|| {
        let stats = given!(object(store)?).0.stats();
        given!(give_text(stats.to_string(), text))
    })
}

/// All statistics in the OpenMetrics format, for Prometheus; freed by isobath_bytes_free. Any
/// thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_stats_openmetrics(
    store: *const isobath_store,
    text: *mut isobath_bytes,
) -> isobath_status {
    guard(|| {
        let stats = given!(object(store)?).0.stats();
        given!(give_text(stats.to_openmetrics(&[]), text))
    })
}

/// The statistics of a store that another process has open, as isobath_stats_text. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_stats_of_store_in_use(
    path: *const c_char,
    text: *mut isobath_bytes,
) -> isobath_status {
    guard(|| {
        crate::not_null(text)?;
        let stats = Stats::of_store_in_use(&given!(path_of(path)?))?;
        given!(give_text(stats.to_string(), text))
    })
}

unsafe fn give_text(text: String, out: *mut isobath_bytes) -> Result<isobath_status, Failure> {
    crate::not_null(out)?;
    given!(out.write(isobath_bytes::new(text.into_bytes())));
    Ok(ISOBATH_OK)
}

/// One number of the statistics by its name, such as "commits"; ISOBATH_NOT_FOUND if there is
/// none of that name. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_stat(
    store: *const isobath_store,
    name: *const c_char,
    value: *mut u64,
) -> isobath_status {
    guard(|| {
        let (store, name) = given!((object(store)?, text_of(name)?));
        crate::not_null(value)?;
        let stats = store.0.stats();
        let Some(stat) = stats.numbers().find(|stat| stat.name == name) else {
            return Ok(ISOBATH_NOT_FOUND);
        };
        given!(value.write(stat.value));
        Ok(ISOBATH_OK)
    })
}

/// What a tree holds; estimated unless `is_exact`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct isobath_tree_stats {
    /// Nothing is estimated.
    pub is_exact: bool,
    /// Levels, that of the leaves included.
    pub levels: u64,
    /// Pages that hold records.
    pub leaf_pages: u64,
    /// Pages above them.
    pub inner_pages: u64,
    /// Records.
    pub records: u64,
    /// Bytes of all keys.
    pub key_bytes: u64,
    /// Bytes of all values.
    pub value_bytes: u64,
    /// Values that have chunks of their own.
    pub large_values: u64,
    /// Bytes of those.
    pub large_value_bytes: u64,
    /// Bytes of pages and large values.
    pub bytes: u64,
    /// Share of the leaves' bytes that is in use, 0 to 1.
    pub leaf_fill: f64,
    /// Records of the tree's overlays in memory, removals included.
    pub memory_records: u64,
    /// Runs of its overlays.
    pub runs: u64,
    /// Their records that are to be merged, removals included.
    pub run_records: u64,
    /// Bytes of their pages.
    pub run_bytes: u64,
}

/// What a tree holds. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_tree_get_stats(
    tree: *const isobath_tree,
    stats: *mut isobath_tree_stats,
) -> isobath_status {
    guard(|| {
        let found = given!(object(tree)?).0.stats()?;
        crate::not_null(stats)?;
        let answer = isobath_tree_stats {
            is_exact: found.is_exact,
            levels: found.levels,
            leaf_pages: found.leaf_pages,
            inner_pages: found.inner_pages,
            records: found.records,
            key_bytes: found.key_bytes,
            value_bytes: found.value_bytes,
            large_values: found.large_values,
            large_value_bytes: found.large_value_bytes,
            bytes: found.bytes,
            leaf_fill: found.leaf_fill,
            memory_records: found.memory_records,
            runs: found.runs,
            run_records: found.run_records,
            run_bytes: found.run_bytes,
        };
        given!(stats.write(answer));
        Ok(ISOBATH_OK)
    })
}

/// What a backup consists of.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct isobath_backup_report {
    /// Pages and chunks of large values in the file.
    pub pages: u64,
    /// Their bytes.
    pub page_bytes: u64,
    /// Bytes of log records in the file.
    pub log_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
}

/// Writes a backup of the store to the new file `to`, while the store is used; only what has
/// changed since the backup `since`, unless that is NULL. Returning false from `progress` ends it
/// with ISOBATH_INTERRUPTED. `progress` and `report` may be NULL. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_backup(
    store: *const isobath_store,
    to: *const c_char,
    since: *const c_char,
    progress: isobath_progress,
    argument: *mut c_void,
    report: *mut isobath_backup_report,
) -> isobath_status {
    guard(|| {
        let (store, to) = given!((object(store)?, path_of(to)?));
        let mut options = BackupOptions::new();
        if !since.is_null() {
            options = options.since(given!(path_of(since)?));
        }
        let watcher = Watcher(progress, argument);
        let mut watch = watch(watcher);
        let made = store.0.backup(&to, &options, &mut watch)?;
        if !report.is_null() {
            let answer = isobath_backup_report {
                pages: made.pages,
                page_bytes: made.page_bytes,
                log_bytes: made.log_bytes,
                file_bytes: made.file_bytes,
            };
            given!(report.write(answer));
        }
        Ok(ISOBATH_OK)
    })
}

fn watch(watcher: Watcher) -> impl FnMut(&'static str, u64, u64) -> ControlFlow<()> + Send {
    move |_, is_done, total| {
        let watcher = &watcher;
        match watcher.tell(is_done, total) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    }
}

/// Makes a store on `paths` from a full backup and the incremental ones that follow it. `options`
/// and `progress` may be NULL. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_restore(
    backups: *const *const c_char,
    backup_count: usize,
    paths: *const *const c_char,
    path_count: usize,
    options: *const isobath_options,
    progress: isobath_progress,
    argument: *mut c_void,
) -> isobath_status {
    guard(|| {
        let (backups, paths, options) = given! {
            (
                paths_of(backups, backup_count)?,
                paths_of(paths, path_count)?,
                options_of(options),
            )
        };
        let mut watch = watch(Watcher(progress, argument));
        Store::restore(&backups, &paths, &options, &mut watch)?;
        Ok(ISOBATH_OK)
    })
}
