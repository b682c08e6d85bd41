//! Reading an export file into a store.

use std::io::{BufReader, Read, Write};
use std::ops::{Bound, ControlFlow};
use std::path::Path;

use isobath::{LoadError, Record, Store, Tree};

use super::block::{BlockReader, Fields, Kind};
use super::{Counts, EXPORT_FORMAT, Transferred};
use crate::files::InputFile;
use crate::{LabError, Monitor, Stage, Unit};

/// An export file whose header was read and understood.
pub struct ImportFile<'m> {
    blocks: BlockReader<BufReader<InputFile<'m>>>,
    total: Option<u64>,
    monitor: &'m dyn Monitor,
}

crate::names::opaque!(ImportFile<'_>, "ImportFile");

impl<'m> ImportFile<'m> {
    /// Opens an export file, or standard input where `from` is `None`, and
    /// reads its header.
    ///
    /// # Errors
    /// A file that is missing, foreign, corrupt, or of a newer format.
    pub fn open(from: Option<&Path>, monitor: &'m dyn Monitor) -> Result<ImportFile<'m>, LabError> {
        let input = InputFile::open(from, monitor)?;
        let (path, total) = (input.path.clone(), input.total);
        let mut blocks = BlockReader::new(BufReader::with_capacity(1 << 20, input), &path);
        let kind = blocks.read()?;
        let version = Fields(blocks.payload()).u16();
        match (kind, version) {
            (Kind::Header, Some(v)) if v > EXPORT_FORMAT => Err(blocks.corrupt(&format!(
                "the file has export format {v} and this version reads up to {EXPORT_FORMAT}; use a newer Isobath"
            ))),
            (Kind::Header, Some(1)) => Ok(ImportFile {
                blocks,
                total,
                monitor,
            }),
            _ => Err(blocks.corrupt("the file does not start with a header")),
        }
    }

    /// Reads the file into `store`. With `merge`, records may go into trees
    /// that exist already, where they replace records of the same key.
    ///
    /// The file is verified while it is read. If it turns out to be
    /// corrupt, the records before the corruption have been imported.
    ///
    /// # Errors
    /// A corrupt or truncated file; a tree that exists already, without
    /// `merge`; engine and I/O errors.
    pub fn import(self, store: &Store, merge: bool) -> Result<Transferred, LabError> {
        let monitor = self.monitor;
        monitor.begin(Stage {
            name: "importing",
            total: self.total,
            unit: Unit::Bytes,
        });
        let mut importer = Importer {
            store,
            monitor,
            done: Transferred {
                file_bytes: self.blocks.bytes(),
                ..Transferred::default()
            },
            blocks: self.blocks,
            stored: 0,
        };
        match importer.trees(merge) {
            Ok(()) => Ok(importer.done),
            Err(error) if importer.stored == 0 => Err(error),
            Err(error) => {
                let stored = crate::load::counted(importer.stored, "record");
                Err(error.after(format!(
                    "at least {stored} that came before are in: to complete them, import the file again with --merge"
                )))
            }
        }
    }
}

struct Importer<'s, R> {
    blocks: BlockReader<R>,
    store: &'s Store,
    monitor: &'s dyn Monitor,
    done: Transferred,
    /// Records that are in the store, those of an unfinished tree included.
    stored: u64,
}

/// The end of a run of small records.
enum Next {
    Large,
    TreeEnd,
}

impl<R: Read + Send> Importer<'_, R> {
    fn trees(&mut self, merge: bool) -> Result<(), LabError> {
        loop {
            match self.block()? {
                Kind::TreeBegin => self.tree(merge)?,
                Kind::End => return self.end(),
                other => {
                    return Err(self
                        .blocks
                        .corrupt(&format!("a block of kind {other:?} cannot come here")));
                }
            }
        }
    }

    /// The next block, with progress.
    fn block(&mut self) -> Result<Kind, LabError> {
        self.monitor.check()?;
        let kind = self.blocks.read()?;
        self.monitor
            .advance(self.blocks.bytes() - self.done.file_bytes);
        self.done.file_bytes = self.blocks.bytes();
        Ok(kind)
    }

    fn tree(&mut self, merge: bool) -> Result<(), LabError> {
        let mut fields = Fields(self.blocks.payload());
        let name = fields
            .u32()
            .and_then(|_| fields.text())
            .ok_or_else(|| self.blocks.corrupt("the tree's name is unreadable"))?;
        let exists = self.store.trees()?.iter().any(|t| t.name == name);
        if exists && !merge {
            return Err(LabError::Request(format!(
                "the store has a tree `{}` already; add --merge to write into it, or drop it first with `isobath trees drop`",
                crate::escape(name.as_bytes())
            )));
        }
        let tree = self.store.open_or_create_tree(&name)?;
        let before = self.stored;
        let done = self.records(&tree);
        if done.is_err() && !exists && self.stored == before {
            // It is in the way of no other run then. The first failure matters more.
            let _ = self.store.drop_tree(&name);
        }
        self.tree_end(done?)
    }

    /// Imports a tree's records.
    fn records(&mut self, tree: &Tree) -> Result<Counts, LabError> {
        let fast = is_empty(tree)?;
        let mut counts = Counts::default();
        let mut last: Option<Vec<u8>> = None;
        loop {
            match self.small_records(tree, fast, &mut counts, &mut last)? {
                Next::TreeEnd => return Ok(counts),
                Next::Large => self.large_record(tree, &mut counts, &mut last)?,
            }
        }
    }

    /// Imports records up to the next large one or the tree's end.
    fn small_records(
        &mut self,
        tree: &Tree,
        fast: bool,
        counts: &mut Counts,
        last: &mut Option<Vec<u8>>,
    ) -> Result<Next, LabError> {
        let monitor = self.monitor;
        let mut run = Run {
            importer: self,
            payload: Vec::new(),
            at: 0,
            counts,
            last,
            ended: None,
        };
        let mut stored = 0;
        if fast {
            // The iterator cannot answer with an error; it stops and keeps it.
            stored = tree.bulk_load(&mut run)?;
        } else {
            // One by one each would be a durable commit of its own.
            let mut loader = tree.loader()?;
            for (key, value) in &mut run {
                loader.push(key, value)?;
            }
            if !matches!(run.ended, Some(Err(LabError::Interrupted))) {
                let mut inserted = 0;
                let loaded = loader.finish(&mut |stage, done, _| {
                    if stage == "inserting" {
                        inserted = done;
                    }
                    match monitor.cancelled() {
                        true => ControlFlow::Break(()),
                        false => ControlFlow::Continue(()),
                    }
                });
                stored = match loaded {
                    Ok(stored) => stored,
                    Err(error) => {
                        self.stored += inserted;
                        return Err(match error {
                            LoadError::Interrupted => LabError::Interrupted,
                            other => other.into(),
                        });
                    }
                };
            }
        }
        let ended = run.ended;
        self.stored += stored;
        match ended {
            Some(ended) => ended,
            None => Err(LabError::Verify(
                "the load stopped before the end of its input".to_owned(),
            )),
        }
    }

    /// Imports the record whose first block was just read.
    fn large_record(
        &mut self,
        tree: &Tree,
        counts: &mut Counts,
        last: &mut Option<Vec<u8>>,
    ) -> Result<(), LabError> {
        let (length, key) = (|| {
            let mut fields = Fields(self.blocks.payload());
            let length = fields.u64()?;
            let key_length = fields.u32()? as usize;
            Some((length, fields.bytes(key_length)?.to_vec()))
        })()
        .ok_or_else(|| self.blocks.corrupt("a large record's head is unreadable"))?;
        check_order(last.as_deref(), &key).map_err(|e| self.blocks.corrupt(e))?;
        let mut writer = tree.writer(&key)?;
        let mut left = length;
        while left > 0 {
            let kind = self.block()?;
            let part = self.blocks.payload();
            if kind != Kind::ValuePart || part.is_empty() || part.len() as u64 > left {
                return Err(self
                    .blocks
                    .corrupt("a large value's parts do not add up to its length"));
            }
            left -= part.len() as u64;
            writer
                .write_all(part)
                .map_err(|e| LabError::streamed("store a value of", self.blocks.path(), e))?;
        }
        writer.finish()?;
        counts.record(key.len(), length);
        self.stored += 1;
        *last = Some(key);
        Ok(())
    }

    /// Compares the counts that the tree's end block states.
    fn tree_end(&mut self, counts: Counts) -> Result<(), LabError> {
        let mut fields = Fields(self.blocks.payload());
        let stated = [fields.u64(), fields.u64(), fields.u64()];
        let found = [counts.records, counts.key_bytes, counts.value_bytes].map(Some);
        if stated != found {
            return Err(self.blocks.corrupt(&format!(
                "the tree's end block states {} records, but {} were read",
                stated[0].unwrap_or(0),
                counts.records
            )));
        }
        counts.add_to(&mut self.done);
        Ok(())
    }

    fn end(&mut self) -> Result<(), LabError> {
        let mut fields = Fields(self.blocks.payload());
        let stated = [fields.u64(), fields.u64(), fields.u64()];
        let found = [self.done.trees, self.done.records, self.done.value_bytes].map(Some);
        if stated != found {
            return Err(self
                .blocks
                .corrupt("the end block's counts do not agree with what was read"));
        }
        if !self.blocks.at_end()? {
            return Err(self
                .blocks
                .corrupt("bytes follow the end block: the file is not as it was written"));
        }
        Ok(())
    }
}

fn is_empty(tree: &Tree) -> Result<bool, LabError> {
    let mut empty = true;
    tree.scan(
        (Bound::<&[u8]>::Unbounded, Bound::Unbounded),
        |_key, _value| {
            empty = false;
            false
        },
    )?;
    Ok(empty)
}

fn check_order(last: Option<&[u8]>, key: &[u8]) -> Result<(), &'static str> {
    match last {
        Some(last) if last >= key => Err("keys are not in ascending order: the file is corrupt"),
        _ => Ok(()),
    }
}

/// The records between two large ones, as an iterator.
struct Run<'r, 's, R> {
    importer: &'r mut Importer<'s, R>,
    /// Payload of the present block of records, and how far it is used.
    payload: Vec<u8>,
    at: usize,
    counts: &'r mut Counts,
    last: &'r mut Option<Vec<u8>>,
    /// Why the iterator ended; set exactly when it answered `None`.
    ended: Option<Result<Next, LabError>>,
}

impl<R: Read + Send> Run<'_, '_, R> {
    /// The next record, or the end of the run.
    fn step(&mut self) -> Result<Result<Record, Next>, LabError> {
        while self.at == self.payload.len() {
            match self.importer.block()? {
                Kind::Records => {
                    self.payload.clear();
                    self.payload
                        .extend_from_slice(self.importer.blocks.payload());
                    self.at = 0;
                }
                Kind::LargeRecord => return Ok(Err(Next::Large)),
                Kind::TreeEnd => return Ok(Err(Next::TreeEnd)),
                other => {
                    return Err(self
                        .importer
                        .blocks
                        .corrupt(&format!("a block of kind {other:?} cannot come here")));
                }
            }
        }
        let mut fields = Fields(&self.payload[self.at..]);
        let before = fields.0.len();
        let (key, value) = (|| {
            let key = fields.u32()? as usize;
            let value = fields.u32()? as usize;
            Some((fields.bytes(key)?.to_vec(), fields.bytes(value)?.to_vec()))
        })()
        .ok_or_else(|| {
            self.importer
                .blocks
                .corrupt("a record reaches beyond its block")
        })?;
        self.at += before - fields.0.len();
        check_order(self.last.as_deref(), &key).map_err(|e| self.importer.blocks.corrupt(e))?;
        self.counts.record(key.len(), value.len() as u64);
        let last = self.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(&key);
        Ok(Ok((key, value)))
    }
}

impl<R: Read + Send> Iterator for Run<'_, '_, R> {
    type Item = Record;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended.is_some() {
            return None;
        }
        match self.step() {
            Ok(Ok(record)) => Some(record),
            Ok(Err(next)) => {
                self.ended = Some(Ok(next));
                None
            }
            Err(error) => {
                self.ended = Some(Err(error));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use isobath::Options;

    use super::*;
    use crate::Silent;
    use crate::export::{ExportPlan, export};

    fn store() -> Store {
        Store::in_memory(&Options::new().pool_bytes(16 << 20).workers(1)).unwrap()
    }

    #[test]
    fn merging_puts_many_records_into_a_commit() {
        const RECORDS: u32 = 5000;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("e");
        let from = store();
        let tree = from.create_tree("t").unwrap();
        let records = (0..RECORDS).map(|n| (format!("{n:04}"), [7; 50]));
        tree.bulk_load(records).unwrap();
        let plan = ExportPlan {
            to: Some(path.clone()),
            trees: Vec::new(),
            overwrite: false,
        };
        export(&from, &plan, &Silent).unwrap();

        let to = store();
        let tree = to.create_tree("t").unwrap();
        tree.insert("9999", "last").unwrap();
        let before = to.stats().log_commits;
        assert!(before > 0);
        let file = ImportFile::open(Some(&path), &Silent).unwrap();
        assert_eq!(file.import(&to, true).unwrap().records, u64::from(RECORDS));
        assert_eq!(tree.count(..).unwrap(), u64::from(RECORDS) + 1);
        let commits = to.stats().log_commits - before;
        assert!(commits < u64::from(RECORDS) / 10, "{commits}");
        from.close().unwrap();
        to.close().unwrap();
    }
}
