//! Trees go in and come out the same.

#![allow(clippy::unwrap_used)]

mod common;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use common::{dump, sound};
use isobath::{Options, Store};
use isobath_files::{FileTree, FilesError, ImportOptions, PIECE_BYTES, Watcher};
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};

fn store() -> Store {
    Store::in_memory(&Options::new().pool_bytes(16 << 20).workers(1)).unwrap()
}

fn set_time(path: &Path, seconds: i64, nanoseconds: i64) {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// A tree of many kinds.
fn make(root: &Path) {
    let mut random = fastrand::Rng::with_seed(1);
    let mut noise = |length: usize| -> Vec<u8> { (0..length).map(|_| random.u8(..)).collect() };
    fs::create_dir_all(root.join("dir/inner")).unwrap();
    fs::create_dir(root.join("empty dir")).unwrap();
    for (name, length) in [
        ("empty", 0),
        ("one", 1),
        ("page", 4096),
        ("piece", PIECE_BYTES),
        ("more", PIECE_BYTES + 1),
        ("large", 18 * PIECE_BYTES + 5),
    ] {
        fs::write(root.join("dir").join(name), noise(length)).unwrap();
    }
    for n in 0..300 {
        fs::write(root.join(format!("dir/inner/{n}")), noise(n * 3)).unwrap();
    }
    let odd: [&[u8]; 4] = [b"\xff\xfe not utf-8", b"new\nline", b" ", &[b'n'; 255]];
    for name in odd {
        fs::write(root.join(OsStr::from_bytes(name)), name).unwrap();
    }
    fs::hard_link(root.join("dir/one"), root.join("second name")).unwrap();
    fs::hard_link(root.join("dir/large"), root.join("dir/inner/large")).unwrap();
    symlink("dir/one", root.join("link")).unwrap();
    symlink("/nowhere/\u{e9}", root.join("dangling")).unwrap();
    symlink("..", root.join("dir/up")).unwrap();
    fs::hard_link(root.join("link"), root.join("dir/link too")).unwrap();
    // 3 GiB and some, nearly all of it a hole: at the beginning, between, at the end.
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"middle", 1 << 30).unwrap();
    sparse.write_all_at(&[7; 5000], (2 << 30) + 123).unwrap();
    sparse.set_len(3 << 30).unwrap();
    for (name, mode) in [
        ("dir/one", 0o4755),
        ("dir/page", 0o000),
        ("dir/inner", 0o1700),
    ] {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for (name, seconds, nanoseconds) in [
        ("link", 1, 2),
        ("dir/empty", -86_400, 999_999_999),
        ("dir/inner", 1_234_567_890, 7),
        ("dir", 4_000_000_000, 0),
        ("", 5, 6),
    ] {
        set_time(&root.join(name), seconds, nanoseconds);
    }
}

/// What a path has: mode, time, names, size, contents or target, and which other paths are the same
/// file.
type Seen = (u32, i64, i64, u64, u64, Vec<u8>, PathBuf);

fn seen(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut all = BTreeMap::new();
    let mut first: HashMap<u64, PathBuf> = HashMap::new();
    let mut open = vec![PathBuf::new()];
    while let Some(path) = open.pop() {
        let full = root.join(&path);
        let found = fs::symlink_metadata(&full).unwrap();
        let (mut bytes, mut links, mut size) = (Vec::new(), found.nlink(), found.len());
        if found.is_dir() {
            (links, size) = (1, 0);
            let mut names: Vec<_> = fs::read_dir(&full).unwrap().map(|e| e.unwrap()).collect();
            names.sort_by_key(|entry| std::cmp::Reverse(entry.file_name()));
            open.extend(names.iter().map(|entry| path.join(entry.file_name())));
        } else if found.is_symlink() {
            bytes = fs::read_link(&full)
                .unwrap()
                .as_os_str()
                .as_bytes()
                .to_vec();
        } else if size < 1 << 30 {
            bytes = fs::read(&full).unwrap();
        } else {
            let file = fs::File::open(&full).unwrap();
            bytes.resize(1 << 20, 0);
            file.read_exact_at(&mut bytes[..1 << 19], (1 << 30) - 99)
                .unwrap();
            file.read_exact_at(&mut bytes[1 << 19..], 2 << 30).unwrap();
            assert!(found.blocks() * 512 < 16 << 20, "{} blocks", found.blocks());
        }
        let same = first
            .entry(found.ino())
            .or_insert_with(|| path.clone())
            .clone();
        let times = (found.mtime(), found.mtime_nsec());
        let seen = (found.mode(), times.0, times.1, links, size, bytes, same);
        all.insert(path, seen);
    }
    all
}

#[test]
fn what_goes_in_comes_out() {
    let place = tempfile::tempdir().unwrap();
    let (root, out) = (place.path().join("in"), place.path().join("out"));
    make(&root);
    let store = store();
    let files = FileTree::open_or_create(&store, "files").unwrap();
    let imported = files
        .import(&root, "/", ImportOptions::default(), &())
        .unwrap();
    assert_eq!((imported.directories, imported.hard_links), (4, 3));
    assert_eq!((imported.files, imported.symlinks), (6 + 300 + 4 + 1, 3));
    sound(&files);
    let view = files.view().unwrap();
    let exported = view.export("/", &out, &()).unwrap();
    assert_eq!(exported.bytes, imported.bytes);
    assert_eq!(exported.files, imported.files);
    assert_eq!(exported.hard_links, imported.hard_links);
    let (expected, found) = (seen(&root), seen(&out));
    assert!(expected.keys().eq(found.keys()));
    for (path, expected) in &expected {
        assert!(expected == &found[path], "{}", path.display());
    }

    // Parts of it, single files, and not over existing entries.
    let one = place.path().join("single");
    view.export("dir/large", &one, &()).unwrap();
    assert_eq!(
        fs::read(&one).unwrap(),
        fs::read(root.join("dir/large")).unwrap()
    );
    let again = view.export("dir", &out, &()).unwrap_err();
    assert!(matches!(again, FilesError::Refused { .. }), "{again}");
    let again = files.import(&root, "/", ImportOptions::default(), &());
    assert!(matches!(again, Err(FilesError::Exists { .. })), "{again:?}");
    let replace = ImportOptions {
        replace: true,
        ..ImportOptions::default()
    };
    files.import(&one, "dir", replace, &()).unwrap();
    files
        .import(&root.join("dir"), "more", replace, &())
        .unwrap();
    files.import(&root.join("dir"), "/", replace, &()).unwrap();
    assert!(files.view().unwrap().stat("dangling").is_err());
    sound(&files);
}

/// Deeper than a path may be long, and than a process may have files open.
#[test]
fn depth_has_no_limit() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("deep");
    fs::create_dir(&root).unwrap();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut at = rustix::fs::open(&root, flags, Mode::empty()).unwrap();
    let name = "a long name of a directory";
    for _ in 0..1500 {
        rustix::fs::mkdirat(&at, name, Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, name, flags, Mode::empty()).unwrap();
    }
    let create = OFlags::WRONLY | OFlags::CREATE;
    let file = rustix::fs::openat(&at, "file", create, Mode::RUSR | Mode::WUSR).unwrap();
    rustix::io::write(&file, b"down here").unwrap();
    rustix::fs::linkat(&at, "file", &at, "link", AtFlags::empty()).unwrap();
    let store = store();
    let files = FileTree::open_or_create(&store, "files").unwrap();
    let options = ImportOptions::default();
    files.import(&root, "deep", options, &()).unwrap();
    let path = format!("deep/{}file", format!("{name}/").repeat(1500));
    assert_eq!(files.view().unwrap().read(&path).unwrap(), b"down here");
    let out = place.path().join("out");
    files.view().unwrap().export("deep", &out, &()).unwrap();
    let other = FileTree::open_or_create(&store, "other").unwrap();
    other.import(&out, "deep", options, &()).unwrap();
    assert!(dump(&files.view().unwrap()) == dump(&other.view().unwrap()));
    files.remove_all("deep").unwrap();
    sound(&files);
    // The library removes directories with a descriptor for each level.
    let removed = std::process::Command::new("rm")
        .arg("-rf")
        .args([&root, &out])
        .status();
    assert!(removed.unwrap().success());
}

/// Stops after some entries.
struct Stops(Cell<u64>);

impl Watcher for Stops {
    fn advance(&self, entries: u64, _: u64) {
        self.0.set(self.0.get().saturating_sub(entries));
    }

    fn cancelled(&self) -> bool {
        self.0.get() == 0
    }
}

#[test]
fn what_is_stopped_or_refused_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("in");
    make(&root);
    let store = store();
    let files = FileTree::open_or_create(&store, "files").unwrap();
    let options = ImportOptions::default();
    let before = store.tree("files").unwrap().range(..).count();
    let stopped = files.import(&root, "x", options, &Stops(Cell::new(150)));
    assert!(
        matches!(stopped, Err(FilesError::Interrupted)),
        "{stopped:?}"
    );
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("dir/pipe"),
        rustix::fs::FileType::Fifo,
        Mode::RUSR,
        0,
    )
    .unwrap();
    let refused = files.import(&root, "x", options, &()).unwrap_err();
    assert!(refused.to_string().contains("pipe"), "{refused}");
    let missing = files.import(&place.path().join("no"), "x", options, &());
    assert!(
        matches!(missing, Err(FilesError::Host { .. })),
        "{missing:?}"
    );
    let nowhere = files.import(&root, "no/x", options, &());
    assert!(
        matches!(nowhere, Err(FilesError::NotFound { .. })),
        "{nowhere:?}"
    );
    assert_eq!(store.tree("files").unwrap().range(..).count(), before);
    sound(&files);

    let skips = ImportOptions {
        skip_special: true,
        ..options
    };
    let imported = files.import(&root, "x", skips, &()).unwrap();
    assert_eq!(imported.skipped, 1);
    let out = place.path().join("out");
    let view = files.view().unwrap();
    let stopped = view.export("x", &out, &Stops(Cell::new(150)));
    assert!(
        matches!(stopped, Err(FilesError::Interrupted)),
        "{stopped:?}"
    );
    let names: Vec<_> = fs::read_dir(place.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");

    // A store is no file to import into itself.
    let path = root.join("store.iso");
    let own = Store::create(&path, &common::small()).unwrap();
    let own_files = FileTree::open_or_create(&own, "files").unwrap();
    let refused = own_files.import(&root, "x", skips, &()).unwrap_err();
    assert!(refused.to_string().contains("store.iso"), "{refused}");
}

/// Exports another tree in the middle of an export.
struct Beside<'b> {
    entries: Cell<u64>,
    export: &'b dyn Fn(),
}

impl Watcher for Beside<'_> {
    fn advance(&self, entries: u64, _: u64) {
        self.entries.set(self.entries.get() + entries);
        if self.entries.get() == 5 && entries > 0 {
            (self.export)();
        }
    }

    fn cancelled(&self) -> bool {
        false
    }
}

#[test]
fn exports_to_the_same_directory_keep_apart() {
    let place = tempfile::tempdir().unwrap();
    let store = store();
    let files = FileTree::open_or_create(&store, "files").unwrap();
    for directory in ["one", "two"] {
        let attributes = common::attributes(0o755);
        files.create_directory(directory, &attributes).unwrap();
        for n in 0..10 {
            let path = format!("{directory}/{n}");
            files
                .write(path, directory.as_bytes(), &attributes)
                .unwrap();
        }
    }
    let view = files.view().unwrap();
    let two = || {
        view.export("two", &place.path().join("two"), &()).unwrap();
    };
    let watcher = Beside {
        entries: Cell::new(0),
        export: &two,
    };
    let copied = view.export("one", &place.path().join("one"), &watcher);
    assert_eq!(copied.unwrap().files, 10);
    for directory in ["one", "two"] {
        let found: Vec<_> = fs::read_dir(place.path().join(directory))
            .unwrap()
            .collect();
        assert_eq!(found.len(), 10, "{directory}");
        for entry in found {
            assert_eq!(
                fs::read_to_string(entry.unwrap().path()).unwrap(),
                directory
            );
        }
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
}
