//! Statistics of a store in use for other processes, in a small file in memory that is replaced now
//! and then. A library has no server to ask, and shared counters would let any process that
//! truncates their file kill the writer with SIGBUS.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Engine, WorkerState};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The directory of such files: never on a drive, whose write-back would make the store wait.
const DIRECTORY: &str = "/dev/shm";
/// Time between two of them.
const PERIOD: Duration = Duration::from_millis(250);

/// The file of the store whose first file or device is `path`; `None` if that does not exist.
///
/// It is named after the file itself, so that it is found by any of the file's names.
pub(crate) fn file_of(path: &Path) -> Option<PathBuf> {
    let meta = fs::metadata(path).ok()?;
    let name = if meta.file_type().is_block_device() {
        format!("isobath-device-{:x}.stats", meta.rdev())
    } else {
        format!("isobath-{:x}-{:x}.stats", meta.dev(), meta.ino())
    };
    Some(Path::new(DIRECTORY).join(name))
}

/// Writes the file now and then, and removes it in the end.
pub(crate) struct Publisher {
    file: PathBuf,
    /// Writes the file's contents.
    describe: fn(&Engine) -> String,
    began: Instant,
    /// Nanoseconds since `began` at the last time.
    last_ns: AtomicU64,
    /// The activity counter at that time; see [`Publisher::is_due`].
    activity: AtomicU64,
}

impl Publisher {
    /// For the store whose first file is `path`; `None` if the system has no place for it.
    pub(crate) fn new(path: &Path, describe: fn(&Engine) -> String) -> Option<Publisher> {
        let file = file_of(path)?;
        Some(Publisher {
            file,
            describe,
            began: crate::runtime::clock::wall(),
            last_ns: AtomicU64::new(0),
            activity: AtomicU64::new(u64::MAX),
        })
    }

    /// Whether something has happened since the last time: `activity` is any number that changes
    /// with it.
    pub(crate) fn is_behind(&self, activity: u64) -> bool {
        self.activity.load(Ordering::Relaxed) != activity
    }

    /// Whether it is time to publish again. At most one caller gets `true`.
    pub(crate) fn is_due(&self, activity: u64) -> bool {
        if !self.is_behind(activity) {
            return false;
        }
        let now = self.began.elapsed().as_nanos() as u64;
        let last = self.last_ns.load(Ordering::Relaxed);
        let due = last == 0 || now.saturating_sub(last) >= PERIOD.as_nanos() as u64;
        let won = due
            && self
                .last_ns
                .compare_exchange(last, now.max(1), Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if won {
            self.activity.store(activity, Ordering::Relaxed);
        }
        won
    }

    /// Replaces the file. Nothing depends on it: what fails is left undone.
    fn publish(&self, engine: &Engine) {
        let part = self.file.with_extension("part");
        // There may be none.
        let _ = fs::remove_file(&part);
        let written = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&part)
            .and_then(|mut file| file.write_all((self.describe)(engine).as_bytes()));
        if written.is_ok() {
            // Readers see the older numbers for longer.
            let _ = fs::rename(&part, &self.file);
        }
    }
}

/// Shows the statistics to others, if they may see them.
#[derive(Default)]
pub(crate) struct Publishing {
    publisher: Mutex<Option<Arc<Publisher>>>,
    publishes: AtomicBool,
}

impl Publishing {
    /// Whether statistics are published.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.publishes.load(Ordering::Relaxed)
    }

    /// Shows the statistics to others from now on.
    pub(crate) fn start(&self, publisher: Option<Publisher>) {
        let mut slot = self.publisher.lock();
        *slot = publisher.map(Arc::new);
        self.publishes.store(slot.is_some(), Ordering::Release);
    }

    /// Stops publishing statistics.
    pub(crate) fn stop(&self) {
        self.publishes.store(false, Ordering::Release);
        self.publisher.lock().take();
    }

    /// The publisher of the statistics, if they are published.
    pub(crate) fn publisher(&self) -> Option<Arc<Publisher>> {
        if !self.publishes.load(Ordering::Relaxed) {
            return None;
        }
        self.publisher.lock().clone()
    }
}

impl Engine {
    /// A number that changes when something worth publishing happens.
    pub(crate) fn activity(&self) -> u64 {
        let counters = &self.shared.counters;
        [
            &counters.bytes_read,
            &counters.bytes_written,
            &counters.user_bytes,
        ]
        .iter()
        .map(|counter| counter.load(Ordering::Relaxed))
        .fold(0, u64::wrapping_add)
    }
}

impl WorkerState {
    /// Publishes if it is time.
    pub(crate) fn publish_stats(&self) {
        if let Some(publisher) = self.engine.publishing.publisher()
            && publisher.is_due(self.engine.activity())
        {
            publisher.publish(&self.engine);
        }
    }

    /// How long the worker may sleep before there is something to publish.
    pub(crate) fn until_publishing(&self) -> Option<Duration> {
        let publisher = self.engine.publishing.publisher()?;
        publisher
            .is_behind(self.engine.activity())
            .then_some(PERIOD)
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // There may be none.
        let _ = fs::remove_file(&self.file);
    }
}
