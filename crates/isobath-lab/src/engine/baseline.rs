//! Engines that keep nothing: each answer is made up from its key. A run over one of them costs as
//! much as the benchmark and the layer below: nothing, or the drive alone.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::{Client, Engine, Key, Session, Sorted, Tables, Visit, VisitMany, run_on_threads};
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

    fn settings(&self) -> Vec<(&'static str, String)> {
        let answers = ("answers", "made up from the key");
        let settings = self.below.settings().into_iter().chain([answers]);
        settings
            .map(|(name, value)| (name, value.to_owned()))
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

impl<I: BelowIo> Tables for MadeUp<'_, I> {
    fn get(&mut self, _: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool, LabError> {
        let index = self.records.index(key);
        self.io.read(index, None)?;
        value.clear();
        value.extend_from_slice(self.records.value(index));
        Ok(true)
    }

    fn put(&mut self, _: usize, key: &[u8], value: &[u8]) -> Result<(), LabError> {
        self.io.write(self.records.index(key), value)
    }

    /// Every record is the first one again: what is measured is what the benchmark does with a
    /// record, not what making one up takes.
    fn scan(&mut self, _: usize, from: &[u8], visit: &mut Visit<'_>) -> Result<(), LabError> {
        let first = self.records.index(from);
        let value = self.records.value(first);
        let mut before = None;
        for index in (0..).map(|step| first.wrapping_add(step)) {
            self.io.read(index, before)?;
            before = Some(index);
            if !visit(from, value) {
                break;
            }
        }
        Ok(())
    }
}

impl<I: BelowIo> Session for MadeUp<'_, I> {
    fn get_many(&mut self, keys: &[Key], visit: &mut VisitMany<'_>) -> Result<(), LabError> {
        for (at, key) in keys.iter().enumerate() {
            let index = self.records.index(key);
            self.io.read(index, None)?;
            visit(at, Some(self.records.value(index)));
        }
        Ok(())
    }
}
