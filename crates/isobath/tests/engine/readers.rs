//! Readers after a crash and beside a writer: what they see belongs together, and they change
//! nothing.

#![allow(missing_docs, clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{
    LOG, Model, Random, assert_sound, bytes_of, contents, image, key, tiny, value,
};
use isobath::{
    BackupError, BackupOptions, Durability, Error, OpenError, Options, StorageError, Store,
    TransactionOptions, Tree, Volume, WriteBatch,
};
use isobath_io::{
    Access, BackendReport, Channel, ChannelOptions, Device, FaultDevice, FaultPlan, IoError,
    VolumeError, VolumeOptions,
};

mod processes;

/// Accounts, and what each begins with.
const ACCOUNTS: u64 = 1_500;
const EACH: u64 = 1_000;
/// Records of a tree that is loaded at once.
const LOADED: u64 = 400;

fn options() -> Options {
    tiny(2, 6).log_bytes(LOG).volume_limit_bytes(None)
}

fn reading() -> Options {
    options().read_only(true)
}

/// A balance as a record's value: long, so that little fits a page, and of a length that follows
/// from it.
fn amount(balance: u64) -> Vec<u8> {
    let mut bytes = value(balance, 100 + (balance % 150) as usize);
    bytes[..8].copy_from_slice(&balance.to_le_bytes());
    bytes
}

fn balance(bytes: &[u8]) -> u64 {
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(bytes, amount(number));
    number
}

/// A store of accounts, closed.
fn accounts(path: &Path, options: &Options) {
    let store = Store::create(path, options).unwrap();
    let tree = store.create_tree("accounts").unwrap();
    let mut records: Model = (0..ACCOUNTS).map(|n| (key(n), amount(EACH))).collect();
    records.insert(b"moves".to_vec(), amount(0));
    tree.bulk_load(&records).unwrap();
    store.close().unwrap();
}

/// Moves money between some accounts and counts that, in one transaction; the count.
fn move_some(store: &Store, tree: &Tree, random: &mut Random) -> u64 {
    store
        .transact(TransactionOptions::new(), |transaction| {
            for _ in 0..4 {
                let (from, to) = (random.below(ACCOUNTS), random.below(ACCOUNTS));
                if from == to {
                    continue;
                }
                let has = |found: Option<Vec<u8>>| balance(&found.unwrap());
                let (a, b) = (
                    has(transaction.get(tree, &key(from))?),
                    has(transaction.get(tree, &key(to))?),
                );
                let moved = a.min(random.below(50));
                transaction.insert(tree, &key(from), &amount(a - moved))?;
                transaction.insert(tree, &key(to), &amount(b + moved))?;
            }
            let count = balance(&transaction.get(tree, b"moves")?.unwrap()) + 1;
            transaction.insert(tree, b"moves", &amount(count))?;
            Ok::<u64, Error>(count)
        })
        .unwrap()
}

/// What else a writer does: trees made, loaded and dropped, and a large value.
fn change_trees(store: &Store, round: u64) {
    let name = format!("loaded-{}", round % 3);
    match store.drop_tree(&name) {
        Ok(()) | Err(Error::NoSuchTree { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    let tree = store.create_tree(&name).unwrap();
    let records: Model = (0..LOADED).map(|n| (key(n), value(round, 300))).collect();
    tree.bulk_load(&records).unwrap();
    let large = store.open_or_create_tree("large").unwrap();
    large.insert(b"value", &value(round, 150_000)).unwrap();
}

/// Reads all that the store has, and that it belongs together; how often money was moved.
fn read_all(store: &Store) -> Result<u64, Error> {
    let tree = store.tree("accounts")?;
    let (mut sum, mut count, mut moves) = (0, 0, 0);
    for record in tree.range(..) {
        let (found, bytes) = record?;
        match &found[..] {
            b"moves" => moves = balance(&bytes),
            _ => (sum, count) = (sum + balance(&bytes), count + 1),
        }
    }
    assert_eq!((count, sum), (ACCOUNTS, ACCOUNTS * EACH));
    for info in store.trees()? {
        let tree = store.tree(&info.name)?;
        if info.name.starts_with("loaded") {
            let records: Vec<_> = tree.range(..).collect::<Result<_, _>>()?;
            let all = records.len() as u64;
            assert!(all == 0 || all == LOADED, "{all} of {LOADED} records");
            assert!(records.windows(2).all(|pair| pair[0].1 == pair[1].1));
        }
        if info.name == "large"
            && let Some(found) = tree.get(b"value")?
        {
            let is_one = (0..10_000).any(|round| found == value(round, 150_000));
            assert!(is_one, "no value that was ever written");
        }
    }
    Ok(moves)
}

/// A writer in this process, until it is stopped.
struct Busy<'s> {
    store: &'s Store,
    stop: AtomicBool,
    /// Moves of money that were acknowledged.
    moves: AtomicU64,
}

impl Busy<'_> {
    fn run(&self, trees_too: bool) {
        let tree = self.store.tree("accounts").unwrap();
        let mut random = Random::new(7);
        let mut round = 0;
        while !self.stop.load(Ordering::SeqCst) {
            let moves = move_some(self.store, &tree, &mut random);
            self.moves.store(moves, Ordering::SeqCst);
            if trees_too && moves.is_multiple_of(40) {
                round += 1;
                change_trees(self.store, round);
            }
        }
    }
}

/// Runs `work` beside a writer that is busy all the time.
fn beside(store: &Store, trees_too: bool, work: impl FnOnce(&Busy<'_>)) {
    let busy = Busy {
        store,
        stop: AtomicBool::new(false),
        moves: AtomicU64::new(0),
    };
    /// Stops the writer also where `work` panics.
    struct Stop<'b>(&'b AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| busy.run(trees_too));
        let _stop = Stop(&busy.stop);
        work(&busy);
    });
}

/// Moves money until `times` more moves were acknowledged.
fn await_moves(busy: &Busy<'_>, times: u64) {
    let goal = busy.moves.load(Ordering::SeqCst) + times;
    while busy.moves.load(Ordering::SeqCst) < goal {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_unclosed_store_is_read_as_its_recovery_would_leave_it() {
    for seed in 0..2 {
        let plan = FaultPlan::new(seed).max_bytes(Some(48 << 20));
        let device = FaultDevice::new(0, plan);
        let volume = Volume::from_device(device.clone());
        let store = Store::create_on_volume(volume, &options()).unwrap();
        let tree = store.create_tree("t").unwrap();
        store.create_tree("dropped").unwrap();
        let mut random = Random::new(seed);
        let mut model = Model::new();
        // More than the pool holds: replayed pages have to leave it again.
        for n in 0..2_500 {
            let key = key(random.below(1_500));
            if random.below(5) == 0 {
                tree.remove(&key).unwrap();
                model.remove(&key);
            } else {
                let length = random.one_of(&[10, 300, 900, 900, 20_000 * (n % 40 / 39)]);
                let value = value(random.bits(), length as usize);
                tree.insert(&key, &value).unwrap();
                model.insert(key, value);
            }
        }
        let loaded = store.create_tree("loaded").unwrap();
        loaded.bulk_load(&model).unwrap();
        store.drop_tree("dropped").unwrap();
        let left = image(&device);
        store.close().unwrap();

        let before = bytes_of(&left);
        let volume = Volume::from_device(left.clone());
        let reader = Store::open_on_volume(volume.clone(), &reading()).unwrap();
        let second = Store::open_on_volume(volume.clone(), &reading()).unwrap();
        assert!(reader.stats().recovered_log_bytes > 0);
        for store in [&reader, &second] {
            for name in ["t", "loaded"] {
                assert!(contents(&store.tree(name).unwrap()) == model, "{name}");
            }
            assert_eq!(store.trees().unwrap().len(), 2);
            assert_sound(store, Some(2 * model.len() as u64));
            let refused = store.tree("t").unwrap().insert(b"k", b"v");
            assert!(matches!(refused, Err(Error::ReadOnly)), "{refused:?}");
        }
        reader.close().unwrap();
        second.close().unwrap();
        assert!(bytes_of(&left) == before, "a reader has changed the volume");

        let store = Store::open_on_volume(volume, &options()).unwrap();
        assert!(contents(&store.tree("t").unwrap()) == model);
        assert_sound(&store, Some(2 * model.len() as u64));
        store.close().unwrap();
    }
}

#[test]
fn a_store_that_was_never_written_to_since_it_was_opened_is_read() {
    let device = FaultDevice::new(0, FaultPlan::new(1).max_bytes(Some(48 << 20)));
    let volume = Volume::from_device(device.clone());
    let store = Store::create_on_volume(volume.clone(), &options()).unwrap();
    store.create_tree("t").unwrap();
    store.close().unwrap();
    let store = Store::open_on_volume(volume, &options()).unwrap();
    let left = Volume::from_device(image(&device));
    drop(store);
    let reader = Store::open_on_volume(left, &reading()).unwrap();
    assert_eq!(reader.trees().unwrap().len(), 1);
}

#[test]
fn what_a_reader_finds_beside_a_busy_writer_belongs_together() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("s.iso");
    accounts(&path, &options());
    let store = Store::open(&path, &options()).unwrap();
    let mut opened = 0;
    beside(&store, true, |busy| {
        await_moves(busy, 1);
        let until = Instant::now() + Duration::from_secs(4);
        while Instant::now() < until || opened < 5 {
            let acknowledged = busy.moves.load(Ordering::SeqCst);
            let reader = match Store::open(&path, &reading()) {
                Ok(reader) => reader,
                Err(OpenError::Storage(StorageError::ReaderOverrun { .. })) => continue,
                Err(error) => panic!("{error}"),
            };
            match read_all(&reader) {
                Ok(moves) => assert!(moves >= acknowledged, "{moves} of {acknowledged}"),
                Err(Error::ReaderOverrun { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            opened += 1;
            if opened % 4 == 0 {
                match reader.check(&mut |_, _| {}) {
                    Ok(report) => assert_eq!(report.problems, Vec::<String>::new()),
                    Err(Error::ReaderOverrun { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            reader.close().unwrap();
        }
    });
    let stats = store.stats();
    assert!(stats.checkpoints > 0, "the log was never shortened");
    assert_sound(&store, None);
    store.close().unwrap();
}

#[test]
fn what_a_reader_needs_is_kept_for_it_and_then_used_again() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("s.iso");
    accounts(&path, &options());
    // The reader comes first: neither waits for the other.
    let first = Store::open(&path, &reading()).unwrap();
    let store = Store::open(&path, &options()).unwrap();
    let segments = store.stats().segments;
    beside(&store, false, |busy| {
        await_moves(busy, 200);
        let second = Store::open(&path, &reading()).unwrap();
        // Every account is written several times over; what the readers have not read stays.
        await_moves(busy, 2_000);
        assert_eq!(read_all(&first).unwrap(), 0);
        let moves = read_all(&second).unwrap();
        assert!((200..2_200).contains(&moves), "{moves}");
        assert_eq!(read_all(&second).unwrap(), moves);
        first.close().unwrap();
        second.close().unwrap();
        await_moves(busy, 1_000);
    });
    // Bound: a quarter is retained, and a step of growth.
    assert!(store.stats().segments <= segments + segments / 2 + 512);
    store.close().unwrap();
}

/// Changes every account in one process after another: each opens the store, and closes it or is
/// gone.
fn overwrite_in_turn(path: &Path, rounds: u64, is_closed: bool) {
    for round in 0..rounds {
        let store = Store::open(path, &options()).unwrap();
        let tree = store.tree("accounts").unwrap();
        let less = EACH - 1 - round % 7;
        for part in (0..ACCOUNTS / 2).collect::<Vec<_>>().chunks(50) {
            let changed = store.transact(TransactionOptions::new(), |transaction| {
                for pair in part {
                    transaction.insert(&tree, key(2 * pair), &amount(less))?;
                    transaction.insert(&tree, key(2 * pair + 1), &amount(2 * EACH - less))?;
                }
                Ok::<(), Error>(())
            });
            changed.unwrap();
        }
        match is_closed {
            true => store.close().unwrap(),
            false => drop(store),
        }
    }
}

#[test]
fn what_a_reader_needs_is_kept_by_one_writer_after_another() {
    let place = tempfile::tempdir().unwrap();
    for is_closed in [true, false] {
        let path = place.path().join(format!("{is_closed}.iso"));
        accounts(&path, &options());
        let segments = Store::open(&path, &reading()).unwrap().stats().segments;
        let first = Store::open(&path, &reading()).unwrap();
        overwrite_in_turn(&path, 3, is_closed);
        let second = Store::open(&path, &reading()).unwrap();
        overwrite_in_turn(&path, 12, is_closed);
        for reader in [&first, &second] {
            let read = read_all(reader);
            assert!(read.is_ok(), "closed: {is_closed}, {read:?}");
        }
        first.close().unwrap();
        second.close().unwrap();
        // Segments kept for them are used again.
        overwrite_in_turn(&path, 20, is_closed);
        let store = Store::open(&path, &options()).unwrap();
        assert_sound(&store, None);
        let now = store.stats().segments;
        assert!(
            now <= 2 * segments + 512,
            "{now} segments, {segments} before"
        );
        store.close().unwrap();
    }
}

#[test]
fn a_reader_that_holds_back_too_much_is_overrun_and_not_the_writer() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("s.iso");
    let limit = Some(12 << 20);
    accounts(&path, &options().volume_limit_bytes(limit));
    let store = Store::open(&path, &options().volume_limit_bytes(limit)).unwrap();
    let tree = store.create_tree("more").unwrap();
    let fill = |round: u64| {
        for first in (0..2_000).step_by(20) {
            let mut batch = WriteBatch::new();
            (first..first + 20).for_each(|n| batch.insert(&tree, key(n), value(round, 900)));
            store.write(&batch).unwrap();
        }
    };
    fill(0);
    let reader = Store::open(&path, &reading()).unwrap();
    (1..8).for_each(fill);
    // The writer went on within its limit. What the reader sees is right, or nothing at all.
    let read = || -> Result<(), Error> {
        for record in reader.tree("more")?.range(..) {
            assert!(record?.1 == value(0, 900), "a record of a later round");
        }
        Ok(())
    };
    let overrun = read();
    assert!(
        matches!(overrun, Err(Error::ReaderOverrun { .. })),
        "{overrun:?}"
    );
    let checked = reader.check(&mut |_, _| {});
    assert!(
        matches!(checked, Err(Error::ReaderOverrun { .. })),
        "{checked:?}"
    );
    let again = Store::open(&path, &reading()).unwrap();
    for record in again.tree("more").unwrap().range(..) {
        assert!(record.unwrap().1 == value(7, 900));
    }
    assert_sound(&store, None);
    store.close().unwrap();
}

#[test]
fn a_corrupt_page_beside_a_writer_is_called_corrupt() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("s.iso");
    accounts(&path, &options());
    let store = Store::open(&path, &options()).unwrap();
    let reader = Store::open(&path, &reading()).unwrap();
    // All pages of the tree, wherever they are: nothing was written since.
    let mut bytes = fs::read(&path).unwrap();
    let is_leaf = |page: &[u8]| page[4] == 1 && page[5] == 0 && page[8..16] != [0; 8];
    let data = 64 << 10;
    for page in bytes[data..].chunks_exact_mut(4096) {
        if is_leaf(page) {
            page[2_000] ^= 1;
        }
    }
    fs::write(&path, bytes).unwrap();
    let read = read_all(&reader);
    assert!(matches!(read, Err(Error::CorruptPage { .. })), "{read:?}");
    drop(reader);
    drop(store);
}

#[test]
fn a_corrupt_log_beside_a_writer_is_called_corrupt() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("s.iso");
    accounts(&path, &options());
    let store = Store::open(&path, &options()).unwrap();
    let tree = store.tree("accounts").unwrap();
    let mut random = Random::new(1);
    let marked = value(0, 40);
    store
        .create_tree("mark")
        .unwrap()
        .insert(b"k", &marked)
        .unwrap();
    for _ in 0..100 {
        move_some(&store, &tree, &mut random);
    }
    let mut bytes = fs::read(&path).unwrap();
    // Its page is not written yet: only the log has it.
    let found = bytes.windows(marked.len()).position(|at| at == marked);
    bytes[found.unwrap()] ^= 1;
    fs::write(&path, bytes).unwrap();
    let read = Store::open(&path, &reading()).map(drop);
    assert!(
        matches!(
            read,
            Err(OpenError::Storage(StorageError::LogCorrupt { .. }))
        ),
        "{read:?}"
    );
}

/// A volume on which something happens before it is read behind its first segment for the first
/// time.
struct Hooked {
    below: Volume,
    hook: std::sync::Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Device for Hooked {
    fn len(&self) -> u64 {
        self.below.len()
    }

    fn limit(&self) -> Option<u64> {
        self.below.limit()
    }

    fn logical_block(&self) -> u32 {
        self.below.logical_block()
    }

    fn grow(&self, new_len: u64) -> Result<(), VolumeError> {
        self.below.grow(new_len)
    }

    fn channel(self: Arc<Self>, options: &ChannelOptions) -> Result<Box<dyn Channel>, VolumeError> {
        self.below.channel(options)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        let hook = match offset < 64 << 10 {
            true => None,
            false => self.hook.lock().unwrap().take(),
        };
        if let Some(hook) = hook {
            hook();
        }
        self.below.read_at(offset, buf)
    }

    fn write_at(&self, _: u64, _: &[u8]) -> Result<(), IoError> {
        panic!("a reader writes")
    }

    fn sync(&self) -> Result<(), IoError> {
        panic!("a reader flushes")
    }

    fn backend_report(&self) -> BackendReport {
        self.below.backend_report()
    }
}

#[test]
fn a_log_that_is_written_over_while_it_is_read_is_read_again() {
    let volume = Volume::in_memory(0, None);
    let store = Store::create_on_volume(volume.clone(), &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    tree.insert(b"k", value(0, 800)).unwrap();
    // Only one page changes, so that nothing else shows the reader that it is late.
    let (writer, written) = (tree.clone(), store.clone());
    let hook = move || {
        for n in 1..=7_000 {
            writer.insert(b"k", value(n, 800)).unwrap();
        }
        assert!(written.stats().checkpoints > 1, "the log went round");
    };
    let hooked = Hooked {
        below: volume,
        hook: std::sync::Mutex::new(Some(Box::new(hook))),
    };
    let reader = Store::open_on_volume(Volume::from_device(Arc::new(hooked)), &reading()).unwrap();
    let found = reader.tree("t").unwrap().get(b"k").unwrap();
    assert!(found == Some(value(7_000, 800)), "an older state");
    store.close().unwrap();
}

/// The log of a store that was closed goes on where it ended: a reader that came before the writer,
/// and reads it after that, tries again.
#[test]
fn a_closed_store_that_a_writer_opens_while_it_is_read_is_read_again() {
    let volume = Volume::in_memory(0, None);
    let store = Store::create_on_volume(volume.clone(), &options()).unwrap();
    store.create_tree("t").unwrap();
    store.close().unwrap();
    let (send, receive) = std::sync::mpsc::channel();
    let written = volume.clone();
    let hook = move || {
        let synced = options().durability(Durability::Synced);
        let store = Store::open_on_volume(written, &synced).unwrap();
        store.tree("t").unwrap().insert("k", "v").unwrap();
        send.send(store).unwrap();
    };
    let hooked = Hooked {
        below: volume,
        hook: std::sync::Mutex::new(Some(Box::new(hook))),
    };
    let reader = Store::open_on_volume(Volume::from_device(Arc::new(hooked)), &reading()).unwrap();
    let found = reader.tree("t").unwrap().get("k").unwrap();
    assert_eq!(found.as_deref(), Some(&b"v"[..]));
    receive.recv().unwrap().close().unwrap();
}

#[test]
fn a_store_without_a_log_is_read_once_it_is_closed() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("s.iso");
    let unlogged = options().log_bytes(0);
    accounts(&path, &unlogged);
    let before = Store::open(&path, &reading()).unwrap();
    let store = Store::open(&path, &unlogged).unwrap();
    let refused = Store::open(&path, &reading()).unwrap_err().to_string();
    assert!(
        refused.contains("in use by a writer") && refused.contains("no log"),
        "{refused}"
    );
    beside(&store, false, |busy| {
        await_moves(busy, 500);
        match read_all(&before) {
            Ok(moves) => assert_eq!(moves, 0),
            Err(error) => assert!(matches!(error, Error::ReaderOverrun { .. }), "{error}"),
        }
    });
    store.close().unwrap();
    let after = Store::open(&path, &reading()).unwrap();
    assert!(read_all(&after).unwrap() >= 500);
}

#[test]
fn a_backup_beside_a_writer_is_whole_and_no_base() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let mut watch = |_: &str, _, _| std::ops::ControlFlow::Continue(());
    accounts(&at("s.iso"), &options());
    let store = Store::open(at("s.iso"), &options()).unwrap();
    store
        .backup(&at("base"), &BackupOptions::new(), &mut watch)
        .unwrap();
    beside(&store, true, |busy| {
        await_moves(busy, 300);
        let acknowledged = busy.moves.load(Ordering::SeqCst);
        let reader = Store::open(at("s.iso"), &reading()).unwrap();
        reader
            .backup(&at("full"), &BackupOptions::new(), &mut watch)
            .unwrap();
        let since = |base: &str| BackupOptions::new().since(at(base));
        let refused = reader.backup(&at("x"), &since("base"), &mut watch);
        assert!(
            matches!(refused, Err(BackupError::BackupChain { .. })),
            "{refused:?}"
        );
        let refused = store.backup(&at("x"), &since("full"), &mut watch);
        assert!(
            matches!(refused, Err(BackupError::BackupChain { .. })),
            "{refused:?}"
        );
        reader.close().unwrap();
        Store::restore(&[at("full")], &[at("r.iso")], &options(), &mut watch).unwrap();
        let restored = Store::open(at("r.iso"), &options()).unwrap();
        assert!(read_all(&restored).unwrap() >= acknowledged);
        assert_sound(&restored, None);
        restored.close().unwrap();
    });
    store.close().unwrap();
}

#[test]
fn the_log_on_a_device_of_its_own_is_read_too() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("s.iso");
    let logged = options().log_path(place.path().join("s.log"));
    accounts(&path, &logged);
    let store = Store::open(&path, &options()).unwrap();
    beside(&store, true, |busy| {
        await_moves(busy, 50);
        for _ in 0..5 {
            let acknowledged = busy.moves.load(Ordering::SeqCst);
            let reader = Store::open(&path, &reading()).unwrap();
            assert!(read_all(&reader).unwrap() >= acknowledged);
        }
    });
    store.close().unwrap();
}
