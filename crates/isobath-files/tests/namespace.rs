//! What each operation does, and refuses.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Seek, SeekFrom};

use isobath::{Options, Store};
use isobath_files::{
    Attributes, FileKind, FileTime, FileTree, FilesError, MAX_FILE_BYTES, PIECE_BYTES, RenameMode,
    Span,
};

fn store() -> Store {
    Store::in_memory(&Options::new().pool_bytes(16 << 20).workers(1)).unwrap()
}

fn tree() -> (Store, FileTree) {
    let store = store();
    let files = FileTree::open_or_create(&store, "files").unwrap();
    (store, files)
}

fn sound(files: &FileTree) {
    let report = files.view().unwrap().check(&()).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(report.unfinished, 0);
}

fn put(files: &FileTree, path: &str, contents: &[u8]) {
    files.write(path, contents, &Attributes::file()).unwrap();
}

fn mkdir(files: &FileTree, path: &str) {
    files
        .create_directory(path, &Attributes::directory())
        .unwrap();
}

fn read(files: &FileTree, path: &str) -> Vec<u8> {
    files.view().unwrap().read(path).unwrap()
}

/// Bytes that differ everywhere.
fn noise(length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(length as u64);
    (0..length).map(|_| random.u8(..)).collect()
}

/// Keys of the tree whose first byte is `tag`.
fn records(store: &Store, tag: u8) -> usize {
    let tree = store.tree("files").unwrap();
    tree.prefix([tag]).count()
}

macro_rules! fails {
    ($call:expr, $variant:pat) => {
        match $call {
            Err($variant) => {}
            other => panic!("{other:?}"),
        }
    };
}

#[test]
fn files_have_contents_attributes_and_names() {
    let (_store, files) = tree();
    mkdir(&files, "/a");
    let attributes = Attributes {
        mode: 0o4711,
        uid: 7,
        gid: 8,
        mtime: FileTime {
            seconds: -5,
            nanoseconds: 999_999_999,
        },
    };
    files.write("a/f", b"contents", &attributes).unwrap();
    let view = files.view().unwrap();
    let stat = view.stat("//a/./f").unwrap();
    assert_eq!(stat.attributes, attributes);
    assert_eq!((stat.kind, stat.size, stat.links), (FileKind::File, 8, 1));
    assert_eq!(stat.crc, crc32c::crc32c(b"contents"));
    assert_eq!(view.read("/a/f").unwrap(), b"contents");
    files
        .set_attributes("a", |attributes| attributes.mode = 0o1777)
        .unwrap();
    // The view is as it was.
    assert_eq!(view.stat("a").unwrap().attributes.mode, 0o755);
    assert_eq!(
        files.view().unwrap().stat("a").unwrap().attributes.mode,
        0o1777
    );
    sound(&files);
}

#[test]
fn contents_of_any_length_are_read_at_any_offset() {
    let (_store, files) = tree();
    for length in [
        0,
        1,
        900,
        5000,
        PIECE_BYTES - 1,
        PIECE_BYTES,
        PIECE_BYTES + 1,
        5 * PIECE_BYTES,
        21 * PIECE_BYTES + 77,
    ] {
        let contents = noise(length);
        put(&files, "f", &contents);
        let view = files.view().unwrap();
        assert_eq!(view.read("f").unwrap(), contents, "{length}");
        let mut reader = view.open("f").unwrap();
        let mut buffer = vec![0; 70_000];
        let starts = [length / 3, length.saturating_sub(5), length, length + 9, 0];
        for start in starts {
            let count = reader.read_at(start as u64, &mut buffer).unwrap();
            let expected = contents.get(start..).unwrap_or_default();
            let expected = &expected[..expected.len().min(buffer.len())];
            assert_eq!(&buffer[..count], expected, "{length} from {start}");
        }
        let mut all = Vec::new();
        reader.seek(SeekFrom::Start(0)).unwrap();
        reader.read_to_end(&mut all).unwrap();
        assert_eq!(all, contents);
    }
    sound(&files);
}

#[test]
fn holes_take_no_space() {
    let (store, files) = tree();
    let mut writer = files.writer("endless", &Attributes::file()).unwrap();
    writer.append_hole(MAX_FILE_BYTES).unwrap();
    writer.finish().unwrap();
    fails!(
        files.view().unwrap().read("endless"),
        FilesError::OutOfMemory { .. }
    );
    files.remove("endless").unwrap();
    let mut writer = files.writer("sparse", &Attributes::file()).unwrap();
    writer.append_hole(1 << 40).unwrap();
    writer.append(b"island").unwrap();
    writer.append_hole(10).unwrap();
    writer.append_hole(3 << 30).unwrap();
    fails!(
        writer.append_hole(MAX_FILE_BYTES),
        FilesError::TooLarge { .. }
    );
    let stat = writer.finish().unwrap();
    assert_eq!(stat.size, (1 << 40) + 6 + 10 + (3 << 30));
    let view = files.view().unwrap();
    let mut reader = view.open("sparse").unwrap();
    let mut bytes = [9; 20];
    assert_eq!(reader.read_at((1 << 40) - 4, &mut bytes).unwrap(), 20);
    assert_eq!(&bytes, b"\0\0\0\0island\0\0\0\0\0\0\0\0\0\0");
    let mut spans = Vec::new();
    while let Some(span) = reader.next_span().unwrap() {
        spans.push(match span {
            Span::Bytes(bytes) => bytes.len() as u64,
            Span::Hole(bytes) => bytes,
        });
    }
    assert_eq!(spans, [1 << 40, 16, 3 << 30]);
    assert_eq!(records(&store, b'c'), 1);
    sound(&files);
    files.remove("sparse").unwrap();
    assert_eq!(records(&store, b'm') + records(&store, b'c'), 0);
}

#[test]
fn storing_again_replaces_contents_under_all_names() {
    let (store, files) = tree();
    put(&files, "a", &noise(3 * PIECE_BYTES));
    files.link("a", "b").unwrap();
    let before = files.view().unwrap();
    put(&files, "b", b"short");
    assert_eq!(read(&files, "a"), b"short");
    assert_eq!(before.read("a").unwrap(), noise(3 * PIECE_BYTES));
    assert_eq!(
        before.stat("a").unwrap().inode,
        files.view().unwrap().stat("b").unwrap().inode
    );
    put(&files, "a", b"");
    assert_eq!(records(&store, b'c') + records(&store, b'm'), 0);
    drop(before);
    sound(&files);
}

#[test]
fn a_writer_that_is_dropped_leaves_nothing() {
    let (store, files) = tree();
    put(&files, "f", b"old");
    let mut writer = files.writer("f", &Attributes::file()).unwrap();
    writer.append(&noise(40 * PIECE_BYTES)).unwrap();
    assert!(records(&store, b'c') > 16);
    // Another handle leaves it alone.
    let other = FileTree::open(&store, "files").unwrap();
    assert_eq!(records(&store, b'p'), 1);
    drop(writer);
    assert_eq!(read(&other, "f"), b"old");
    assert_eq!(records(&store, b'c'), 1);
    sound(&files);
}

#[test]
fn hard_links_count() {
    let (store, files) = tree();
    mkdir(&files, "d");
    put(&files, "f", b"x");
    files.link("f", "d/g").unwrap();
    files
        .create_link("l", "../anywhere", &Attributes::file())
        .unwrap();
    files.link("l", "d/m").unwrap();
    assert_eq!(files.view().unwrap().stat("l").unwrap().links, 2);
    fails!(files.link("d", "e"), FilesError::IsADirectory { .. });
    fails!(files.link("f", "d/g"), FilesError::Exists { .. });
    fails!(files.link("none", "e"), FilesError::NotFound { .. });
    // Renaming one name of a file to another one of it does nothing.
    files.rename("f", "d/g").unwrap();
    assert_eq!(files.view().unwrap().stat("f").unwrap().links, 2);
    files.remove("f").unwrap();
    assert_eq!(files.view().unwrap().stat("d/g").unwrap().links, 1);
    assert_eq!(read(&files, "d/g"), b"x");
    assert_eq!(
        files.view().unwrap().read_link("d/m").unwrap(),
        b"../anywhere"
    );
    files.remove("d/g").unwrap();
    assert_eq!(records(&store, b'c'), 0);
    sound(&files);
}

#[test]
fn directories_move_in_one_step_however_much_is_below() {
    let (store, files) = tree();
    mkdir(&files, "a");
    mkdir(&files, "a/b");
    for n in 0..300 {
        put(&files, &format!("a/b/{n}"), b"x");
    }
    mkdir(&files, "c");
    let before = store.stats().user_bytes_written;
    files.rename("a/b", "c/z").unwrap();
    let written = store.stats().user_bytes_written - before;
    assert!(written < 300, "{written} bytes were changed");
    assert_eq!(files.view().unwrap().list("c/z").unwrap().len(), 300);
    assert!(files.view().unwrap().list("a").unwrap().is_empty());
    fails!(
        files.rename("c", "c/z/deeper"),
        FilesError::IntoItself { .. }
    );
    fails!(files.rename("c", "c/z"), FilesError::IntoItself { .. });
    files.rename("c", "c").unwrap();
    sound(&files);
}

#[test]
fn renames_replace_what_rename_replaces() {
    let (_store, files) = tree();
    mkdir(&files, "d");
    mkdir(&files, "empty");
    put(&files, "d/f", b"1");
    put(&files, "g", b"2");
    fails!(files.rename("g", "d"), FilesError::IsADirectory { .. });
    fails!(files.rename("d", "g"), FilesError::NotADirectory { .. });
    fails!(files.rename("empty", "d"), FilesError::NotEmpty { .. });
    fails!(files.rename("d/f", "d"), FilesError::IsADirectory { .. });
    fails!(files.rename("no", "g"), FilesError::NotFound { .. });
    fails!(files.rename("g", "no/x"), FilesError::NotFound { .. });
    fails!(files.rename("g", "d/f/x"), FilesError::NotADirectory { .. });
    fails!(files.rename("/", "x"), FilesError::BadName { .. });
    fails!(
        files.rename_with("g", "d/f", RenameMode::NoReplace),
        FilesError::Exists { .. }
    );
    files.rename("g", "d/f").unwrap();
    assert_eq!(read(&files, "d/f"), b"2");
    files.rename("d", "empty").unwrap();
    assert_eq!(read(&files, "empty/f"), b"2");
    sound(&files);
}

#[test]
fn removing_asks_for_what_is_removed() {
    let (store, files) = tree();
    mkdir(&files, "d");
    mkdir(&files, "d/e");
    put(&files, "d/e/f", &noise(2 * PIECE_BYTES));
    put(&files, "kept", b"kept");
    files.link("kept", "d/e/kept").unwrap();
    fails!(files.remove("d"), FilesError::IsADirectory { .. });
    fails!(files.remove_directory("d"), FilesError::NotEmpty { .. });
    fails!(
        files.remove_directory("kept"),
        FilesError::NotADirectory { .. }
    );
    fails!(files.remove("x"), FilesError::NotFound { .. });
    fails!(files.remove_all("/"), FilesError::BadName { .. });
    fails!(files.remove("d/.."), FilesError::BadName { .. });
    let view = files.view().unwrap();
    files.remove_all("d").unwrap();
    assert_eq!(view.read("d/e/f").unwrap(), noise(2 * PIECE_BYTES));
    assert_eq!(files.view().unwrap().stat("kept").unwrap().links, 1);
    assert_eq!((records(&store, b'i'), records(&store, b'n')), (2, 2));
    drop(view);
    sound(&files);
}

#[test]
fn names_are_any_bytes_of_a_file_system() {
    let (_store, files) = tree();
    let odd: [&[u8]; 5] = [
        b"\xff\xfe",
        b"a\nb",
        b" ",
        &[b'x'; 255],
        "\u{1f41f}".as_bytes(),
    ];
    for name in odd {
        files.write(name, name, &Attributes::file()).unwrap();
        assert_eq!(files.view().unwrap().read(name).unwrap(), name);
    }
    let mut expected: Vec<Vec<u8>> = odd.iter().map(|name| name.to_vec()).collect();
    expected.sort();
    let entries = files.view().unwrap().list("/").unwrap();
    let listed: Vec<Vec<u8>> = entries.into_iter().map(|entry| entry.name).collect();
    assert_eq!(listed, expected);
    for bad in [&b"a\0"[..], b"..", &[b'x'; 256]] {
        fails!(
            files.write(bad, b"", &Attributes::file()),
            FilesError::BadName { .. }
        );
    }
    let link = |target: &[u8]| files.create_link("l", target, &Attributes::file());
    fails!(link(b""), FilesError::BadName { .. });
    fails!(link(&[b'x'; 4096]), FilesError::BadName { .. });
    link(&[b'x'; 4095]).unwrap();
    fails!(
        files.write("l", b"", &Attributes::file()),
        FilesError::NotAFile { .. }
    );
    fails!(files.view().unwrap().open("l"), FilesError::NotAFile { .. });
    fails!(
        files.view().unwrap().read_link("/"),
        FilesError::NotALink { .. }
    );
    fails!(
        files.write("/", b"", &Attributes::file()),
        FilesError::IsADirectory { .. }
    );
    sound(&files);
}

/// Bytes that changed in the store are found by each read of the piece that they are in, and by no
/// other.
#[test]
fn each_read_verifies_what_it_reads() {
    let (store, files) = tree();
    put(&files, "large", &noise(3 * PIECE_BYTES));
    put(&files, "small", b"small");
    let tree = store.tree("files").unwrap();
    let pieces: Vec<_> = tree.prefix(b"c").map(Result::unwrap).collect();
    let (key, mut bytes) = pieces[1].clone();
    bytes[17] ^= 1;
    tree.insert(&key, &bytes).unwrap();
    let view = files.view().unwrap();
    let mut reader = view.open("large").unwrap();
    let mut buffer = [0; 100];
    assert_eq!(reader.read_at(0, &mut buffer).unwrap(), 100);
    assert_eq!(
        reader.read_at(2 * PIECE_BYTES as u64, &mut buffer).unwrap(),
        100
    );
    let error = reader
        .read_at(PIECE_BYTES as u64 + 5000, &mut buffer)
        .unwrap_err();
    assert!(error.to_string().contains("large"), "{error}");
    fails!(
        Err::<(), _>(error),
        FilesError::Checksum {
            offset: 262_144,
            ..
        }
    );
    fails!(view.read("large"), FilesError::Checksum { .. });
    assert_eq!(view.read("small").unwrap(), b"small");
    let report = view.check(&()).unwrap();
    assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
    drop(reader);

    // A piece that was exchanged for another file's, a missing one, a lost inode.
    let (key, _) = &pieces[3];
    tree.insert(key, b"mmall").unwrap();
    fails!(
        files.view().unwrap().read("small"),
        FilesError::Checksum { .. }
    );
    tree.remove(key).unwrap();
    let missing = files.view().unwrap().read("small").unwrap_err();
    assert!(missing.to_string().contains("small"), "{missing}");
    let inodes: Vec<_> = tree.prefix(b"i").map(Result::unwrap).collect();
    tree.remove(&inodes[2].0).unwrap();
    let report = files.view().unwrap().check(&()).unwrap();
    assert!(report.problems.len() >= 2, "{:?}", report.problems);
}

#[test]
fn trees_that_hold_something_else_are_refused() {
    let store = store();
    let tree = store.create_tree("other").unwrap();
    tree.insert("key", "value").unwrap();
    fails!(
        FileTree::open_or_create(&store, "other"),
        FilesError::NotFiles { .. }
    );
    fails!(FileTree::open(&store, "other"), FilesError::NotFiles { .. });
    fails!(
        FileTree::open(&store, "none"),
        FilesError::Engine(isobath::Error::NoSuchTree { .. })
    );
    let newer = store.create_tree("newer").unwrap();
    let header = [b"ISOFILES".as_slice(), &[2, 0, 0, 0], &[0; 12]].concat();
    newer.insert("H", header).unwrap();
    let refused = FileTree::open_or_create(&store, "newer");
    fails!(refused, FilesError::NewerFormat { found: 2, .. });
}

#[test]
fn records_that_are_none_are_found() {
    let (store, files) = tree();
    put(&files, "file", b"file");
    sound(&files);
    let tree = store.tree("files").unwrap();
    for key in [
        &b"A"[..],
        b"Hx",
        b"b",
        b"c",
        b"ishort",
        b"kk",
        b"nnn",
        b"o",
        b"pp",
        b"zebra",
    ] {
        tree.insert(key, "value").unwrap();
        let report = files.view().unwrap().check(&()).unwrap();
        assert_eq!(report.problems.len(), 1, "{key:?}: {:?}", report.problems);
        tree.remove(key).unwrap();
    }
    // Numbers that would be given out once more.
    let header = tree.get("H").unwrap().unwrap();
    let mut early = header.clone();
    early[16..].copy_from_slice(&2u64.to_le_bytes());
    tree.insert("H", early).unwrap();
    let report = files.view().unwrap().check(&()).unwrap();
    assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
    tree.remove("H").unwrap();
    let report = files.view().unwrap().check(&()).unwrap();
    assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
    tree.insert("H", header).unwrap();
    sound(&files);
    // A name that leads somewhere else where it is taken for a path.
    let (root, entry) = tree.prefix(b"n").nth(1).unwrap().unwrap();
    let name = [&root[..9], b"../elsewhere"].concat();
    tree.insert(name, entry).unwrap();
    let view = files.view().unwrap();
    assert!(!view.check(&()).unwrap().problems.is_empty());
    let walked: Result<Vec<_>, _> = view.walk("/").unwrap().collect();
    fails!(walked, FilesError::Corrupt { .. });
    let to = tempfile::tempdir().unwrap();
    fails!(
        view.export("/", &to.path().join("to"), &()),
        FilesError::Corrupt { .. }
    );
}

/// Threads that make, move and remove in the same directories leave a tree that is whole.
#[test]
fn threads_work_side_by_side() {
    let (_store, files) = tree();
    for name in ["a", "b", "c"] {
        mkdir(&files, name);
    }
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let files = files.clone();
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut path = || {
                    let mut path = String::new();
                    for _ in 0..random.usize(1..4) {
                        path += ["/a", "/b", "/c"][random.usize(..3)];
                    }
                    (path, random.u8(..6))
                };
                for _ in 0..150 {
                    let ((one, what), (two, _)) = (path(), path());
                    // Refused or not, names and inodes have to agree in the end.
                    let _ = match what {
                        0 => files.create_directory(&one, &Attributes::directory()),
                        1 => files.write(&one, one.as_bytes(), &Attributes::file()),
                        2 => files.link(&one, &two),
                        3 => files.remove_all(&one),
                        _ => files.rename(&one, &two),
                    };
                }
            });
        }
    });
    sound(&files);
}
