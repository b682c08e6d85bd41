//! A directory tree: path → content.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use isobath::{Store, Tree};
use serde::Serialize;

use super::Loaded;
use crate::files::must_be;
use crate::pipeline::InFlight;
use crate::{LabError, Monitor, Stage, Unit};

/// Files up to this many bytes are read whole and handed to a task; longer
/// ones go through a streaming writer.
pub(crate) const SMALL_FILE: u64 = 512 << 10;

/// Files that were not stored, by reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Symbolic links; they are not followed.
    pub links: u64,
    /// Devices, sockets, pipes.
    pub special: u64,
    /// Files and directories that could not be read.
    pub unreadable: u64,
    /// Files over 1 GiB, the longest value.
    pub too_large: u64,
    /// Files whose path is longer than a key can be.
    pub long_paths: u64,
    /// Files beyond the limit on the total size.
    pub over_cap: u64,
    /// Bytes of those.
    pub over_cap_bytes: u64,
}

impl Skipped {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.links
            + self.special
            + self.unreadable
            + self.too_large
            + self.long_paths
            + self.over_cap
    }

    fn add(&mut self, other: &Skipped) {
        self.links += other.links;
        self.special += other.special;
        self.unreadable += other.unreadable;
        self.too_large += other.too_large;
        self.long_paths += other.long_paths;
        self.over_cap += other.over_cap;
        self.over_cap_bytes += other.over_cap_bytes;
    }
}

/// A regular file to store.
#[derive(Debug, Clone)]
pub(crate) struct SourceFile {
    pub(crate) path: PathBuf,
    /// The path below the root, with `/` between its parts.
    pub(crate) key: Vec<u8>,
    pub(crate) bytes: u64,
}

/// The regular files below a directory, in order of their paths.
#[derive(Debug, Clone, Default)]
pub(crate) struct Files {
    pub(crate) list: Vec<SourceFile>,
    pub(crate) bytes: u64,
    pub(crate) skipped: Skipped,
}

/// Lists the regular files below `root`, without following links. A file that
/// `is_own` says is one of the store's own is never listed. Stops adding when
/// `cap_bytes` would be passed.
pub(crate) fn find_files(
    root: &Path,
    cap_bytes: Option<u64>,
    is_own: &dyn Fn(&fs::Metadata) -> bool,
    monitor: &dyn Monitor,
) -> Result<Files, LabError> {
    must_be(root, true)?;
    let mut files = Files::default();
    for entry in walkdir::WalkDir::new(root)
        .follow_links(false)
        .sort_by_file_name()
    {
        monitor.check()?;
        let Ok(entry) = entry else {
            files.skipped.unreadable += 1;
            continue;
        };
        let kind = entry.file_type();
        if kind.is_dir() {
            continue;
        }
        if kind.is_symlink() {
            files.skipped.links += 1;
            continue;
        }
        if !kind.is_file() {
            files.skipped.special += 1;
            continue;
        }
        let Ok(meta) = entry.metadata() else {
            files.skipped.unreadable += 1;
            continue;
        };
        if !is_own(&meta) {
            files.add(root, entry.into_path(), meta.len(), cap_bytes);
        }
    }
    Ok(files)
}

impl Files {
    fn add(&mut self, root: &Path, path: PathBuf, bytes: u64, cap_bytes: Option<u64>) {
        let key = path.strip_prefix(root).unwrap_or(&path);
        let key = key.as_os_str().as_bytes().to_vec();
        if bytes > isobath::MAX_VALUE_BYTES {
            self.skipped.too_large += 1;
        } else if key.len() > isobath::MAX_KEY_BYTES {
            self.skipped.long_paths += 1;
        } else if cap_bytes.is_some_and(|cap| self.bytes + bytes > cap) {
            self.skipped.over_cap += 1;
            self.skipped.over_cap_bytes += bytes;
        } else {
            self.bytes += bytes;
            self.list.push(SourceFile { path, key, bytes });
        }
    }
}

/// Loads every regular file below `root` as path → content.
///
/// # Errors
/// A root that is missing or no directory; engine errors. Single files that
/// cannot be read are counted, not errors.
pub fn load_directory(
    store: &Store,
    tree: &Tree,
    root: &Path,
    cap_bytes: Option<u64>,
    monitor: &dyn Monitor,
) -> Result<Loaded, LabError> {
    let files = find_files(root, cap_bytes, &|meta| store.holds(meta), monitor)?;
    load_files(store, tree, &files, monitor)
}

/// Threads that read files; the workers write the records at the same time.
const READERS: usize = 4;

/// Loads the listed files.
pub(crate) fn load_files(
    store: &Store,
    tree: &Tree,
    files: &Files,
    monitor: &dyn Monitor,
) -> Result<Loaded, LabError> {
    monitor.begin(Stage {
        name: "loading files",
        total: Some(files.bytes),
        unit: Unit::Bytes,
    });
    let total = Mutex::new(Loaded {
        skipped: files.skipped.clone(),
        ..Loaded::default()
    });
    let done = for_each_file(files, READERS, |claim| {
        let mut loaded = Loaded::default();
        let mut in_flight = InFlight::new(store);
        let mut claimed = || -> Result<(), LabError> {
            while let Some(file) = claim() {
                monitor.check()?;
                load_one(tree, file, &mut in_flight, &mut loaded)?;
                monitor.advance(file.bytes);
            }
            Ok(())
        };
        let done = claimed();
        // Files that are in flight are stored whatever ended the loop.
        let stored = in_flight.finish(|stored| loaded.count(stored));
        lock(&total).add(&loaded);
        done.and(stored)
    });
    let total = std::mem::take(&mut *lock(&total));
    done.map(|_| ()).map_err(|error| {
        error.after(format!(
            "{} of {} are in: the same load completes it",
            super::counted(total.records, "file"),
            files.list.len()
        ))
    })?;
    Ok(total)
}

/// Bytes of the key and of the value of a file that was stored.
type Stored = (u64, u64);

impl Loaded {
    fn count(&mut self, (key, value): Stored) {
        self.records += 1;
        self.key_bytes += key;
        self.value_bytes += value;
    }

    fn add(&mut self, part: &Loaded) {
        self.records += part.records;
        self.key_bytes += part.key_bytes;
        self.value_bytes += part.value_bytes;
        self.skipped.add(&part.skipped);
    }
}

fn load_one(
    tree: &Tree,
    file: &SourceFile,
    in_flight: &mut InFlight<'_, Stored>,
    loaded: &mut Loaded,
) -> Result<(), LabError> {
    let key_bytes = file.key.len() as u64;
    if file.bytes <= SMALL_FILE {
        let Ok(content) = fs::read(&file.path) else {
            loaded.skipped.unreadable += 1;
            return Ok(());
        };
        let (tree, key) = (tree.clone(), file.key.clone());
        let bytes = content.len();
        let work = move || {
            tree.insert(&key, &content)?;
            Ok((key_bytes, bytes as u64))
        };
        return in_flight.start(bytes, work, |stored| loaded.count(stored));
    }
    match stream_file(tree, file)? {
        Some(bytes) => loaded.count((key_bytes, bytes)),
        None => loaded.skipped.unreadable += 1,
    }
    Ok(())
}

/// Stores a large file through the streaming writer; `None` if the file
/// cannot be read.
fn stream_file(tree: &Tree, file: &SourceFile) -> Result<Option<u64>, LabError> {
    let Ok(mut input) = File::open(&file.path) else {
        return Ok(None);
    };
    let mut writer = tree.writer(&file.key)?;
    let mut piece = vec![0; 1 << 20];
    let mut total = 0u64;
    loop {
        match input.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => {
                writer
                    .write_all(&piece[..n])
                    .map_err(|e| LabError::streamed("store", &file.path, e))?;
                total += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Ok(None),
        }
    }
    writer.finish()?;
    Ok(Some(total))
}

/// Runs `work` on several threads; each gets a function that claims the next
/// file. After an error, no thread claims any more.
pub(crate) fn for_each_file<'f, T: Send>(
    files: &'f Files,
    threads: usize,
    work: impl Fn(&dyn Fn() -> Option<&'f SourceFile>) -> Result<T, LabError> + Sync,
) -> Result<Vec<T>, LabError> {
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<LabError>> = Mutex::new(None);
    let claim = || files.list.get(next.fetch_add(1, Ordering::Relaxed));
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| match work(&claim) {
                Ok(part) => lock(&done).push(part),
                Err(error) => {
                    next.store(files.list.len(), Ordering::Relaxed);
                    lock(&failed).get_or_insert(error);
                }
            });
        }
    });
    match lock(&failed).take() {
        Some(error) => Err(error),
        None => Ok(std::mem::take(&mut lock(&done))),
    }
}

/// Locks; a thread that panicked while it held the lock left plain data.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;

    #[test]
    fn links_special_files_and_the_cap_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir(root.join("sub")).unwrap();
        fs::write(root.join("sub/b"), [1; 100]).unwrap();
        fs::write(root.join("a"), [2; 50]).unwrap();
        fs::write(root.join("z"), [3; 1000]).unwrap();
        std::os::unix::fs::symlink("a", root.join("link")).unwrap();
        std::os::unix::fs::symlink("sub", root.join("dirlink")).unwrap();
        std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        let own = root.join("own");
        fs::write(&own, [0; 10]).unwrap();

        let files = find_files(root, Some(200), &|meta| meta.len() == 10, &Silent).unwrap();
        let keys: Vec<_> = files.list.iter().map(|f| f.key.clone()).collect();
        assert_eq!(keys, [b"a".to_vec(), b"sub/b".to_vec()]);
        assert_eq!(files.bytes, 150);
        let skipped = files.skipped;
        assert_eq!((skipped.links, skipped.special), (2, 1));
        assert_eq!((skipped.over_cap, skipped.over_cap_bytes), (1, 1000));
        assert_eq!(skipped.total(), 4);
    }

    #[test]
    fn the_first_error_stops_all_threads() {
        let files = Files {
            list: vec![
                SourceFile {
                    path: PathBuf::new(),
                    key: Vec::new(),
                    bytes: 0
                };
                1000
            ],
            ..Files::default()
        };
        let claimed = AtomicUsize::new(0);
        let result = for_each_file(&files, 1, |claim| {
            while claim().is_some() {
                if claimed.fetch_add(1, Ordering::Relaxed) == 10 {
                    return Err(LabError::Interrupted);
                }
            }
            Ok(())
        });
        assert!(matches!(result, Err(LabError::Interrupted)));
        assert_eq!(claimed.load(Ordering::Relaxed), 11);
    }
}
