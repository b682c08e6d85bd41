//! Random operations against a tree in memory, the store opened again between them.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;

use common::{attributes, small, sound};
use isobath::{Store, Volume};
use isobath_files::{FileKind, FileTree, FilesError, PIECE_BYTES};
use isobath_io::{FaultDevice, FaultPlan};

#[derive(Clone, Debug, PartialEq)]
enum Node {
    File(Vec<u8>),
    Link(String),
    Directory(BTreeMap<String, usize>),
}

/// The fault, in one word.
#[derive(Debug, PartialEq)]
enum Wrong {
    NotFound,
    Exists,
    NotADirectory,
    IsADirectory,
    NotEmpty,
    NotAFile,
    IntoItself,
    Root,
}

fn word(error: &FilesError) -> Wrong {
    match error {
        FilesError::NotFound { .. } => Wrong::NotFound,
        FilesError::Exists { .. } => Wrong::Exists,
        FilesError::NotADirectory { .. } => Wrong::NotADirectory,
        FilesError::IsADirectory { .. } => Wrong::IsADirectory,
        FilesError::NotEmpty { .. } => Wrong::NotEmpty,
        FilesError::NotAFile { .. } => Wrong::NotAFile,
        FilesError::IntoItself { .. } => Wrong::IntoItself,
        FilesError::BadName { .. } => Wrong::Root,
        other => panic!("{other}"),
    }
}

/// A file tree as simple as it can be: nodes that are never freed, names in maps.
struct Model {
    nodes: Vec<Node>,
}

type Place = (usize, String, Option<usize>);

impl Model {
    fn entries(&self, directory: usize) -> Option<&BTreeMap<String, usize>> {
        match &self.nodes[directory] {
            Node::Directory(entries) => Some(entries),
            _ => None,
        }
    }

    fn entries_mut(&mut self, directory: usize) -> &mut BTreeMap<String, usize> {
        match &mut self.nodes[directory] {
            Node::Directory(entries) => entries,
            other => panic!("{other:?}"),
        }
    }

    fn is_directory(&self, node: usize) -> bool {
        self.entries(node).is_some()
    }

    fn place(&self, path: &str) -> Result<Place, Wrong> {
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        let (name, above) = names.split_last().ok_or(Wrong::Root)?;
        let mut at = 0;
        for name in above {
            at = *self
                .entries(at)
                .unwrap()
                .get(*name)
                .ok_or(Wrong::NotFound)?;
            if !self.is_directory(at) {
                return Err(Wrong::NotADirectory);
            }
        }
        let there = self.entries(at).unwrap().get(*name).copied();
        Ok((at, (*name).to_owned(), there))
    }

    fn make(&mut self, path: &str, node: Node) -> Result<(), Wrong> {
        let (directory, name, there) = self.place(path)?;
        match there {
            Some(_) => Err(Wrong::Exists),
            None => {
                self.nodes.push(node);
                let number = self.nodes.len() - 1;
                self.entries_mut(directory).insert(name, number);
                Ok(())
            }
        }
    }

    fn write(&mut self, path: &str, contents: Vec<u8>) -> Result<(), Wrong> {
        match self.place(path)?.2 {
            None => self.make(path, Node::File(contents)),
            Some(node) => match &mut self.nodes[node] {
                Node::File(old) => {
                    *old = contents;
                    Ok(())
                }
                Node::Link(_) => Err(Wrong::NotAFile),
                Node::Directory(_) => Err(Wrong::IsADirectory),
            },
        }
    }

    fn link(&mut self, from: &str, to: &str) -> Result<(), Wrong> {
        let node = self.place(from)?.2.ok_or(Wrong::NotFound)?;
        if self.is_directory(node) {
            return Err(Wrong::IsADirectory);
        }
        let (directory, name, there) = self.place(to)?;
        if there.is_some() {
            return Err(Wrong::Exists);
        }
        self.entries_mut(directory).insert(name, node);
        Ok(())
    }

    fn holds(&self, above: usize, node: usize) -> bool {
        above == node
            || self
                .entries(above)
                .is_some_and(|entries| entries.values().any(|inner| self.holds(*inner, node)))
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), Wrong> {
        let (old, old_name, moved) = self.place(from)?;
        let moved = moved.ok_or(Wrong::NotFound)?;
        let (new, new_name, there) = self.place(to)?;
        if there == Some(moved) {
            return Ok(());
        }
        let is_directory = self.is_directory(moved);
        if is_directory && self.holds(moved, new) {
            return Err(Wrong::IntoItself);
        }
        if let Some(there) = there {
            match (is_directory, self.entries(there)) {
                (false, Some(_)) => return Err(Wrong::IsADirectory),
                (true, None) => return Err(Wrong::NotADirectory),
                (true, Some(entries)) if !entries.is_empty() => return Err(Wrong::NotEmpty),
                _ => {}
            }
        }
        self.entries_mut(old).remove(&old_name);
        self.entries_mut(new).insert(new_name, moved);
        Ok(())
    }

    fn remove(&mut self, path: &str, how: usize) -> Result<(), Wrong> {
        let (directory, name, there) = self.place(path)?;
        let there = there.ok_or(Wrong::NotFound)?;
        match (how, self.entries(there)) {
            (0, Some(_)) => return Err(Wrong::IsADirectory),
            (1, None) => return Err(Wrong::NotADirectory),
            (1, Some(entries)) if !entries.is_empty() => return Err(Wrong::NotEmpty),
            _ => {}
        }
        self.entries_mut(directory).remove(&name);
        Ok(())
    }

    /// Names of each node that has some.
    fn names(&self, at: usize, path: &str, into: &mut BTreeMap<String, usize>) {
        for (name, node) in self.entries(at).into_iter().flatten() {
            let path = format!("{path}/{name}");
            self.names(*node, &path, into);
            into.insert(path, *node);
        }
    }
}

fn compare(model: &Model, files: &FileTree, what: &str) {
    let view = files.view().unwrap();
    let mut names = BTreeMap::new();
    model.names(0, "", &mut names);
    let mut links: BTreeMap<usize, u32> = BTreeMap::new();
    names
        .values()
        .for_each(|node| *links.entry(*node).or_default() += 1);
    let mut numbers: BTreeMap<usize, u64> = BTreeMap::new();
    let mut found = 0;
    for item in view.walk("/").unwrap().skip(1) {
        let (path, stat) = item.unwrap();
        let path = String::from_utf8(path).unwrap();
        let node = names.get(&path).unwrap_or_else(|| panic!("{what}: {path}"));
        let number = *numbers.entry(*node).or_insert(stat.inode);
        assert_eq!(number, stat.inode, "{what}: {path}");
        found += 1;
        match &model.nodes[*node] {
            Node::File(contents) => {
                assert_eq!(stat.links, links[node], "{what}: {path}");
                assert_eq!(&view.read(&path).unwrap(), contents, "{what}: {path}");
            }
            Node::Link(target) => {
                assert_eq!(view.read_link(&path).unwrap(), target.as_bytes());
            }
            Node::Directory(_) => assert_eq!(stat.kind, FileKind::Directory),
        }
    }
    assert_eq!(found, names.len(), "{what}");
    assert!(
        view.list("/")
            .unwrap()
            .is_sorted_by_key(|entry| entry.name.clone())
    );
    sound(files);
}

#[test]
fn random_operations_do_what_the_model_does() {
    let rounds: u64 = std::env::var("ISOBATH_SEEDS").map_or(6, |text| text.parse().unwrap());
    for seed in 0..rounds {
        let mut random = fastrand::Rng::with_seed(seed);
        let device = FaultDevice::new(0, FaultPlan::new(seed).max_bytes(Some(96 << 20)));
        let options = small().volume_limit_bytes(Some(96 << 20));
        let volume = Volume::from_device(device.clone());
        let mut store = Store::create_on_volume(volume, &options).unwrap();
        let mut files = FileTree::open_or_create(&store, "files").unwrap();
        let mut model = Model {
            nodes: vec![Node::Directory(BTreeMap::new())],
        };
        let mut refused = 0;
        for step in 0..160 {
            let mut path = || {
                let depth = random.usize(1..5);
                let names = (0..depth).map(|_| ["a", "b", "c", "d"][random.usize(..4)]);
                format!("/{}", names.collect::<Vec<_>>().join("/"))
            };
            let (one, two) = (path(), path());
            let (operation, how) = (random.u8(..12), random.usize(..3));
            let lengths = [0, 10, 3000, PIECE_BYTES, PIECE_BYTES + 3000];
            let contents = vec![step as u8; lengths[random.usize(..5)]];
            let (file, directory) = (attributes(0o600), attributes(0o700));
            let (done, expected) = match operation {
                0..=2 => (
                    files.create_directory(&one, &directory),
                    model.make(&one, Node::Directory(BTreeMap::new())),
                ),
                3..=4 => (
                    files.write(&one, &contents, &file),
                    model.write(&one, contents),
                ),
                5 => (
                    files.create_link(&one, &two, &file),
                    model.make(&one, Node::Link(two.clone())),
                ),
                6..=7 => (files.link(&one, &two), model.link(&one, &two)),
                8..=10 => (files.rename(&one, &two), model.rename(&one, &two)),
                _ => {
                    let done = match how {
                        0 => files.remove(&one),
                        1 => files.remove_directory(&one),
                        _ => files.remove_all(&one),
                    };
                    (done, model.remove(&one, how))
                }
            };
            let what = format!("seed {seed}, step {step}: {operation} {one} {two}");
            match (&done, &expected) {
                (Ok(()), Ok(())) => {}
                (Err(error), Err(wrong)) => {
                    refused += 1;
                    assert_eq!(&word(error), wrong, "{what}");
                }
                _ => panic!("{what}: {done:?}, {expected:?}"),
            }
            if step % 20 == 19 {
                compare(&model, &files, &what);
                drop(files);
                store.close().unwrap();
                let volume = Volume::from_device(device.clone());
                store = Store::open_on_volume(volume, &options).unwrap();
                files = FileTree::open(&store, "files").unwrap();
                compare(&model, &files, &what);
            }
        }
        assert!(refused < 150, "seed {seed}: {refused}");
        drop(files);
        store.close().unwrap();
    }
}
