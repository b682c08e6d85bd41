//! Verifies a whole tree: names against inodes, inodes against contents, contents against
//! checksums.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Bound, Range};

use isobath::KeyRange;

use crate::content::{joined, of_zeros};
use crate::layout::{
    ABOVE_ROOT, CONTENT, FileKind, HEADER, Header, INODE, Inode, MAP, NAME, Named, PENDING,
    ParsedKey, Pending, Stretch, TAGS, map_prefix,
};
use crate::{FileView, FilesError, Watcher};

/// Problems that a report lists; more are counted.
pub const MAX_PROBLEMS: usize = 100;

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FilesReport {
    /// Directories, the root included.
    pub directories: u64,
    /// Regular files; one with several names counts once.
    pub files: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Names of all of them.
    pub names: u64,
    /// Bytes of contents that were read and verified.
    pub bytes_verified: u64,
    /// Entries that are being made or freed, or were at a crash.
    pub unfinished: u64,
    /// Problems, a sentence each.
    pub problems: Vec<String>,
    /// Problems that are not listed.
    pub more_problems: u64,
}

/// All keys that begin with a byte.
fn keys_of(tag: u8) -> Range<Vec<u8>> {
    vec![tag]..vec![tag + 1]
}

/// An inode as the check sees it.
struct Node {
    inode: Inode,
    names: u32,
}

/// Offset, bytes and checksum of a piece.
type Piece = (u64, u64, u32);

struct Check<'w> {
    view: FileView,
    watcher: &'w dyn Watcher,
    report: FilesReport,
    nodes: BTreeMap<u64, Node>,
    pending: BTreeMap<u64, Pending>,
    /// Which inode has these contents.
    owners: BTreeMap<u64, u64>,
    /// Directories in each directory.
    below: HashMap<u64, Vec<u64>>,
}

impl FileView {
    /// Reads the whole tree and verifies it: each name has an inode, each inode as many names as it
    /// says, each directory leads to the root, all contents are there with the checksums that they
    /// were stored with, and nothing is there beside. The memory is about 200 bytes for
    /// each inode.
    ///
    /// # Errors
    ///
    /// [`FilesError::Interrupted`] if the watcher says so, or a failure of the engine. What is
    /// found is no error.
    pub fn check(&self, watcher: &dyn Watcher) -> Result<FilesReport, FilesError> {
        let mut check = Check {
            view: self.clone(),
            watcher,
            report: FilesReport::default(),
            nodes: BTreeMap::new(),
            pending: BTreeMap::new(),
            owners: BTreeMap::new(),
            below: HashMap::new(),
        };
        check.read_strangers()?;
        check.read_pending()?;
        check.read_inodes()?;
        check.read_header()?;
        check.read_names()?;
        check.judge_links();
        check.judge_directories();
        check.read_maps()?;
        check.read_pieces()?;
        Ok(check.report)
    }
}

impl Check<'_> {
    fn problem(&mut self, text: String) {
        match self.report.problems.len() < MAX_PROBLEMS {
            true => self.report.problems.push(text),
            false => self.report.more_problems += 1,
        }
    }

    /// Calls `visit` with the records of a range of keys.
    fn each(
        &mut self,
        keys: impl KeyRange,
        mut visit: impl FnMut(&mut Self, &[u8], &[u8]) -> Result<(), FilesError>,
    ) -> Result<(), FilesError> {
        let view = self.view.clone();
        let records = view.records();
        for record in records.transaction.range(records.tree, keys)? {
            if self.watcher.cancelled() {
                return Err(FilesError::Interrupted);
            }
            let (key, value) = record?;
            visit(self, &key, &value)?;
        }
        Ok(())
    }

    /// Nothing but records of files is in the tree.
    fn read_strangers(&mut self) -> Result<(), FilesError> {
        let mut lower = Bound::Unbounded;
        for tag in TAGS {
            self.strangers(lower, Bound::Excluded(vec![tag]))?;
            lower = Bound::Included(vec![tag + 1]);
        }
        self.strangers(lower, Bound::Unbounded)
    }

    fn strangers(
        &mut self,
        lower: Bound<Vec<u8>>,
        upper: Bound<Vec<u8>>,
    ) -> Result<(), FilesError> {
        self.each((lower, upper), |check, key, _| {
            let shown = String::from_utf8_lossy(key).into_owned();
            check.problem(format!("the key {shown:?} is none of files"));
            Ok(())
        })
    }

    /// The header is there, and no number is in use that would be given out again.
    fn read_header(&mut self) -> Result<(), FilesError> {
        let mut next = None;
        self.each(keys_of(HEADER), |check, key, value| {
            match (ParsedKey::of(key), Header::decode(value)) {
                (Some(ParsedKey::Header), Some(Ok(header))) => next = Some(header.next),
                _ => check.problem("the header is malformed".into()),
            }
            Ok(())
        })?;
        let Some(next) = next else {
            self.problem("the header is missing".into());
            return Ok(());
        };
        let last = [
            self.nodes.last_key_value().map(|(number, _)| *number),
            self.owners.last_key_value().map(|(number, _)| *number),
            self.pending.last_key_value().map(|(number, _)| *number),
        ];
        if let Some(last) = last
            .into_iter()
            .flatten()
            .max()
            .filter(|last| *last >= next)
        {
            self.problem(format!(
                "number {last} is in use, and the header says that {next} is the next one"
            ));
        }
        Ok(())
    }

    fn read_pending(&mut self) -> Result<(), FilesError> {
        self.each(keys_of(PENDING), |check, key, value| {
            match (ParsedKey::of(key), Pending::decode(value)) {
                (Some(ParsedKey::Pending(number)), Some(pending)) => {
                    check.pending.insert(number, pending);
                }
                _ => check.problem("a record of what is unfinished is malformed".into()),
            }
            Ok(())
        })?;
        self.report.unfinished = self.pending.len() as u64;
        Ok(())
    }

    fn read_inodes(&mut self) -> Result<(), FilesError> {
        self.each(keys_of(INODE), |check, key, value| {
            let (Some(ParsedKey::Inode(number)), Some(inode)) =
                (ParsedKey::of(key), Inode::decode(value))
            else {
                check.problem("an inode is malformed".into());
                return Ok(());
            };
            let report = &mut check.report;
            match inode.kind {
                FileKind::File => report.files += 1,
                FileKind::Directory => report.directories += 1,
                FileKind::Symlink => report.symlinks += 1,
            }
            if inode.kind == FileKind::Symlink && crc32c::crc32c(&inode.target) != inode.crc {
                check.problem(format!(
                    "the target of link {number} has another checksum than it was stored with"
                ));
            }
            if inode.content != 0 && check.owners.insert(inode.content, number).is_some() {
                check.problem(format!(
                    "inode {number} shares its contents with another one"
                ));
            }
            check.nodes.insert(number, Node { inode, names: 0 });
            check.watcher.advance(1, 0);
            Ok(())
        })
    }

    fn read_names(&mut self) -> Result<(), FilesError> {
        self.each(keys_of(NAME), |check, key, value| {
            let (Some(ParsedKey::Name { directory, name }), Some(named)) =
                (ParsedKey::of(key), Named::decode(value))
            else {
                check.problem("a name is malformed".into());
                return Ok(());
            };
            check.report.names += 1;
            check.name(directory, name, named);
            Ok(())
        })
    }

    fn name(&mut self, directory: u64, name: &[u8], named: Named) {
        let shown = String::from_utf8_lossy(name).into_owned();
        let is_root = directory == ABOVE_ROOT;
        let holder = self.nodes.get(&directory);
        if !is_root && holder.is_none_or(|node| node.inode.kind != FileKind::Directory) {
            self.problem(format!(
                "the name {shown:?} is in {directory}, which is no directory"
            ));
        }
        if is_root != name.is_empty() || (!is_root && crate::path::check(name).is_err()) {
            self.problem(format!("the name {shown:?} in {directory} can be none"));
        }
        let Some(node) = self.nodes.get_mut(&named.inode) else {
            self.problem(format!("the name {shown:?} in {directory} has no inode"));
            return;
        };
        node.names = node.names.saturating_add(1);
        let (kind, parent) = (node.inode.kind, node.inode.parent);
        if kind != named.kind {
            self.problem(format!(
                "the name {shown:?} says another kind than its inode"
            ));
        }
        if kind == FileKind::Directory {
            self.below.entry(directory).or_default().push(named.inode);
            if parent != directory {
                self.problem(format!(
                    "the directory {shown:?} is in {directory} and says that it is in {parent}"
                ));
            }
        }
    }

    fn judge_links(&mut self) {
        let mut wrong = Vec::new();
        for (number, node) in &self.nodes {
            let is_unfinished = self.pending.get(number).is_some_and(|p| p.is_directory);
            let expected = match node.inode.kind {
                FileKind::Directory if is_unfinished => 0,
                FileKind::Directory => 1,
                _ => node.inode.links,
            };
            if node.names != expected || (node.names == 0 && !is_unfinished) {
                wrong.push(format!(
                    "inode {number} has {} names and should have {expected}",
                    node.names
                ));
            }
        }
        wrong.into_iter().for_each(|text| self.problem(text));
    }

    /// Each directory leads to the root, or to one that is unfinished.
    fn judge_directories(&mut self) {
        let unfinished = self.pending.iter().filter(|(_, p)| p.is_directory);
        let mut reached: BTreeSet<u64> = unfinished.map(|(number, _)| *number).collect();
        let mut open: Vec<u64> = reached.iter().copied().collect();
        open.push(ABOVE_ROOT);
        while let Some(directory) = open.pop() {
            for inner in self.below.get(&directory).into_iter().flatten() {
                if reached.insert(*inner) {
                    open.push(*inner);
                }
            }
        }
        let directories = self.nodes.iter();
        let lost: Vec<u64> = directories
            .filter(|(number, node)| {
                node.inode.kind == FileKind::Directory && !reached.contains(number)
            })
            .map(|(number, _)| *number)
            .collect();
        for number in lost {
            self.problem(format!(
                "directory {number} cannot be reached from the root"
            ));
        }
        if self.below.get(&ABOVE_ROOT).map_or(0, Vec::len) != 1 {
            self.problem("there is not one root".into());
        }
    }

    /// The stretches of contents that have a map. They must be what the inode says.
    fn stretches(
        &mut self,
        content: u64,
        inode: &Inode,
    ) -> Result<Vec<(u64, Stretch)>, FilesError> {
        let view = self.view.clone();
        let records = view.records();
        let (mut stretches, mut size, mut crc) = (Vec::new(), 0u64, 0);
        let mut is_sound = true;
        for record in records
            .transaction
            .prefix(records.tree, map_prefix(content))?
        {
            let (key, value) = record?;
            let (Some(ParsedKey::Map { offset, .. }), Some(stretch)) =
                (ParsedKey::of(&key), Stretch::decode(&value))
            else {
                is_sound = false;
                continue;
            };
            is_sound &= offset == size;
            size = size.saturating_add(stretch.length);
            let own = stretch.crc.unwrap_or_else(|| of_zeros(stretch.length));
            crc = joined(crc, own, stretch.length);
            stretches.push((offset, stretch));
        }
        if !is_sound || size != inode.size || crc != inode.crc {
            self.problem(format!(
                "the map of contents {content} is not that of its file"
            ));
        }
        Ok(stretches)
    }

    /// Maps belong to contents that have one.
    fn read_maps(&mut self) -> Result<(), FilesError> {
        let mut seen = 0;
        self.each(keys_of(MAP), |check, key, _| {
            let Some(ParsedKey::Map { content, .. }) = ParsedKey::of(key) else {
                check.problem("a key of a map is malformed".into());
                return Ok(());
            };
            if std::mem::replace(&mut seen, content) == content {
                return Ok(());
            }
            let owner = check.owners.get(&content).and_then(|n| check.nodes.get(n));
            let is_owned = owner.is_some_and(|node| node.inode.is_mapped);
            if !is_owned && !check.pending.contains_key(&content) {
                check.problem(format!("the map of contents {content} belongs to no file"));
            }
            Ok(())
        })
    }

    /// The pieces that contents must have: offset, bytes, checksum.
    fn expected(&mut self, content: u64) -> Result<Option<Vec<Piece>>, FilesError> {
        let Some(owner) = self.owners.get(&content) else {
            return Ok(None);
        };
        let Some(node) = self.nodes.get(owner) else {
            return Ok(None);
        };
        let inode = node.inode.clone();
        if !inode.is_mapped {
            return Ok(Some(vec![(0, inode.size, inode.crc)]));
        }
        let stretches = self.stretches(content, &inode)?.into_iter();
        let pieces = stretches.filter_map(|(at, s)| s.crc.map(|crc| (at, s.length, crc)));
        Ok(Some(pieces.collect()))
    }

    fn read_pieces(&mut self) -> Result<(), FilesError> {
        let mut current = 0;
        let mut expected: Option<BTreeMap<u64, (u64, u32)>> = None;
        let mut seen = BTreeSet::new();
        let by_offset = |pieces: Vec<Piece>| {
            let pieces = pieces.into_iter();
            pieces
                .map(|(at, length, crc)| (at, (length, crc)))
                .collect()
        };
        self.each(keys_of(CONTENT), |check, key, bytes| {
            let Some(ParsedKey::Piece { content, offset }) = ParsedKey::of(key) else {
                check.problem("a key of contents is malformed".into());
                return Ok(());
            };
            if current != content {
                check.missing(current, expected.take());
                current = content;
                seen.insert(content);
                expected = check.expected(content)?.map(by_offset);
                if expected.is_none() && !check.pending.contains_key(&content) {
                    check.problem(format!("contents {content} belong to no file"));
                }
            }
            let Some(pieces) = &mut expected else {
                return Ok(());
            };
            let there = (bytes.len() as u64, crc32c::crc32c(bytes));
            if pieces.remove(&offset) != Some(there) {
                check.problem(format!(
                    "the piece of contents {content} at {offset} is not the one that was stored"
                ));
            }
            check.report.bytes_verified += there.0;
            check.watcher.advance(0, there.0);
            Ok(())
        })?;
        self.missing(current, expected);
        let unseen: Vec<u64> = self.owners.keys().copied().collect();
        for content in unseen.into_iter().filter(|c| !seen.contains(c)) {
            let pieces = self.expected(content)?.map(by_offset);
            self.missing(content, pieces);
        }
        Ok(())
    }

    /// Reports pieces that were not there.
    fn missing(&mut self, content: u64, pieces: Option<BTreeMap<u64, (u64, u32)>>) {
        for offset in pieces.unwrap_or_default().keys() {
            self.problem(format!(
                "the piece of contents {content} at {offset} is missing"
            ));
        }
    }
}
