//! Engines that keep nothing: each answer is made up from its key. A run over one of them costs as
//! much as the benchmark and the layer below: nothing, or the drive alone.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::{Access, Client, Counters, Ended, Engine, Key, Session, Sorted, Work, run_on_threads};
use crate::LabError;
use crate::bench::Records;

/// The layer below an engine that keeps nothing.
pub(super) trait Below: Send + Sync {
    /// The engine's name.
    const NAME: &'static str;
    /// One client's way to it.
    type Io<'b>: BelowIo
    where
        Self: 'b;

    /// Its settings.
    fn settings(&self) -> Vec<(&'static str, &'static str)>;

    /// Makes place for `records`.
    fn load(&self, records: &Records) -> Result<(), LabError>;

    fn io<'b>(&'b self, records: &'b Records) -> Self::Io<'b>;

    /// Its files.
    fn files(&self) -> Vec<PathBuf>;

    /// Makes all writes durable.
    fn close(&self) -> Result<(), LabError>;
}

/// One client's way to the layer below.
pub(super) trait BelowIo {
    /// Reads what holds record `index`, unless that holds record `before`, too, which was read just
    /// now.
    fn read(&mut self, index: u64, before: Option<u64>) -> Result<(), LabError>;

    /// Writes record `index`.
    fn write(&mut self, index: u64, value: &[u8]) -> Result<(), LabError>;
}

/// An engine that keeps nothing.
pub(super) struct Baseline<B> {
    below: B,
    threads: usize,
    records: OnceLock<Arc<Records>>,
}

impl<B: Below> Baseline<B> {
    pub(super) fn new(below: B, threads: usize) -> Self {
        Self {
            below,
            threads,
            records: OnceLock::new(),
        }
    }

    fn records(&self) -> Result<&Records, LabError> {
        let records = self.records.get().ok_or_else(|| {
            LabError::Request(format!(
                "the engine `{}` must know the records before it runs",
                B::NAME
            ))
        })?;
        Ok(records)
    }
}

impl<B: Below> Engine for Baseline<B> {
    fn version(&self) -> String {
        B::NAME.to_owned()
    }

    fn settings(&self) -> Vec<(String, String)> {
        let answers = ("answers", "made up from the key");
        let settings = self.below.settings().into_iter().chain([answers]);
        settings
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    fn clients(&self) -> usize {
        self.threads
    }

    fn begin(&self, records: &Arc<Records>) {
        // All runs have the same records.
        let _ = self.records.set(Arc::clone(records));
    }

    fn load_sorted(&self, _: usize, records: &mut Sorted<'_>) -> Result<(), LabError> {
        records.for_each(drop);
        self.below.load(self.records()?)
    }

    fn finish_background_work(&self) -> Result<(), LabError> {
        Ok(())
    }

    fn run(&self, client: Arc<Client>) -> Result<(), LabError> {
        let records = self.records()?;
        let session = || MadeUp {
            records,
            io: self.below.io(records),
        };
        run_on_threads(self.threads, session, &*client)
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn files(&self) -> Result<Vec<PathBuf>, LabError> {
        Ok(self.below.files())
    }

    fn close(self: Box<Self>) -> Result<(), LabError> {
        self.below.close()
    }
}

/// A session whose answers are made up.
struct MadeUp<'r, I> {
    records: &'r Records,
    io: I,
}

impl<I: BelowIo> Session for MadeUp<'_, I> {
    fn get_many(
        &mut self,
        keys: &[Key],
        visit: &mut (dyn FnMut(usize, Option<&[u8]>) + Send),
    ) -> Result<(), LabError> {
        for (at, key) in keys.iter().enumerate() {
            let index = self.records.index(key);
            self.io.read(index, None)?;
            visit(at, Some(self.records.value(index)));
        }
        Ok(())
    }

    /// Every record is the first one again: what is measured is what the benchmark does with a
    /// record, not what making one up takes.
    fn scan(
        &mut self,
        from: &Key,
        limit: usize,
        visit: &mut (dyn FnMut(&[u8], &[u8]) + Send),
    ) -> Result<usize, LabError> {
        let first = self.records.index(from);
        let value = self.records.value(first);
        let mut before = None;
        for index in (0..limit as u64).map(|step| first.wrapping_add(step)) {
            self.io.read(index, before)?;
            before = Some(index);
            visit(from, value);
        }
        Ok(limit)
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> Result<(), LabError> {
        self.io.write(self.records.index(key), value)
    }

    fn transact(&mut self, _: Access, _: &mut Work<'_>) -> Result<Ended, LabError> {
        Err(LabError::Request(
            "an engine that keeps nothing runs no transactions".to_owned(),
        ))
    }
}
