//! Recording the page writes of a store in the binary trace format that `isobath sim clean` reads.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use isobath::{PAGE_SIZE, PageTrace, Store};
use isobath_flash::trace::BinaryWriter;
use isobath_flash::workload::Op;

use crate::LabError;

/// A recording under way.
pub(crate) struct Recording {
    path: PathBuf,
    writer: Arc<Mutex<Writer>>,
}

struct Writer {
    out: BinaryWriter<BufWriter<File>>,
    failure: Option<std::io::Error>,
}

struct Recorder(Arc<Mutex<Writer>>);

impl Recorder {
    fn push(&self, page: u64, op: impl FnOnce(u32) -> Op) {
        let mut writer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Numbers that the format cannot name belong to stores of over 8 TiB.
        let Some(page) = u32::try_from(page)
            .ok()
            .filter(|&page| page < Op::MAX_PAGES)
        else {
            return;
        };
        if writer.failure.is_none()
            && let Err(error) = writer.out.push(op(page))
        {
            writer.failure = Some(error);
        }
    }
}

impl PageTrace for Recorder {
    fn written(&mut self, page: u64) {
        self.push(page, Op::write);
    }
    fn freed(&mut self, page: u64) {
        self.push(page, Op::trim);
    }
}

impl Recording {
    /// Records every page write of `store` from now on, after a write of every page that it holds.
    pub(crate) fn start(store: &Store, path: &Path) -> Result<Recording, LabError> {
        let file = File::create(path).map_err(LabError::io("create", path))?;
        let out = BinaryWriter::new(BufWriter::new(file), PAGE_SIZE as u32)
            .map_err(LabError::io("write", path))?;
        let writer = Arc::new(Mutex::new(Writer { out, failure: None }));
        store.trace_pages(Some(Box::new(Recorder(Arc::clone(&writer)))));
        Ok(Recording {
            path: path.to_path_buf(),
            writer,
        })
    }

    /// Ends the recording; the file is whole then.
    pub(crate) fn finish(self, store: &Store) -> Result<(), LabError> {
        store.trace_pages(None);
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = writer.failure.take();
        let result = failed.map_or_else(|| writer.out.finish(), Err);
        result.map_err(LabError::io("write", &self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isobath::Options;
    use isobath_flash::trace::{TraceFormat, read_trace};

    #[test]
    fn a_recording_reads_back_with_every_write() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.trace");
        let store = Store::in_memory(&Options::new().pool_bytes(4 << 20).workers(1)).unwrap();
        let tree = store.create_tree("t").unwrap();
        let insert = |from: u32| {
            for n in from..from + 60_000 {
                tree.insert(&n.wrapping_mul(0x9e37_79b9).to_le_bytes(), &[1; 100])
                    .unwrap();
            }
        };
        insert(0);
        let recording = Recording::start(&store, &path).unwrap();
        let before = store.stats().page_writes;
        insert(60_000);
        recording.finish(&store).unwrap();
        let written = store.stats().page_writes - before;
        insert(120_000);
        let source = std::io::BufReader::new(File::open(&path).unwrap());
        let trace = read_trace(TraceFormat::Binary, source, 4096, 1 << 30).unwrap();
        let pages = u64::from(trace.pages());
        assert!(written > 1000 && trace.writes() > written);
        assert!(
            trace.writes() <= written + pages + 100,
            "{} {written} {pages}",
            trace.writes()
        );
        store.close().unwrap();
        let nowhere = dir.path().join("none/t.trace");
        let store = Store::in_memory(&Options::new().pool_bytes(4 << 20).workers(1)).unwrap();
        assert!(Recording::start(&store, &nowhere).is_err());
        store.close().unwrap();
    }
}
