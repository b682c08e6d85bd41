//! No engine: every answer is made up from the key. What a run over it costs is what the benchmark itself costs.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::{Access, Client, Counters, Ended, Engine, Key, Session, Sorted, Work, run_on_threads};
use crate::LabError;
use crate::bench::Records;

pub(super) struct NullEngine {
    threads: usize,
    records: OnceLock<Arc<Records>>,
}

impl NullEngine {
    pub(super) fn new(threads: usize) -> NullEngine {
        NullEngine {
            threads,
            records: OnceLock::new(),
        }
    }
}

impl Engine for NullEngine {
    fn version(&self) -> String {
        "null".to_owned()
    }

    fn settings(&self) -> Vec<(String, String)> {
        vec![("answers".to_owned(), "made up from the key".to_owned())]
    }

    fn clients(&self) -> usize {
        self.threads
    }

    fn begin(&self, records: &Arc<Records>) {
        let _ = self.records.set(Arc::clone(records));
    }

    fn load_sorted(&self, _: usize, records: &mut Sorted<'_>) -> Result<(), LabError> {
        records.for_each(drop);
        Ok(())
    }

    fn finish_background_work(&self) -> Result<(), LabError> {
        Ok(())
    }

    fn run(&self, client: Arc<Client>) -> Result<(), LabError> {
        let records = self.records.get().ok_or_else(|| {
            LabError::Request("the null engine must know the records before it runs".to_owned())
        })?;
        run_on_threads(self.threads, || NullSession { records }, &*client)
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn files(&self) -> Result<Vec<PathBuf>, LabError> {
        Ok(Vec::new())
    }

    fn close(self: Box<Self>) -> Result<(), LabError> {
        Ok(())
    }
}

struct NullSession<'r> {
    records: &'r Records,
}

impl Session for NullSession<'_> {
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool, LabError> {
        value.clear();
        value.extend_from_slice(self.records.value(self.records.index(key)));
        Ok(true)
    }

    fn get_many(
        &mut self,
        keys: &[Key],
        visit: &mut (dyn FnMut(usize, Option<&[u8]>) + Send),
    ) -> Result<(), LabError> {
        for (at, key) in keys.iter().enumerate() {
            visit(at, Some(self.records.value(self.records.index(key))));
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
        for index in (0..limit as u64).map(|step| first.wrapping_add(step)) {
            visit(&self.records.key(index), self.records.value(index));
        }
        Ok(limit)
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> Result<(), LabError> {
        std::hint::black_box((key, value));
        Ok(())
    }

    fn transact(&mut self, _: Access, _: &mut Work<'_>) -> Result<Ended, LabError> {
        Err(LabError::Request(
            "the null engine keeps nothing, so transactions cannot run on it".to_owned(),
        ))
    }
}
