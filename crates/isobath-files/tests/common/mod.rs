//! What several test programs share.

#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;

use isobath::Options;
use isobath_files::{Attributes, FileKind, FileTime, FileTree, FileView};

/// A small store.
pub(crate) fn small() -> Options {
    Options::new()
        .pool_bytes(4 << 20)
        .workers(1)
        .tasks_per_worker(8)
        .depth_per_worker(16)
        .segment_bytes(64 << 10)
        .log_bytes(4 << 20)
}

pub(crate) fn attributes(mode: u32) -> Attributes {
    Attributes {
        mode,
        uid: 1,
        gid: 2,
        mtime: FileTime {
            seconds: 1_000_000_000,
            nanoseconds: 5,
        },
    }
}

/// What a path is: kind, mode, names, size, checksum, link target.
pub(crate) type Seen = (FileKind, u32, u32, u64, u32, Vec<u8>);

/// Everything in a tree, by path. Contents are read and verified.
pub(crate) fn dump(view: &FileView) -> BTreeMap<Vec<u8>, Seen> {
    let mut all = BTreeMap::new();
    for item in view.walk("/").unwrap() {
        let (path, stat) = item.unwrap();
        let mut target = Vec::new();
        match stat.kind {
            FileKind::File => {
                let mut reader = view.open_inode(stat.inode, &path).unwrap();
                while reader.next_span().unwrap().is_some() {}
            }
            FileKind::Symlink => target = view.read_link(&path).unwrap(),
            FileKind::Directory => {}
        }
        let mode = stat.attributes.mode;
        let seen = (stat.kind, mode, stat.links, stat.size, stat.crc, target);
        all.insert(path, seen);
    }
    all
}

/// Names and inodes agree, contents are those that were stored, and nothing is there beside.
pub(crate) fn sound(files: &FileTree) {
    let report = files.view().unwrap().check(&()).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(report.unfinished, 0);
}
