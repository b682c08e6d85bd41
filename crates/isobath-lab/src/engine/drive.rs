//! No engine, but the drive: one I/O for each operation by the client's own thread. What a client waits for there is the drive and
//! the system; beside an engine at the same rate it says which waits are not the engine's.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use isobath_io::AlignedBuf;
use rustix::fs::OFlags;

use super::{
    Access, Client, Counters, Ended, Engine, EngineConfig, Key, Session, Sorted, Work,
    run_on_threads,
};
use crate::LabError;
use crate::bench::Records;

/// Bytes of a page: what one operation reads or writes.
const PAGE: usize = 4096;
/// Pages that are written at a time while loading.
const LOAD_PAGES: u64 = 512;

pub(super) struct DriveEngine {
    path: PathBuf,
    file: File,
    is_synced: bool,
    threads: usize,
    records: OnceLock<Arc<Records>>,
}

impl DriveEngine {
    pub(super) fn open(config: &EngineConfig, create: bool) -> Result<DriveEngine, LabError> {
        let path = config.path.clone().ok_or_else(|| {
            LabError::Request("the drive alone is measured in a file; name one".to_owned())
        })?;
        let is_synced = config.space.is_synced();
        let synced = if is_synced {
            OFlags::DSYNC
        } else {
            OFlags::empty()
        };
        let open = |flags: OFlags| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(create);
            options.custom_flags((flags | synced).bits() as i32);
            options.open(&path)
        };
        // Some file systems in memory refuse direct I/O, and have made the file by then.
        let file = open(OFlags::DIRECT).or_else(|_| {
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            options.open(&path)
        });
        Ok(DriveEngine {
            file: file.map_err(LabError::io("open", &path))?,
            path,
            is_synced,
            threads: config.threads,
            records: OnceLock::new(),
        })
    }

    fn records(&self) -> Result<&Arc<Records>, LabError> {
        self.records.get().ok_or_else(|| {
            LabError::Request("the drive's file must know the records before it runs".to_owned())
        })
    }
}

/// Pages of a file that holds so many bytes.
fn pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE as u64).max(1)
}

impl Engine for DriveEngine {
    fn version(&self) -> String {
        "drive".to_owned()
    }

    fn settings(&self) -> Vec<(String, String)> {
        let writes = match self.is_synced {
            true => "of 4 KiB, durable before they end",
            false => "of 4 KiB",
        };
        [
            ("reads", "of 4 KiB at a record's place, direct I/O"),
            ("writes", writes),
            ("answers", "made up from the key"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }

    fn clients(&self) -> usize {
        self.threads
    }

    fn begin(&self, records: &Arc<Records>) {
        let _ = self.records.set(Arc::clone(records));
    }

    fn load_sorted(&self, _: usize, records: &mut Sorted<'_>) -> Result<(), LabError> {
        records.for_each(drop);
        let pages = pages(self.records()?.bytes());
        let mut buffer = AlignedBuf::new(LOAD_PAGES as usize * PAGE);
        let mut random = fastrand::Rng::with_seed(1);
        let mut at = 0;
        while at < pages {
            // Hosts of virtual drives may store what repeats only once.
            random.fill(buffer.as_mut_slice());
            let now = (pages - at).min(LOAD_PAGES) as usize;
            let bytes = &buffer.as_mut_slice()[..now * PAGE];
            let written = self.file.write_all_at(bytes, at * PAGE as u64);
            written.map_err(LabError::io("write", &self.path))?;
            at += now as u64;
        }
        self.file
            .sync_all()
            .map_err(LabError::io("write", &self.path))
    }

    fn finish_background_work(&self) -> Result<(), LabError> {
        Ok(())
    }

    fn run(&self, client: Arc<Client>) -> Result<(), LabError> {
        let records = self.records()?;
        let session = || DriveSession {
            records,
            file: &self.file,
            path: &self.path,
            pages: pages(records.bytes()),
            buffer: AlignedBuf::new(PAGE),
        };
        run_on_threads(self.threads, session, &*client)
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn files(&self) -> Result<Vec<PathBuf>, LabError> {
        Ok(vec![self.path.clone()])
    }

    fn close(self: Box<Self>) -> Result<(), LabError> {
        self.file
            .sync_all()
            .map_err(LabError::io("write", &self.path))
    }
}

struct DriveSession<'d> {
    records: &'d Records,
    file: &'d File,
    path: &'d Path,
    pages: u64,
    buffer: AlignedBuf,
}

impl DriveSession<'_> {
    /// Where a record's page begins.
    fn place(&self, index: u64) -> u64 {
        let per_page = (PAGE as u64 / self.records.record_bytes()).max(1);
        index / per_page % self.pages * PAGE as u64
    }

    fn read(&mut self, place: u64) -> Result<(), LabError> {
        let read = self.file.read_exact_at(self.buffer.as_mut_slice(), place);
        read.map_err(LabError::io("read", self.path))
    }
}

impl Session for DriveSession<'_> {
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool, LabError> {
        let index = self.records.index(key);
        self.read(self.place(index))?;
        value.clear();
        value.extend_from_slice(self.records.value(index));
        Ok(true)
    }

    fn get_many(
        &mut self,
        keys: &[Key],
        visit: &mut (dyn FnMut(usize, Option<&[u8]>) + Send),
    ) -> Result<(), LabError> {
        for (at, key) in keys.iter().enumerate() {
            let index = self.records.index(key);
            self.read(self.place(index))?;
            visit(at, Some(self.records.value(index)));
        }
        Ok(())
    }

    fn scan(
        &mut self,
        from: &Key,
        limit: usize,
        visit: &mut (dyn FnMut(&[u8], &[u8]) + Send),
    ) -> Result<usize, LabError> {
        let first = self.records.index(from);
        let mut place = None;
        for index in (0..limit as u64).map(|step| first.wrapping_add(step)) {
            if place != Some(self.place(index)) {
                place = Some(self.place(index));
                self.read(self.place(index))?;
            }
            visit(&self.records.key(index), self.records.value(index));
        }
        Ok(limit)
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> Result<(), LabError> {
        let place = self.place(self.records.index(key));
        let kept = value.len().min(PAGE);
        self.buffer.as_mut_slice()[..kept].copy_from_slice(&value[..kept]);
        let written = self.file.write_all_at(self.buffer.as_mut_slice(), place);
        written.map_err(LabError::io("write", self.path))
    }

    fn transact(&mut self, _: Access, _: &mut Work<'_>) -> Result<Ended, LabError> {
        Err(LabError::Request(
            "the drive alone has no transactions".to_owned(),
        ))
    }
}
