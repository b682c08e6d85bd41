//! Copying everything readable out of a corrupt store.
//!
//! The corrupt store is only read. Trees are walked from their roots; every page is looked for
//! where the mapping table and the log say that it is, then anywhere on the volume (`search`). What
//! the log holds beyond the pages is applied last.

mod making;
mod search;
mod source;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use isobath_io::{Access, Volume, VolumeError, VolumeOptions, two_sizes};

use crate::api::catalog;
use crate::backup::Watch;
use crate::btree::{Content, PageRecord, ValueKind, read_content};
use crate::checkpoint::open_log;
use crate::extent::{self, Extent, RUN_BYTES};
use crate::log::record::Operation;
use crate::merging;
use crate::page::{PageId, get_u64};
use crate::recovery::read_superblock;
use crate::sync::HashSet;
use crate::types::{CATALOG, TreeId, dropped_by};
use crate::{Durability, Error, OpenError, Options, Store, Tree};
use making::Making;
use source::Source;

/// Problems that are told one by one; the rest are counted.
const MAX_PROBLEMS: usize = 10_000;

/// How a store is salvaged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct SalvageOptions {
    search: bool,
}

impl SalvageOptions {
    /// Believes what the store says of where its pages are, as long as that can be read, and
    /// searches the volume if it cannot.
    pub fn new() -> SalvageOptions {
        SalvageOptions::default()
    }

    /// Whether to search the whole volume for the newest copy of every page, whatever the store
    /// says of where they are.
    pub fn search(mut self, search: bool) -> SalvageOptions {
        self.search = search;
        self
    }
}

/// One tree that was salvaged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SalvagedTree {
    /// Its name; `lost-` and its number where the name is lost.
    pub name: String,
    /// Records that the new tree has, from pages and from the log.
    pub records: u64,
    /// Large values that could not be read; their keys are among the problems.
    pub lost_values: u64,
}

/// The result of a salvage: what was copied, and what could not be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SalvageReport {
    /// By name.
    pub trees: Vec<SalvagedTree>,
    /// Whether the volume was searched for pages.
    pub searched: bool,
    /// Commits of the log that were applied.
    pub log_records: u64,
    /// Pages, ranges of keys and values that could not be read, pages of which only an older copy
    /// was found, and pages of loads that were never finished, which were left out; a sentence
    /// each. Empty if nothing is missing.
    pub problems: Vec<String>,
}

impl SalvageReport {
    /// Records of all new trees, from pages and from the log.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.trees.iter().map(|tree| tree.records).sum()
    }
}

/// Copies whatever can be read of the store on `from` into a new store on `to`, and tells what
/// could not be read. Nothing on `from` changes. `target` says how the new store is made, and how
/// long to wait where `from` is in use.
///
/// The new store has its name once it is complete: until then each of its files has `.partial`
/// behind its name, and so it stays if the process is killed. Such files are removed by hand. A
/// complete store that cannot get its name, since something else has it by then, stays there, too.
/// On block devices the store is made in place.
///
/// Takes some 50 bytes of memory per page, some 100 more where the volume has to be searched, and
/// 32 for each older copy of a page that is found there, three at most; and as much as the log
/// holds of pages.
///
/// # Errors
///
/// [`Error::Volume`] if `from` is no volume, or in use; [`Error::NotAStore`] if nothing of a
/// store is on it; [`Error::OlderFormat`]; as for [`Store::create`] and [`Tree::insert`];
/// [`Error::Interrupted`]. There is no new store then, but a complete one that has no name yet.
/// That something cannot be read is no error.
pub fn salvage<P: AsRef<Path>, Q: AsRef<Path>>(
    from: &[P],
    to: &[Q],
    options: &SalvageOptions,
    target: &Options,
    watch: Watch<'_>,
) -> Result<SalvageReport, Error> {
    let paths: Vec<PathBuf> = from.iter().map(|path| path.as_ref().to_owned()).collect();
    let (volume, truncated) = open_corrupt(&paths, options, target)?;
    match read_superblock(&volume, &paths) {
        // A log that is missing is told as one that cannot be read.
        Ok(mut superblock) => drop(open_log(&volume, &mut superblock, &paths, None)),
        Err(older @ OpenError::OlderFormat { .. }) => return Err(older.into()),
        Err(_) => {}
    }
    let making = Making::at(to)?;
    // Nothing is lost that could not be salvaged once more.
    let options_of_new = target.clone().durability(Durability::None);
    let store = Store::create(&making.partial[..], &options_of_new)?;
    let done = salvage_volume(&volume, &store, options, watch);
    let done = done.map_err(|error| match error {
        Error::NotAStore { .. } => Error::NotAStore { paths },
        other => other,
    });
    let mut report = match done {
        Ok(report) => report,
        Err(error) => {
            // The first error is the one that matters.
            let _ = store.undo_creation();
            return Err(error);
        }
    };
    if let Err(error) = store.close() {
        making.remove();
        return Err(error);
    }
    // From here on the store is complete: if it cannot get its name it stays, beside it.
    making.finish()?;
    report.problems.splice(0..0, truncated);
    Ok(report)
}

/// The volume on `paths`, and which of its files are too short; where its labels are corrupt, and
/// where a search was asked for anyway, the files as they are. Pages are found there, too.
fn open_corrupt(
    paths: &[PathBuf],
    options: &SalvageOptions,
    target: &Options,
) -> Result<(Volume, Vec<String>), Error> {
    let for_reading = VolumeOptions::new()
        .access(Access::ReadOnly)
        .lock_timeout(target.lock_timeout());
    match Volume::open_truncated(paths, &for_reading) {
        Err(VolumeError::LabelCorrupt { .. }) => {}
        Err(VolumeError::Foreign { .. }) if options.search => {}
        other => {
            let (volume, truncated) = other?;
            return Ok((volume, truncated.iter().map(missing_part).collect()));
        }
    }
    let volume = Volume::open_unlabelled(paths, &for_reading)?;
    Ok((volume, Vec::new()))
}

/// The message of a file that is too short, as an ordinary opening gives it.
fn missing_part(error: &VolumeError) -> String {
    match error {
        VolumeError::Truncated {
            path,
            expected,
            found,
        } => {
            let (found, expected) = two_sizes(*found, *expected);
            let path = path.display();
            format!(
                "{path} is truncated: it has {found} and must have {expected}; what lay beyond is missing"
            )
        }
        other => other.to_string(),
    }
}

/// As [`salvage`], from a volume into the empty store `to`.
///
/// # Errors
///
/// As for [`salvage`]; `to` may hold a part then.
pub fn salvage_volume(
    from: &Volume,
    to: &Store,
    options: &SalvageOptions,
    watch: Watch<'_>,
) -> Result<SalvageReport, Error> {
    let source = Source::open(from, watch, options.search)?;
    if source.is_nothing() {
        return Err(Error::NotAStore { paths: Vec::new() });
    }
    let mut salvage = Salvage {
        source,
        to,
        watch,
        pages: 0,
        problems: Vec::new(),
        more_problems: 0,
        lost: BTreeMap::new(),
    };
    let (trees, log_records) = salvage.run()?;
    let mut problems = std::mem::take(&mut salvage.source.problems);
    problems.append(&mut salvage.problems);
    if salvage.more_problems > 0 {
        problems.push(format!("and {} more", salvage.more_problems));
    }
    Ok(SalvageReport {
        trees,
        searched: salvage.source.was_searched(),
        log_records,
        problems,
    })
}

/// Keys of which nothing is known, because the page for them cannot be read: from the first on,
/// below the second.
struct Gap {
    lower: Vec<u8>,
    /// No bound where `None`.
    upper: Option<Vec<u8>>,
}

impl Gap {
    fn everything() -> Gap {
        Gap {
            lower: Vec::new(),
            upper: None,
        }
    }

    fn contains(&self, key: &[u8]) -> bool {
        key >= &self.lower[..] && self.upper.as_ref().is_none_or(|upper| key < &upper[..])
    }

    fn describe(&self) -> String {
        let from = show(&self.lower);
        match &self.upper {
            Some(upper) => format!("keys from {from} to {}", show(upper)),
            None => format!("keys from {from} on"),
        }
    }
}

/// A key for a message, shortened.
fn show(key: &[u8]) -> String {
    let shown = key[..key.len().min(48)].escape_ascii();
    let rest = if key.len() > 48 { "..." } else { "" };
    format!("\"{shown}{rest}\"")
}

/// The receiver of a tree's records.
trait Taker {
    /// Takes a record. `only_new`: unless there is one with its key.
    fn take(
        &mut self,
        salvage: &mut Salvage<'_, '_>,
        record: PageRecord,
        only_new: bool,
    ) -> Result<(), Error>;
}

/// The catalog's records: names and what they stand for.
#[derive(Default)]
struct Catalog(BTreeMap<Vec<u8>, Vec<u8>>);

impl Taker for Catalog {
    fn take(
        &mut self,
        _: &mut Salvage<'_, '_>,
        record: PageRecord,
        only_new: bool,
    ) -> Result<(), Error> {
        if !(only_new && self.0.contains_key(&record.key)) {
            self.0.insert(record.key, record.value);
        }
        Ok(())
    }
}

/// A tree of the new store.
struct Copied {
    /// Its number in the corrupt store.
    id: u32,
    tree: Tree,
    report: SalvagedTree,
}

impl Taker for Copied {
    fn take(
        &mut self,
        salvage: &mut Salvage<'_, '_>,
        record: PageRecord,
        only_new: bool,
    ) -> Result<(), Error> {
        if only_new && self.tree.contains(&record.key)? {
            return Ok(());
        }
        match record.kind {
            ValueKind::Inline => self.tree.insert(&record.key, &record.value)?,
            ValueKind::Extent => {
                salvage.copy_value(self, &record)?;
            }
        }
        Ok(())
    }
}

/// A run of its overlays, whose records may be tombstones.
struct OfRun<'c>(&'c mut Copied);

impl Taker for OfRun<'_> {
    fn take(
        &mut self,
        salvage: &mut Salvage<'_, '_>,
        record: PageRecord,
        only_new: bool,
    ) -> Result<(), Error> {
        let is_tombstone = record.kind == ValueKind::Extent && record.value.is_empty();
        salvage.lost.remove(&(self.0.id, record.key.clone()));
        if !is_tombstone {
            return self.0.take(salvage, record, only_new);
        }
        match only_new {
            true => Ok(()),
            false => self.0.tree.remove(&record.key).map(drop),
        }
    }
}

/// A large value that could not be read.
struct Lost {
    descriptor: Vec<u8>,
    why: String,
}

struct Salvage<'v, 'w> {
    source: Source<'v>,
    to: &'v Store,
    watch: Watch<'w>,
    pages: u64,
    problems: Vec<String>,
    more_problems: u64,
    /// Large values that could not be read, and why; unless the log has something newer.
    lost: BTreeMap<(u32, Vec<u8>), Lost>,
}

impl Salvage<'_, '_> {
    fn problem(&mut self, problem: String) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        } else {
            self.more_problems += 1;
        }
    }

    /// Copies everything; the trees, and how many commits of the log.
    fn run(&mut self) -> Result<(Vec<SalvagedTree>, u64), Error> {
        let mut catalog = Catalog::default();
        let whole = self.walk("the catalog", CATALOG, &mut catalog)?;
        if let Some(log) = self.source.log() {
            log.commits(|operations| {
                apply_to_catalog(operations, &mut catalog);
                Ok(())
            })?;
        }
        let mut copied: BTreeMap<u32, Copied> = BTreeMap::new();
        let mut dropped: HashSet<u32> = HashSet::default();
        dropped.insert(CATALOG.id.0);
        let mut runs = BTreeMap::new();
        for (key, value) in &catalog.0 {
            if let Some(listed) = merging::decode(key, value) {
                dropped.extend(listed.runs.iter().map(|(run, _)| run.id.0));
                runs.insert(listed.tree.id.0, listed.runs);
            }
            dropped.extend(merging::unlisted(key).map(|run| run.0));
        }
        for (key, value) in &catalog.0 {
            if let Some((name, tree)) = catalog::named_by(key, value) {
                let name = String::from_utf8_lossy(name).into_owned();
                let mut to = self.create(tree.id.0, &name)?;
                self.walk(&format!("tree {name:?}"), tree, &mut to)?;
                // From the oldest to the newest: what each says counts over those before.
                for (run, _) in runs.get(&tree.id.0).into_iter().flatten().rev() {
                    let name = format!("a run of tree {name:?}");
                    self.walk(&name, *run, &mut OfRun(&mut to))?;
                }
                copied.insert(tree.id.0, to);
            } else if let Some(tree) = dropped_by(key) {
                dropped.insert(tree.0);
            }
        }
        if !whole {
            self.find_lost_trees(&mut copied, &dropped)?;
        }
        let commits = self.apply_log(&mut copied)?;
        self.find_lost_values(&mut copied)?;
        self.tell_lost(&mut copied);
        for to in copied.values_mut() {
            let count = |_: &[u8], _: u64| {
                to.report.records += 1;
                true
            };
            to.tree.visit_keys(.., false, count)?;
        }
        let mut trees: Vec<SalvagedTree> = copied.into_values().map(|tree| tree.report).collect();
        trees.sort_by(|a, b| a.name.cmp(&b.name));
        Ok((trees, commits))
    }

    fn create(&self, id: u32, name: &str) -> Result<Copied, Error> {
        Ok(Copied {
            id,
            tree: self.to.open_or_create_tree(name)?,
            report: SalvagedTree {
                name: name.to_owned(),
                records: 0,
                lost_values: 0,
            },
        })
    }

    /// Trees that pages name and the catalog, which has gaps, does not.
    fn find_lost_trees(
        &mut self,
        copied: &mut BTreeMap<u32, Copied>,
        dropped: &HashSet<u32>,
    ) -> Result<(), Error> {
        self.source.search(self.watch)?;
        let mut lost: Vec<u32> = self.source.trees().into_iter().collect();
        lost.retain(|id| !copied.contains_key(id) && !dropped.contains(id));
        lost.sort_unstable();
        for id in lost {
            let name = format!("lost-{id}");
            let tree = TreeId(id);
            let Some(root) = self.root_of(tree) else {
                continue;
            };
            self.problem(format!("the name of tree {id} is lost; it is {name:?} now"));
            let mut to = self.create(id, &name)?;
            self.walk(
                &format!("tree {name:?}"),
                crate::types::Tree { id: tree, root },
                &mut to,
            )?;
            copied.insert(id, to);
        }
        Ok(())
    }

    /// The highest page of a tree that no other names.
    fn root_of(&self, tree: TreeId) -> Option<PageId> {
        let pages = self.source.pages_of(tree.0);
        let mut children: HashSet<PageId> = HashSet::default();
        for (page, level, _) in &pages {
            if *level > 0
                && let Ok(copy) = self.source.page(*page)
                && let Ok(Content::Inner {
                    children: named, ..
                }) = read_content(&copy.bytes, tree)
            {
                children.extend(named);
            }
        }
        let root = pages.iter().find(|(page, ..)| !children.contains(page));
        root.map(|(page, ..)| *page)
    }

    /// Copies all records of a tree that can be found; whether no page of it was missing.
    fn walk(
        &mut self,
        name: &str,
        tree: crate::types::Tree,
        to: &mut dyn Taker,
    ) -> Result<bool, Error> {
        let mut gaps: Vec<Gap> = Vec::new();
        let mut visited: HashSet<PageId> = HashSet::default();
        let mut rest = vec![(tree.root, Gap::everything())];
        while let Some((id, range)) = rest.pop() {
            if !visited.insert(id) {
                self.problem(format!("{name}: page {id} is named twice"));
                continue;
            }
            let content = self.read(name, id, tree.id, &range)?;
            match content {
                None => gaps.push(range),
                Some(Content::Leaf(records)) => {
                    for record in records.into_iter().filter(|r| range.contains(&r.key)) {
                        to.take(self, record, false)?;
                    }
                }
                Some(Content::Inner {
                    separators,
                    children,
                }) => {
                    // The leftmost is looked at first.
                    for (at, child) in children.into_iter().enumerate().rev() {
                        let lower = match at.checked_sub(1) {
                            Some(before) => separators[before].clone().max(range.lower.clone()),
                            None => range.lower.clone(),
                        };
                        let upper = separators.get(at).cloned();
                        let upper = match (upper, &range.upper) {
                            (Some(own), Some(all)) => Some(own.min(all.clone())),
                            (own, all) => own.or_else(|| all.clone()),
                        };
                        rest.push((child, Gap { lower, upper }));
                    }
                }
            }
        }
        if gaps.is_empty() {
            return Ok(true);
        }
        self.fill_gaps(name, tree.id, &gaps, &visited, to)?;
        Ok(false)
    }

    /// Reads a page; says so if it is missing, or not the newest.
    fn read(
        &mut self,
        name: &str,
        id: PageId,
        tree: TreeId,
        range: &Gap,
    ) -> Result<Option<Content>, Error> {
        self.pages += 1;
        if (self.watch)("salvaging", self.pages, 0).is_break() {
            return Err(Error::Interrupted);
        }
        let mut copy = self.source.page(id);
        if copy.is_err() && !self.source.was_searched() {
            self.source.search(self.watch)?;
            copy = self.source.page(id);
        }
        let content = copy.and_then(|copy| {
            let content = read_content(&copy.bytes, tree).map_err(str::to_owned)?;
            Ok((content, copy.is_stale))
        });
        match content {
            Ok((content, false)) => Ok(Some(content)),
            // Pages below it that are newer would be missed; they are found by themselves.
            Ok((Content::Inner { .. }, true)) => {
                self.problem(format!(
                    "{name}: page {id}, which leads to the pages of {}, is corrupt; those were looked for one by one",
                    range.describe()
                ));
                Ok(None)
            }
            Ok((content, true)) => {
                self.problem(format!(
                    "{name}: of page {id} ({}) only an older copy could be read: records may be out of date or missing",
                    range.describe()
                ));
                Ok(Some(content))
            }
            Err(why) => {
                self.problem(format!(
                    "{name}: page {id} ({}) cannot be read: {why}",
                    range.describe()
                ));
                Ok(None)
            }
        }
    }

    /// Looks for leaves of `tree` that no page leads to any more, and copies what they have for the
    /// gaps.
    fn fill_gaps(
        &mut self,
        name: &str,
        tree: TreeId,
        gaps: &[Gap],
        visited: &HashSet<PageId>,
        to: &mut dyn Taker,
    ) -> Result<(), Error> {
        self.source.search(self.watch)?;
        let pages = self.source.pages_of(tree.0);
        let mut found = 0;
        // The newest first: of two leaves with the same key that one is right.
        for (id, level, _) in pages {
            if level > 0 || visited.contains(&id) {
                continue;
            }
            let Ok(copy) = self.source.page(id) else {
                continue;
            };
            let Ok(Content::Leaf(records)) = read_content(&copy.bytes, tree) else {
                continue;
            };
            for record in records {
                if gaps.iter().any(|gap| gap.contains(&record.key)) {
                    to.take(self, record, true)?;
                    found += 1;
                }
            }
        }
        if found > 0 && !self.source.knows_all() {
            self.problem(format!(
                "{name}: {found} records were found in pages that nothing leads to; some may be out of date, or of loads that were never finished"
            ));
        }
        Ok(())
    }

    /// Copies a large value. If a part of it is missing, that is noted, and its key has no record.
    fn copy_value(&mut self, to: &Copied, record: &PageRecord) -> Result<(), Error> {
        let outcome = self.try_value(to, record)?;
        let whose = (to.id, record.key.clone());
        match outcome {
            Ok(()) => drop(self.lost.remove(&whose)),
            Err(why) => {
                to.tree.remove(&record.key)?;
                let descriptor = record.value.clone();
                self.lost.insert(whose, Lost { descriptor, why });
            }
        }
        Ok(())
    }

    /// Searches the volume for the values that are still missing. Not before: the log may have
    /// replaced them.
    fn find_lost_values(&mut self, copied: &mut BTreeMap<u32, Copied>) -> Result<(), Error> {
        if self.lost.is_empty() || self.source.was_searched() {
            return Ok(());
        }
        self.source.search(self.watch)?;
        for ((tree, key), lost) in std::mem::take(&mut self.lost) {
            let Some(to) = copied.get_mut(&tree) else {
                continue;
            };
            let record = PageRecord {
                key,
                kind: ValueKind::Extent,
                value: lost.descriptor,
            };
            self.copy_value(to, &record)?;
        }
        Ok(())
    }

    /// Says which values are lost.
    fn tell_lost(&mut self, copied: &mut BTreeMap<u32, Copied>) {
        for ((tree, key), lost) in std::mem::take(&mut self.lost) {
            let Some(to) = copied.get_mut(&tree) else {
                continue;
            };
            to.report.lost_values += 1;
            let name = &to.report.name;
            self.problem(format!(
                "tree {name:?}: the value of key {} is lost: {}",
                show(&key),
                lost.why
            ));
        }
    }

    fn try_value(&self, to: &Copied, record: &PageRecord) -> Result<Result<(), String>, Error> {
        let Ok(extent) = extent::decode(&record.value) else {
            return Ok(Err("its descriptor makes no sense".to_owned()));
        };
        let (_, _, stamp) = extent.first();
        let ids = match self.chunks_of(&extent) {
            Ok(ids) => ids,
            Err(why) => return Ok(Err(why)),
        };
        let mut writer = to.tree.writer(&record.key)?;
        for id in ids {
            match self.source.chunk(id, stamp.0) {
                Ok(payload) => writer.append(&payload)?,
                Err(why) => return Ok(Err(format!("chunk {id}: {why}"))),
            }
        }
        if writer.len() != extent.length {
            return Ok(Err("it has a wrong length".to_owned()));
        }
        writer.finish()?;
        Ok(Ok(()))
    }

    fn chunks_of(&self, extent: &Extent) -> Result<Vec<PageId>, String> {
        let (first, is_indexed, stamp) = extent.first();
        let count = extent.chunk_count();
        if !is_indexed {
            return Ok((first.0..first.0.saturating_add(count))
                .map(PageId)
                .collect());
        }
        let index = self.source.chunk(first, stamp.0);
        let index = index.map_err(|why| format!("its index, chunk {first}: {why}"))?;
        let mut ids = Vec::new();
        for run in index.chunks_exact(RUN_BYTES) {
            let (first, run) = (get_u64(run, 0), get_u64(run, 8));
            let left = count - ids.len() as u64;
            ids.extend((first..first.saturating_add(run.min(left))).map(PageId));
        }
        Ok(ids)
    }

    /// Applies the commits in the log: what the pages do not have yet.
    fn apply_log(&mut self, copied: &mut BTreeMap<u32, Copied>) -> Result<u64, Error> {
        let Some(log) = self.source.log() else {
            return Ok(0);
        };
        log.commits(|operations| {
            for operation in operations {
                if let Some(to) = copied.get(&operation.tree.id.0) {
                    self.apply(to, operation)?;
                }
            }
            Ok(())
        })
    }

    fn apply(&mut self, to: &Copied, operation: &Operation<'_>) -> Result<(), Error> {
        let key = operation.key;
        match operation.value {
            Some(value) if value.kind == ValueKind::Extent => {
                let record = PageRecord {
                    key: key.to_vec(),
                    kind: value.kind,
                    value: value.bytes.to_vec(),
                };
                return self.copy_value(to, &record);
            }
            Some(value) => to.tree.insert(key, value.bytes)?,
            None => to.tree.remove(key).map(drop)?,
        }
        self.lost.remove(&(to.id, key.to_vec()));
        Ok(())
    }
}

/// Brings the catalog up to a commit.
fn apply_to_catalog(operations: &[Operation<'_>], catalog: &mut Catalog) {
    for operation in operations.iter().filter(|each| each.tree == CATALOG) {
        match operation.value {
            Some(value) => drop(
                catalog
                    .0
                    .insert(operation.key.to_vec(), value.bytes.to_vec()),
            ),
            None => drop(catalog.0.remove(operation.key)),
        }
    }
}
