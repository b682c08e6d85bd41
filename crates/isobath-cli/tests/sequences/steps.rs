//! Taking steps.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};

use isobath::{BackupOptions, Error, LoadError, Store};
use isobath_lab::hex;

use crate::data::{Batch, Key, Record};
use crate::model::{Effect, Model, difference, short};
use crate::plan::{By, Copy, Format, Step, TREES};
use crate::world::{Backup, FAILED, World, Wrong, engine};

/// A key and its value.
type Pair = (Vec<u8>, Vec<u8>);

/// The exit code for absent records.
const ABSENT: i32 = 1;
/// The exit code for an invalid request.
const USAGE: i32 = 2;

fn name(tree: usize) -> String {
    TREES[tree].to_owned()
}

fn put(tree: usize, key: Vec<u8>, value: Vec<u8>) -> Effect {
    Effect::Put(name(tree), key, value)
}

fn args<const N: usize>(list: [&str; N]) -> Vec<OsString> {
    list.iter().map(Into::into).collect()
}

/// Compares one value.
fn agree(key: &[u8], expected: Option<&[u8]>, found: Option<&[u8]>) -> Result<(), Wrong> {
    if expected == found {
        return Ok(());
    }
    Err(format!(
        "key {}: {}",
        short(key),
        difference(expected, found)
    ))
}

impl World {
    /// Takes a step, and looks at what it has left.
    pub(crate) fn step(&mut self, step: &Step) -> Result<(), Wrong> {
        self.number += 1;
        self.take(step)?;
        self.verify(&self.store, &self.model)
            .map_err(|wrong| format!("opened anew: {wrong}"))
    }

    fn take(&mut self, step: &Step) -> Result<(), Wrong> {
        match step {
            Step::Put(by, tree, key, value) => {
                self.put(*by, *tree, key.bytes(), value.bytes(), false)
            }
            Step::PutFile(by, tree, key, value) => {
                self.put(*by, *tree, key.bytes(), value.bytes(), true)
            }
            Step::Delete(by, tree, key) => self.delete(*by, *tree, key.bytes()),
            Step::Get(by, tree, key) => self.get(*by, *tree, &key.bytes()),
            Step::Scan {
                by,
                tree,
                from,
                to,
                reverse,
                limit,
            } => {
                let bounds = (from.map(Key::bytes), to.map(Key::bytes));
                self.scan(*by, *tree, bounds, *reverse, limit.unwrap_or(usize::MAX))
            }
            Step::Load(by, tree, format, batch) => self.load(*by, *tree, *format, *batch),
            Step::BulkLoad(tree, batch) => self.bulk_load(*tree, *batch),
            Step::CreateTree(by, tree) => self.create_tree(*by, *tree),
            Step::DropTree(by, tree) => self.drop_tree(*by, *tree),
            Step::Rewrite(tree) => self.rewrite(*tree),
            Step::Export { tree } => self.export(*tree),
            Step::Import { by, merge } => self.import(*by, *merge),
            Step::Backup { by, incremental } => self.backup(*by, *incremental),
            Step::Restore { copy, adopt } => self.restore(*copy, *adopt),
            Step::Compact(By::Api) => self.with_own(|store| {
                let gained = store.compact().map_err(engine("compacting"))?;
                match gained.bytes_after <= gained.bytes_before {
                    true => Ok(()),
                    false => Err(format!("compacting made the store longer: {gained:?}")),
                }
            }),
            Step::Compact(_) => self
                .run(&self.verb(&["compact"], &[]), None)?
                .expect(0)
                .map(drop),
            Step::Stats => self
                .run(&self.verb(&["stats", "--json"], &[]), None)?
                .expect(0)
                .map(drop),
            Step::Check => self
                .run(&self.verb(&["check"], &[]), None)?
                .expect(0)
                .map(drop),
        }
    }

    fn put(
        &mut self,
        by: By,
        tree: usize,
        key: Vec<u8>,
        value: Vec<u8>,
        stream: bool,
    ) -> Result<(), Wrong> {
        let effects = [put(tree, key.clone(), value.clone())];
        if by == By::Api {
            self.with_own(|store| {
                let tree = store
                    .open_or_create_tree(TREES[tree])
                    .map_err(engine("a tree"))?;
                if !stream {
                    return tree.insert(&key, &value).map_err(engine("insert"));
                }
                let mut writer = tree.writer(&key).map_err(engine("a writer"))?;
                for piece in value.chunks(70_001) {
                    writer.append(piece).map_err(engine("append"))?;
                }
                writer.finish().map_err(engine("finish"))
            })?;
            self.model.apply(&effects);
            return Ok(());
        }
        let verb = self.verb(&["put", "-t", TREES[tree], "--create-tree", "--hex"], &[]);
        let mut all = verb;
        all.push(hex(&key).into());
        if stream || value.len() > 4000 {
            let input = self.input(&value)?;
            all.extend(["--file".into(), input.into()]);
        } else {
            all.push(hex(&value).into());
        }
        self.change(by, &all, 0, &effects)
    }

    fn delete(&mut self, by: By, tree: usize, key: Vec<u8>) -> Result<(), Wrong> {
        let effects = [Effect::Delete(name(tree), key.clone())];
        let exists = self.model.trees.contains_key(TREES[tree]);
        let present = self.model.get(TREES[tree], &key).is_some();
        if by == By::Api {
            self.with_own(|store| {
                let tree = match store.tree(TREES[tree]) {
                    Err(Error::NoSuchTree { .. }) if !exists => return Ok(()),
                    other => other.map_err(engine("a tree"))?,
                };
                match tree.remove(&key).map_err(engine("remove"))? {
                    removed if removed == present => Ok(()),
                    removed => Err(format!("remove answers {removed} for {}", short(&key))),
                }
            })?;
            self.model.apply(&effects);
            return Ok(());
        }
        let code = match (exists, present) {
            (false, _) => FAILED,
            (true, false) => ABSENT,
            (true, true) => 0,
        };
        let verb = self.verb(&["delete", "-t", TREES[tree], "--hex", &hex(&key)], &[]);
        self.change(by, &verb, code, &effects)
    }

    fn get(&mut self, by: By, tree: usize, key: &[u8]) -> Result<(), Wrong> {
        let expected = self.model.get(TREES[tree], key).cloned();
        if !self.model.trees.contains_key(TREES[tree]) {
            return Ok(());
        }
        if by == By::Api {
            return self.with_own(|store| {
                let tree = store.tree(TREES[tree]).map_err(engine("a tree"))?;
                let found = tree.get(key).map_err(engine("get"))?;
                agree(key, expected.as_deref(), found.as_deref())?;
                let Some(mut reader) = tree.reader(key).map_err(engine("a reader"))? else {
                    return agree(key, expected.as_deref(), None);
                };
                let mut found = Vec::new();
                std::io::Read::read_to_end(&mut reader, &mut found).map_err(|e| e.to_string())?;
                agree(key, expected.as_deref(), Some(&found))
            });
        }
        let output = self.fresh("value");
        let mut verb = self.verb(&["get", "-t", TREES[tree], "--hex", &hex(key)], &[]);
        let to_file = self.number.is_multiple_of(2);
        if to_file {
            verb.extend(["--output".into(), output.clone().into()]);
        } else {
            verb.push("--raw".into());
        }
        let code = if expected.is_some() { 0 } else { ABSENT };
        let answer = self.run(&verb, None)?.expect(code)?;
        let found = match (code, to_file) {
            (ABSENT, _) => None,
            (_, false) => Some(answer.out),
            (_, true) => Some(std::fs::read(&output).map_err(|e| e.to_string())?),
        };
        agree(key, expected.as_deref(), found.as_deref())
    }

    fn scan(
        &mut self,
        by: By,
        tree: usize,
        bounds: (Option<Vec<u8>>, Option<Vec<u8>>),
        reverse: bool,
        limit: usize,
    ) -> Result<(), Wrong> {
        let Some(records) = self.model.trees.get(TREES[tree]) else {
            return Ok(());
        };
        let (from, to) = match bounds {
            (Some(from), Some(to)) if from > to => (Some(to), Some(from)),
            other => other,
        };
        let within = records.iter().filter(|(key, _)| {
            from.as_ref().is_none_or(|from| *key >= from) && to.as_ref().is_none_or(|to| *key < to)
        });
        let within = within.map(|(key, value)| (key.clone(), value.clone()));
        let expected: Vec<_> = if reverse {
            within.rev().take(limit).collect()
        } else {
            within.take(limit).collect()
        };
        let found = if by == By::Api {
            self.range(tree, &from, &to, reverse, limit)?
        } else {
            self.scan_verb(tree, &from, &to, reverse, limit)?
        };
        if expected.len() != found.len() {
            return Err(format!(
                "a scan answers {} records instead of {}",
                found.len(),
                expected.len()
            ));
        }
        let (expected, found) = (expected.into_iter(), found.into_iter());
        for ((key, value), (other, found)) in expected.zip(found) {
            if key != other {
                return Err(format!(
                    "a scan answers {} at {}",
                    short(&other),
                    short(&key)
                ));
            }
            agree(&key, Some(&value), Some(&found))?;
        }
        Ok(())
    }

    fn range(
        &self,
        tree: usize,
        from: &Option<Vec<u8>>,
        to: &Option<Vec<u8>>,
        reverse: bool,
        limit: usize,
    ) -> Result<Vec<Pair>, Wrong> {
        self.with_own(|store| {
            let tree = store.tree(TREES[tree]).map_err(engine("a tree"))?;
            let low = from.as_deref().map_or(Bound::Unbounded, Bound::Included);
            let high = to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let range = tree.range((low, high));
            let found: Result<Vec<_>, _> = if reverse {
                range.rev().take(limit).collect()
            } else {
                range.take(limit).collect()
            };
            found.map_err(engine("a range"))
        })
    }

    fn scan_verb(
        &mut self,
        tree: usize,
        from: &Option<Vec<u8>>,
        to: &Option<Vec<u8>>,
        reverse: bool,
        limit: usize,
    ) -> Result<Vec<Pair>, Wrong> {
        let mut verb = self.verb(&["scan", "-t", TREES[tree], "--hex"], &[]);
        for (option, key) in [("--from", from), ("--to", to)] {
            if let Some(key) = key {
                verb.extend([option.into(), hex(key).into()]);
            }
        }
        if reverse {
            verb.push("--reverse".into());
        }
        if limit < usize::MAX {
            verb.extend(["--limit".into(), limit.to_string().into()]);
        }
        lines(&self.run(&verb, None)?.expect(0)?.out)
    }

    fn load(&mut self, by: By, tree: usize, format: Format, batch: Batch) -> Result<(), Wrong> {
        let records = batch.records(self.plan.layout);
        let mut effects = vec![Effect::Create(name(tree))];
        let input = if format == Format::Directory {
            let folder = self.fresh("folder");
            std::fs::create_dir(&folder).map_err(|e| e.to_string())?;
            let last: BTreeMap<_, _> = records
                .iter()
                .map(|record| (record.key.bytes(), record.value.bytes()))
                .collect();
            for (key, value) in last {
                let file = folder.join(String::from_utf8_lossy(&key).as_ref());
                std::fs::write(file, &value).map_err(|e| e.to_string())?;
                effects.push(put(tree, key, value));
            }
            folder
        } else {
            let mut text = Vec::new();
            if format == Format::CsvRows {
                text.extend_from_slice(b"k,v\n");
            }
            for record in &records {
                let (key, value) = line(format, record, &mut text);
                effects.push(put(tree, key, value));
            }
            self.input(&text)?
        };
        let (verb, options): (&str, &[&str]) = match format {
            Format::Directory => ("directory", &[]),
            Format::Csv => ("csv", &["--no-header", "--value-column", "2"]),
            Format::CsvRows => ("csv", &["--key-column", "k"]),
            Format::Tsv => ("tsv", &["--no-header", "--value-column", "2"]),
            Format::Ndjson => ("ndjson", &["--key-field", "id"]),
            Format::Lines => ("lines", &[]),
        };
        let mut all = self.verb(
            &["load", "-t", TREES[tree], "--create-tree", verb],
            &[input.into()],
        );
        all.extend(options.iter().map(Into::into));
        self.change(by, &all, 0, &effects)
    }

    fn bulk_load(&mut self, tree: usize, batch: Batch) -> Result<(), Wrong> {
        let records: Vec<_> = batch
            .ascending(self.plan.layout)
            .iter()
            .map(|record| (record.key.bytes(), record.value.bytes()))
            .collect();
        let last = self
            .model
            .trees
            .get(TREES[tree])
            .and_then(|r| r.last_key_value());
        let fits = match (last, records.first()) {
            (Some((last, _)), Some((first, _))) => last < first,
            _ => true,
        };
        let mut effects = vec![Effect::Create(name(tree))];
        self.with_own(|store| {
            let tree = store
                .open_or_create_tree(TREES[tree])
                .map_err(engine("a tree"))?;
            match tree.bulk_load(records.iter().map(|(key, value)| (key, value))) {
                Err(LoadError::LoadOrder { .. }) if !fits => Ok(()),
                Ok(_) if !fits => Err("a bulk load below the last key succeeds".to_owned()),
                Ok(count) if count == records.len() as u64 => Ok(()),
                Ok(count) => Err(format!("a bulk load answers {count}")),
                Err(error) => Err(format!("a bulk load: {error}")),
            }
        })?;
        if fits {
            effects.extend(
                records
                    .into_iter()
                    .map(|(key, value)| put(tree, key, value)),
            );
        }
        self.model.apply(&effects);
        Ok(())
    }

    fn create_tree(&mut self, by: By, tree: usize) -> Result<(), Wrong> {
        let effects = [Effect::Create(name(tree))];
        let exists = self.model.trees.contains_key(TREES[tree]);
        if by == By::Api {
            self.with_own(|store| match store.create_tree(TREES[tree]) {
                Err(Error::TreeExists { .. }) if exists => Ok(()),
                Ok(_) if exists => Err("a tree is created twice".to_owned()),
                other => other.map(drop).map_err(engine("create_tree")),
            })?;
            self.model.apply(&effects);
            return Ok(());
        }
        let verb = self.verb(&["trees", "create", TREES[tree]], &[]);
        self.change(by, &verb, if exists { FAILED } else { 0 }, &effects)
    }

    fn drop_tree(&mut self, by: By, tree: usize) -> Result<(), Wrong> {
        let effects = [Effect::Drop(name(tree))];
        let exists = self.model.trees.contains_key(TREES[tree]);
        if by == By::Api {
            self.with_own(|store| match store.drop_tree(TREES[tree]) {
                Err(Error::NoSuchTree { .. }) if !exists => Ok(()),
                other => other.map_err(engine("drop_tree")),
            })?;
            self.model.apply(&effects);
            return Ok(());
        }
        let verb = self.verb(&["trees", "drop", TREES[tree]], &[]);
        self.change(by, &verb, if exists { 0 } else { FAILED }, &effects)
    }

    fn rewrite(&mut self, tree: usize) -> Result<(), Wrong> {
        let Some(records) = self.model.trees.get(TREES[tree]) else {
            return Ok(());
        };
        let large: Vec<_> = records.iter().filter(|(_, v)| v.len() > 1000).collect();
        self.with_own(|store| {
            let tree = store.tree(TREES[tree]).map_err(engine("a tree"))?;
            for (key, _) in &large {
                tree.remove(key).map_err(engine("remove"))?;
            }
            for (key, value) in &large {
                tree.insert(key, value).map_err(engine("insert"))?;
            }
            Ok(())
        })
    }

    fn export(&mut self, tree: Option<usize>) -> Result<(), Wrong> {
        let file = self.fresh("export");
        let mut verb = self.verb(&["export"], &[file.clone().into()]);
        let mut model = self.model.clone();
        let mut code = 0;
        if let Some(tree) = tree {
            verb.extend(args(["--tree", TREES[tree]]));
            model.trees.retain(|name, _| name == TREES[tree]);
            if model.trees.is_empty() {
                code = FAILED;
            }
        }
        self.run(&verb, None)?.expect(code)?;
        if code == 0 {
            self.exports.push((file, model));
        }
        Ok(())
    }

    fn import(&mut self, by: By, merge: bool) -> Result<(), Wrong> {
        let Some((file, model)) = self.exports.last() else {
            return Ok(());
        };
        let (mut effects, mut code) = (Vec::new(), 0);
        for (tree, records) in &model.trees {
            if !merge && self.model.trees.contains_key(tree) {
                code = USAGE;
                break;
            }
            effects.push(Effect::Create(tree.clone()));
            let puts = records.iter();
            effects.extend(puts.map(|(k, v)| Effect::Put(tree.clone(), k.clone(), v.clone())));
        }
        let mut verb = self.verb(&["import"], &[file.into()]);
        if merge {
            verb.push("--merge".into());
        }
        self.change(by, &verb, code, &effects)
    }

    fn backup(&mut self, by: By, incremental: bool) -> Result<(), Wrong> {
        let file = self.fresh("backup");
        let base = self.backups.last();
        let base = base.filter(|base| incremental && base.identity == self.identity);
        let mut chain = base.map(|base| base.chain.clone()).unwrap_or_default();
        if by == By::Api {
            let mut options = BackupOptions::new();
            if let Some(base) = chain.last() {
                options = options.since(base);
            }
            self.with_own(|store| {
                let mut watch = |_: &str, _, _| ControlFlow::Continue(());
                store
                    .backup(&file, &options, &mut watch)
                    .map(drop)
                    .map_err(engine("backup"))
            })?;
        } else {
            let mut verb = self.verb(&["backup"], &[file.clone().into()]);
            if let Some(base) = chain.last() {
                verb.extend(["--since".into(), base.into()]);
            }
            self.run(&verb, None)?.expect(0)?;
        }
        chain.push(file);
        self.backups.push(Backup {
            chain,
            model: self.model.clone(),
            identity: self.identity,
        });
        Ok(())
    }

    fn restore(&mut self, copy: Copy, adopt: bool) -> Result<(), Wrong> {
        let Some((path, model)) = self.make_copy(copy)? else {
            return Ok(());
        };
        self.use_copy(&path, model, copy, adopt)
            .map_err(|wrong| format!("the copy: {wrong}"))
    }

    /// A new store, and what must be in it.
    fn make_copy(&mut self, copy: Copy) -> Result<Option<(PathBuf, Model)>, Wrong> {
        let path = self.fresh("iso");
        let pool = args(["--pool", "4MiB"]);
        let (verb, model) = match copy {
            Copy::Files => return Ok(Some((self.copy_files()?, self.model.clone()))),
            Copy::Backup => {
                let Some(backup) = self.backups.last() else {
                    return Ok(None);
                };
                let mut verb = args(["restore", "--quiet"]);
                verb.extend(backup.chain.iter().map(Into::into));
                verb.push(path.clone().into());
                verb.extend(pool);
                (verb, backup.model.clone())
            }
            Copy::Export => {
                let Some((file, model)) = self.exports.last() else {
                    return Ok(None);
                };
                let verb = self.verb_on(&path, &["import", "--create"], &[file.into()]);
                (verb, model.clone())
            }
            Copy::Salvage { search } => {
                let mut verb = self.verb(&["salvage"], &[path.clone().into()]);
                if search {
                    verb.push("--search".into());
                }
                (verb, self.model.clone())
            }
        };
        self.run(&verb, None)?.expect(0)?;
        Ok(Some((path, model)))
    }

    /// Compares a copy, writes to it, compares it once more, and goes on with it.
    fn use_copy(
        &mut self,
        path: &Path,
        mut model: Model,
        copy: Copy,
        adopt: bool,
    ) -> Result<(), Wrong> {
        self.verify(path, &model)?;
        self.number += 1;
        let more = [
            put(0, b"once more".to_vec(), vec![7; 3]),
            put(0, b"once more, and large".to_vec(), vec![8; 9000]),
        ];
        self.with_store(path, &self.options(), |store| {
            more.iter().try_for_each(|effect| single(store, effect))
        })
        .map_err(|wrong| format!("opened for writing: {wrong}"))?;
        model.apply(&more);
        self.verify(path, &model)
            .map_err(|wrong| format!("written to and opened anew: {wrong}"))?;
        if adopt {
            let old = std::mem::replace(&mut self.store, path.to_owned());
            self.remove(&old);
            self.model = model;
            if copy != Copy::Files {
                self.identity += 1;
            }
        } else {
            self.remove(path);
        }
        Ok(())
    }
}

/// One change, in a commit of its own.
fn single(store: &Store, effect: &Effect) -> Result<(), Wrong> {
    match effect {
        Effect::Put(tree, key, value) => {
            let tree = store.open_or_create_tree(tree).map_err(engine("a tree"))?;
            tree.insert(key, value).map_err(engine("insert"))
        }
        Effect::Delete(tree, key) => {
            let tree = store.tree(tree).map_err(engine("a tree"))?;
            tree.remove(key).map(drop).map_err(engine("remove"))
        }
        Effect::Create(_) | Effect::Drop(_) => Ok(()),
    }
}

/// Appends a record to a file of this format; the key and the value that loading it must give.
fn line(format: Format, record: &Record, text: &mut Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    let (key, value) = (record.key.bytes(), record.value.text());
    let shown = String::from_utf8_lossy(&key).into_owned();
    let letters = String::from_utf8_lossy(&value).into_owned();
    let (line, key, value) = match format {
        Format::Csv | Format::CsvRows => {
            let row = format!("{{\"k\":\"{shown}\",\"v\":\"{letters}\"}}");
            let stored = if format == Format::Csv {
                value
            } else {
                row.into_bytes()
            };
            (format!("{shown},{letters}"), key, stored)
        }
        Format::Ndjson => match record.key {
            Key::Text(n) if n % 5 == 0 => {
                let digits = String::from_utf8_lossy(&Key::Number(n).bytes()).into_owned();
                let line = format!("{{\"v\": \"{letters}\", \"id\": {digits}, \"n\": 1e3}}");
                (line.clone(), digits.into_bytes(), line.into_bytes())
            }
            _ => {
                let line = format!("{{\"id\": \"{shown}\", \"v\": \"{letters}\"}}");
                (line.clone(), key, line.into_bytes())
            }
        },
        Format::Tsv | Format::Lines | Format::Directory => {
            (format!("{shown}\t{letters}"), key, value)
        }
    };
    text.extend_from_slice(line.as_bytes());
    text.push(b'\n');
    (key, value)
}

/// Keys and values that `scan --hex` printed.
fn lines(out: &[u8]) -> Result<Vec<Pair>, Wrong> {
    let bytes = |text: &[u8]| {
        let text = String::from_utf8_lossy(text).into_owned();
        isobath_lab::unhex(&text).map_err(|e| format!("the scan prints {text}: {e}"))
    };
    out.split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| {
            let at = line.iter().position(|byte| *byte == b'\t');
            let at = at.ok_or_else(|| "a line of the scan has no tab".to_owned())?;
            Ok((bytes(&line[..at])?, bytes(&line[at + 1..])?))
        })
        .collect()
}
