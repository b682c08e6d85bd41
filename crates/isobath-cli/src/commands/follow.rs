//! follow: a copy of a store that another process writes, kept up by its stream of changes.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use isobath::{
    Change, Changes, Committed, Error, LogPosition, Options, Record, Store, Transaction, Tree,
};
use isobath_lab::{LabError, VolumeError};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::json;

use super::store::{self, LARGE_POOL};
use crate::args::{FollowArgs, GlobalArgs};
use crate::failure::Failure;
use crate::interrupt::{self, InOrder};
use crate::output::{Output, counted};
use crate::progress::Progress;

/// The tree of a copy that notes what it follows.
const NOTE: &str = ".isobath-follow";
/// Its key: the position behind the last change that the copy has. Without a value the copy is
/// still being made.
const POSITION: &str = "position";
/// A position of the store that it is a copy of: the first value. A note without it is of no copy.
const SOURCE: &str = "source";
/// Transactions of the source, and bytes of their changes, that one of the copy applies at most.
const BATCH: usize = 1000;
const BATCH_BYTES: usize = 4 << 20;
/// How long a look for the next transaction waits.
const PATIENCE: Duration = Duration::from_millis(200);
/// As good as none, but it ends a long reading: zero would read all that is there.
const AT_ONCE: Duration = Duration::from_nanos(1);
/// Bytes that the source logs for reasons of its own before the copy notes that.
const NOTE_EVERY: u64 = 1 << 20;
/// Records that are compared between two looks for a Ctrl-C.
const CHECK_EVERY: u64 = 4096;
/// Times that a stream is opened again without having brought anything.
const MAX_ATTEMPTS: u32 = 10;
const TOO_FAST: &str = "the source is written faster than it can be read: give it a larger log";

/// Follows until the source is closed, until there is nothing new if `--once` says so, or until
/// Ctrl-C.
pub(crate) fn follow(
    args: &FollowArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let given = args.from.as_deref().map(str::parse::<LogPosition>);
    let given = given.transpose().map_err(Error::from)?;
    store::not_stdout(std::slice::from_ref(&args.copy))?;
    let _progress = Progress::start(global)?;
    let options = store::reading(&args.store, LARGE_POOL);
    let in_order = InOrder::begin()?;
    let (mut copy, first) = Copy::open(args, &options, given)?;
    let followed = copy.follow(first, args, &options, global);
    let (closed, position) = (copy.store.close(), copy.position);
    drop(in_order);
    let told = followed?;
    closed?;
    if out.json() {
        let position = position.map(|position| position.to_string());
        return out.document(&json!({
            "transactions": told.transactions,
            "changes": told.changes,
            "copied_anew": told.copied_anew,
            "position": position,
            "source_closed": told.is_closed,
        }));
    }
    out.line(&format!(
        "{}: {} and {} applied, {}; {}",
        args.copy.display(),
        counted(told.transactions, "transaction"),
        counted(told.changes, "change"),
        match told.copied_anew {
            0 => "none of it copied anew".to_owned(),
            times => format!("copied anew {}", counted(times, "time")),
        },
        match told.is_closed {
            true => "the source was closed",
            false => "the source has nothing new",
        }
    ))
}

/// What was done.
#[derive(Default)]
struct Told {
    transactions: u64,
    changes: u64,
    copied_anew: u64,
    is_closed: bool,
}

/// The copy, open for writing.
struct Copy {
    store: Store,
    note: Tree,
    position: Option<LogPosition>,
    source: Option<LogPosition>,
}

/// Why one stream ended.
enum Ended {
    Closed,
    NothingNew,
    /// The state that it read from was overtaken; the next one goes on.
    Overtaken,
    /// The log does not have what the copy lacks.
    Behind,
}

/// The tree that a change concerns.
fn tree_of(change: &Change) -> Option<&str> {
    match change {
        Change::Put { tree, .. }
        | Change::Remove { tree, .. }
        | Change::Create { tree }
        | Change::Drop { tree }
        | Change::Replace { tree, .. } => Some(tree),
        _ => None,
    }
}

fn is_overtaken(error: &Error) -> bool {
    matches!(
        error,
        Error::SnapshotTooOld | Error::TreeDropped { .. } | Error::ReaderOverrun { .. }
    )
}

/// Whether a file is no store: nothing that says so is whole.
fn is_no_store(error: &Error) -> bool {
    match error {
        Error::NotAStore { .. } => true,
        Error::Volume(error) => matches!(**error, VolumeError::Foreign { .. }),
        _ => false,
    }
}

/// A stream from `from` on, of the store that the copy follows; `None` where the log has moved on.
fn stream_from(
    args: &FollowArgs,
    options: &Options,
    from: Option<LogPosition>,
    source: Option<LogPosition>,
) -> Result<Option<Changes>, Error> {
    let changes = match Store::changes_beside(&args.store.store, options, from) {
        Err(Error::ChangesOverrun { .. }) => return Ok(None),
        other => other?,
    };
    match source {
        Some(source) if !source.is_of_same_store(&changes.position()) => {
            Err(Error::PositionOfOtherStore {
                position: source.to_string(),
                store: changes.position().to_string(),
            })
        }
        _ => Ok(Some(changes)),
    }
}

/// Refuses a file of the source as that of a copy.
fn not_the_source(args: &FollowArgs, copy: &Path) -> Result<(), Failure> {
    let place = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let path = copy;
    let Ok(copy) = place(copy) else {
        return Ok(());
    };
    let is_copy = |path: &PathBuf| place(path).is_ok_and(|found| found == copy);
    match args.store.store.iter().any(is_copy) {
        true => Err(Failure::Usage(format!(
            "{} is the source itself: name another store as its copy",
            path.display()
        ))),
        false => Ok(()),
    }
}

/// A new copy, under the name that it has until it notes what it follows: what a kill leaves before
/// that is no copy, and the next run removes it.
struct Unfinished {
    path: PathBuf,
}

impl Unfinished {
    /// # Errors
    ///
    /// What creating fails with; that another process makes the same copy, or that a store of this
    /// name is something else.
    fn create(
        args: &FollowArgs,
        copy: &Path,
        options: &Options,
    ) -> Result<(Unfinished, Store), Failure> {
        let mut path = copy.as_os_str().to_owned();
        path.push(".partial");
        let path = PathBuf::from(path);
        not_the_source(args, &path)?;
        if path.exists() {
            Self::remove(&path, options)?;
        }
        let store = Store::create(&path, options)?;
        // Another run may have made it before this one had the lock.
        if copy.exists() {
            store.undo_creation()?;
            let path = copy.to_owned();
            return Err(Error::FileExists { path }.into());
        }
        Ok((Unfinished { path }, store))
    }

    /// Removes what a killed run has left: a store that has a note at most, or none.
    fn remove(path: &Path, options: &Options) -> Result<(), Failure> {
        match Store::open(path, options) {
            Ok(rest) => {
                let trees = rest.trees()?;
                rest.close()?;
                if trees.iter().any(|tree| tree.name != NOTE) {
                    return Err(Failure::Usage(format!(
                        "{} is a store of its own: move it, or name another copy",
                        path.display()
                    )));
                }
            }
            Err(error) => match Error::from(error) {
                // Its creation was killed.
                error if is_no_store(&error) => {}
                error => return Err(error.into()),
            },
        }
        fs::remove_file(path).map_err(LabError::io("remove", path))?;
        Ok(())
    }

    /// Gives the store, which is whole, the copy's name.
    fn finish(self, store: Store, copy: &Path, options: &Options) -> Result<Store, Failure> {
        store.close()?;
        // Another run may have made a copy in the meantime: that one stays.
        let renamed = renameat_with(CWD, &self.path, CWD, copy, RenameFlags::NOREPLACE);
        renamed.map_err(|error| LabError::io("rename", &self.path)(error.into()))?;
        // The name is not synced: a power cut that takes it back has the next run begin anew.
        Ok(Store::open(copy, options)?)
    }
}

/// A copy as it was found, before anything of it is changed.
struct Found {
    store: Store,
    new: Option<Unfinished>,
    position: Option<LogPosition>,
    source: Option<LogPosition>,
    /// Its position is the one of the command line.
    is_given: bool,
}

impl Found {
    fn open(args: &FollowArgs, given: Option<LogPosition>) -> Result<Found, Failure> {
        let options = store::with_pool(args.store.pool, LARGE_POOL);
        let (store, new) = match args.copy.exists() {
            true => (Store::open(&args.copy, &options)?, None),
            false if given.is_some() => {
                return Err(Failure::Usage(format!(
                    "--from is for a copy that was restored from a backup; {} does not exist",
                    args.copy.display()
                )));
            }
            false => {
                let (new, store) = Unfinished::create(args, &args.copy, &options)?;
                (store, Some(new))
            }
        };
        let mut found = Found {
            store,
            new,
            position: None,
            source: None,
            is_given: false,
        };
        match found.read(args, given) {
            Ok(()) => Ok(found),
            Err(error) => found.give_up(error),
        }
    }

    /// Reads what the copy has noted.
    fn read(&mut self, args: &FollowArgs, given: Option<LogPosition>) -> Result<(), Failure> {
        let trees = self.store.trees()?;
        if trees.iter().any(|tree| tree.name == NOTE) {
            let note = self.store.tree(NOTE)?;
            let read = |key| -> Result<Option<LogPosition>, Error> {
                let noted = note.get(key)?;
                let text = noted.as_deref().map(String::from_utf8_lossy);
                Ok(text.map(|text| text.parse()).transpose()?)
            };
            self.position = read(POSITION)?;
            self.source = read(SOURCE)?.or(self.position);
        }
        if self.source.is_none() && given.is_none() && trees.iter().any(|tree| tree.name != NOTE) {
            return Err(Failure::Usage(format!(
                "{} is no copy that was made by this verb: name one that does not exist, or restore a backup there and give its position with --from",
                args.copy.display()
            )));
        }
        if let (Some(given), Some(source)) = (given, self.source)
            && !given.is_of_same_store(&source)
        {
            return Err(Failure::Usage(format!(
                "--from is a position of another store than {} follows",
                args.copy.display()
            )));
        }
        // What the copy has noted itself is newer.
        self.is_given = self.source.is_none() && given.is_some();
        self.position = self.position.or(given.filter(|_| self.is_given));
        Ok(())
    }

    /// The first stream; `None` where the log has moved on.
    fn stream(&self, args: &FollowArgs, options: &Options) -> Result<Option<Changes>, Failure> {
        let mut changes = None;
        for _ in 0..MAX_ATTEMPTS {
            changes = stream_from(args, options, self.position, self.source)?;
            // A copy notes its source before anything else, so a new one needs a stream.
            if changes.is_some() || self.new.is_none() {
                break;
            }
        }
        if changes.is_none() && self.new.is_some() {
            return Err(Failure::Usage(TOO_FAST.into()));
        }
        if changes.is_none() && self.is_given {
            return Err(Failure::Usage(
                "the source's log has moved on from the position of --from: restore a newer backup, or name a copy that does not exist".into(),
            ));
        }
        Ok(changes)
    }

    /// Leaves the copy as it was.
    fn give_up<T>(self, error: Failure) -> Result<T, Failure> {
        match self.new {
            Some(_) => self.store.undo_creation()?,
            None => self.store.close()?,
        }
        Err(error)
    }

    /// The copy of the source that `first` is of, which it notes before anything else.
    fn begin(self, args: &FollowArgs, first: Option<&Changes>) -> Result<Copy, Failure> {
        let mut store = self.store;
        let mut note = store.open_or_create_tree(NOTE)?;
        let mut transaction = store.begin()?;
        let source = self.source.or(first.map(Changes::position));
        if let Some(source) = source {
            transaction.insert(&note, SOURCE, source.to_string())?;
        }
        if let Some(position) = self.position {
            transaction.insert(&note, POSITION, position.to_string())?;
        }
        transaction.commit()?;
        if let Some(new) = self.new {
            drop(note);
            let options = store::with_pool(args.store.pool, LARGE_POOL);
            store = new.finish(store, &args.copy, &options)?;
            note = store.tree(NOTE)?;
        }
        Ok(Copy {
            store,
            note,
            position: self.position,
            source,
        })
    }
}

impl Copy {
    fn open(
        args: &FollowArgs,
        options: &Options,
        given: Option<LogPosition>,
    ) -> Result<(Copy, Option<Changes>), Failure> {
        not_the_source(args, &args.copy)?;
        let found = Found::open(args, given)?;
        match found.stream(args, options) {
            Ok(first) => Ok((found.begin(args, first.as_ref())?, first)),
            Err(error) => found.give_up(error),
        }
    }

    /// Follows one stream after another.
    fn follow(
        &mut self,
        mut first: Option<Changes>,
        args: &FollowArgs,
        options: &Options,
        global: &GlobalArgs,
    ) -> Result<Told, Failure> {
        let (mut told, mut attempts) = (Told::default(), 0);
        let mut from = self.position;
        loop {
            let before = told.transactions;
            let stream = match first.take() {
                None => stream_from(args, options, from, self.source)?,
                first => first,
            };
            let ended = match stream {
                Some(changes) => self.follow_stream(changes, from.is_some(), args, &mut told)?,
                None => Ended::Behind,
            };
            attempts = match told.transactions > before {
                true => 1,
                false => attempts + 1,
            };
            from = match ended {
                Ended::Closed | Ended::NothingNew => {
                    told.is_closed = matches!(ended, Ended::Closed);
                    return Ok(told);
                }
                Ended::Overtaken => self.position,
                Ended::Behind => {
                    if !global.quiet {
                        eprintln!("the source's log has moved on: comparing all of the source");
                    }
                    None
                }
            };
            if attempts >= MAX_ATTEMPTS {
                return Err(Failure::Usage(TOO_FAST.into()));
            }
        }
    }

    /// Follows one stream. Without a position the first transaction has everything: before it there
    /// is nothing to note.
    fn follow_stream(
        &mut self,
        mut changes: Changes,
        mut has_begun: bool,
        args: &FollowArgs,
        told: &mut Told,
    ) -> Result<Ended, Failure> {
        let mut held = None;
        loop {
            interrupt::check()?;
            let next = match held.take() {
                Some(committed) => Ok(Some(committed)),
                None => look(&mut changes, args.once),
            };
            let next = match next {
                Err(Error::ChangesOverrun { .. }) => return Ok(Ended::Behind),
                Err(error) if is_overtaken(&error) => return Ok(Ended::Overtaken),
                Err(Error::Closed) if has_begun => {
                    self.note_position(changes.position(), 0)?;
                    return Ok(Ended::Closed);
                }
                other => other?,
            };
            let Some(first) = next else {
                if !has_begun {
                    continue;
                }
                let least = if args.once { 0 } else { NOTE_EVERY };
                self.note_position(changes.position(), least)?;
                if args.once {
                    return Ok(Ended::NothingNew);
                }
                continue;
            };
            let batch = gather(first, &mut changes, &mut held);
            match self.apply(&batch) {
                Err(Failure::Lab(LabError::Engine(error))) if is_overtaken(&error) => {
                    return Ok(Ended::Overtaken);
                }
                other => other?,
            }
            has_begun = true;
            told.transactions += batch.len() as u64;
            for committed in &batch {
                told.changes += committed.changes.len() as u64;
                told.copied_anew += u64::from(committed.is_whole);
            }
        }
    }

    /// Notes a position without changes, if it is so many bytes behind the last one.
    fn note_position(&mut self, position: LogPosition, least: u64) -> Result<(), Error> {
        // Without one the copy is still being made.
        let Some(before) = self.position else {
            return Ok(());
        };
        if position != before && position.lsn().saturating_sub(before.lsn()) >= least {
            self.note.insert(POSITION, position.to_string())?;
            self.position = Some(position);
        }
        Ok(())
    }

    /// Applies transactions as one, which also notes how far the copy is then. Trees are made and
    /// dropped before that: doing it again changes nothing.
    fn apply(&mut self, batch: &[Committed]) -> Result<(), Failure> {
        let mut writes: Vec<(&Committed, &Change)> = Vec::new();
        for committed in batch {
            if committed.is_whole {
                self.drop_others(committed)?;
            }
            for change in &committed.changes {
                match change {
                    // That of a source that is itself a copy.
                    change if tree_of(change) == Some(NOTE) => {}
                    Change::Create { tree } => drop(self.store.open_or_create_tree(tree)?),
                    Change::Drop { tree } => {
                        writes.retain(|(_, write)| tree_of(write) != Some(tree));
                        self.drop_tree(tree)?;
                    }
                    _ => writes.push((committed, change)),
                }
            }
        }
        let mut trees: BTreeMap<&str, Tree> = BTreeMap::new();
        for name in writes.iter().filter_map(|(_, change)| tree_of(change)) {
            if !trees.contains_key(name) {
                trees.insert(name, self.store.open_or_create_tree(name)?);
            }
        }
        let snapshot = self.store.snapshot()?;
        let mut transaction = self.store.begin()?;
        for (committed, change) in writes {
            let Some(tree) = tree_of(change).and_then(|name| trees.get(name)) else {
                continue;
            };
            match change {
                Change::Put { key, value, .. } => transaction.insert(tree, key, value)?,
                Change::Remove { key, .. } => drop(transaction.remove(tree, key)?),
                Change::Replace { from, .. } => {
                    let theirs = committed.records(tree.name())?;
                    let ours = snapshot.range(tree, from.clone()..)?;
                    write_differences(theirs, ours, tree, &mut transaction)?;
                }
                _ => {}
            }
        }
        if let Some(last) = batch.last() {
            let position = last.position.to_string();
            transaction.insert(&self.note, POSITION, position)?;
            drop(snapshot);
            transaction.commit()?;
            self.position = Some(last.position);
        }
        Ok(())
    }

    fn drop_tree(&self, name: &str) -> Result<(), Error> {
        match self.store.drop_tree(name) {
            Err(Error::NoSuchTree { .. }) => Ok(()),
            other => other,
        }
    }

    fn drop_others(&self, committed: &Committed) -> Result<(), Error> {
        let theirs: BTreeSet<&str> = committed.changes.iter().filter_map(tree_of).collect();
        for tree in self.store.trees()? {
            if tree.name != NOTE && !theirs.contains(&*tree.name) {
                self.drop_tree(&tree.name)?;
            }
        }
        Ok(())
    }
}

/// The next transaction; where the last one is looked for, all that is there is read.
fn look(changes: &mut Changes, once: bool) -> Result<Option<Committed>, Error> {
    match changes.next_within(PATIENCE)? {
        None if once => changes.next_within(Duration::ZERO),
        next => Ok(next),
    }
}

/// The transaction `first` and those behind it that are there already. One that has trees read from
/// a state of the source stays alone: what comes before may concern the same records.
fn gather(first: Committed, changes: &mut Changes, held: &mut Option<Committed>) -> Vec<Committed> {
    let is_alone = |committed: &Committed| {
        let mut changes = committed.changes.iter();
        committed.is_whole || changes.any(|change| matches!(change, Change::Replace { .. }))
    };
    let mut bytes = bytes_of(&first);
    let mut batch = vec![first];
    while batch.len() < BATCH && bytes < BATCH_BYTES && !is_alone(&batch[0]) {
        match changes.next_within(AT_ONCE) {
            Ok(Some(next)) if is_alone(&next) => {
                *held = Some(next);
                break;
            }
            Ok(Some(next)) => {
                bytes += bytes_of(&next);
                batch.push(next);
            }
            // The same error comes again.
            Ok(None) | Err(_) => break,
        }
    }
    batch
}

fn bytes_of(committed: &Committed) -> usize {
    let bytes = |change: &Change| match change {
        Change::Put { key, value, .. } => key.len() + value.len(),
        _ => 0,
    };
    committed.changes.iter().map(bytes).sum()
}

/// Has `ours`, the records of `tree`, become `theirs`.
fn write_differences(
    mut theirs: impl Iterator<Item = Result<Record, Error>>,
    mut ours: impl Iterator<Item = Result<Record, Error>>,
    tree: &Tree,
    transaction: &mut Transaction,
) -> Result<(), Failure> {
    let (mut left, mut right) = (theirs.next().transpose()?, ours.next().transpose()?);
    for compared in 0_u64.. {
        if compared.is_multiple_of(CHECK_EVERY) {
            interrupt::check()?;
        }
        let order = match (&left, &right) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((left, _)), Some((right, _))) => left.cmp(right),
        };
        match (&left, &right) {
            (Some((key, value)), _) if order == Ordering::Less => {
                transaction.insert(tree, key, value)?;
            }
            (Some((key, value)), Some((_, old))) if order == Ordering::Equal && value != old => {
                transaction.insert(tree, key, value)?;
            }
            (_, Some((key, _))) if order == Ordering::Greater => {
                transaction.remove(tree, key)?;
            }
            _ => {}
        }
        if order != Ordering::Greater {
            left = theirs.next().transpose()?;
        }
        if order != Ordering::Less {
            right = ours.next().transpose()?;
        }
    }
    Ok(())
}
