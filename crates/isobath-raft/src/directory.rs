//! The directory of a node:
//!
//! | file | contents |
//! | --- | --- |
//! | `log.iso` | the store of log and vote, and the record *current* |
//! | `state-N.iso` | the store of the state machine; N counts installed snapshots |
//! | `NAME.backup` | a file of the current snapshot |
//! | `NAME.incoming` | one that is being received |
//! | `NAME.restored` | the store that was made of a snapshot that has come |
//!
//! The record *current* names the state and the snapshot's files. Whatever it does not name is left
//! from work that a crash has cut off: opening removes it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::snapshot::{Piece, SnapshotFiles};

/// Bytes that are copied at once.
const COPIED_AT_ONCE: usize = 1 << 20;

#[derive(Debug, Clone)]
pub(crate) struct Directory {
    path: PathBuf,
}

impl Directory {
    pub(crate) fn open(path: &Path) -> Result<Directory, Error> {
        let is_missing = |above: &&Path| !above.as_os_str().is_empty() && !above.exists();
        let above: Vec<&Path> = path.ancestors().skip(1).take_while(is_missing).collect();
        fs::create_dir_all(path).map_err(Error::file(path))?;
        // An opening that was cut off may have made it: its name is synced each time.
        let names = [path].into_iter().chain(above);
        for parent in names.filter_map(Path::parent) {
            let is_here = parent.as_os_str().is_empty();
            sync(if is_here { Path::new(".") } else { parent })?;
        }
        Ok(Directory {
            path: path.to_owned(),
        })
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.path.join("log.iso")
    }

    pub(crate) fn state(&self, generation: u64) -> PathBuf {
        self.path.join(format!("state-{generation}.iso"))
    }

    pub(crate) fn piece(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.backup"))
    }

    /// A name for a store that is made of a snapshot; no other has it.
    pub(crate) fn restored(&self) -> PathBuf {
        let name = format!("{}.restored", Directory::new_name(0));
        self.path.join(name)
    }

    /// A name for a file of a snapshot of the entries up to `index`, which no node has used.
    pub(crate) fn new_name(index: u64) -> String {
        let unique = || RandomState::new().hash_one(std::process::id());
        format!("{index}-{:016x}{:016x}", unique(), unique())
    }

    /// Makes the directory's names durable.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        sync(&self.path)
    }

    /// The file of a snapshot, if it is here and complete.
    pub(crate) fn find(&self, piece: &Piece) -> Result<Option<File>, Error> {
        let path = self.piece(&piece.name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::file(&path)(error)),
        };
        let bytes = file.metadata().map_err(Error::file(&path))?.len();
        Ok((bytes == piece.bytes).then_some(file))
    }

    /// All files of a snapshot of this node's.
    pub(crate) fn files(&self, pieces: &[Piece]) -> Result<SnapshotFiles, Error> {
        let files = pieces.iter().map(|piece| {
            let lost = || Error::Snapshot {
                id: piece.name.clone(),
                reason: "its file is gone or has another length; bring it back, or remove the node's \
                         directory and add the node again",
            };
            Ok((piece.clone(), self.find(piece)?.ok_or_else(lost)?))
        });
        let files = files.collect::<Result<Vec<_>, Error>>()?;
        Ok(SnapshotFiles {
            files: files.into(),
            received: None,
        })
    }

    pub(crate) fn incoming(&self, piece: &Piece) -> Result<Incoming, Error> {
        // Two senders may offer the same file; each has one of its own until it is complete.
        let name = format!("{}.incoming", Directory::new_name(0));
        let path = self.path.join(name);
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path);
        Ok(Incoming {
            file: file.map_err(Error::file(&path))?,
            path,
            to: self.piece(&piece.name),
        })
    }

    /// Gives the files that came with a snapshot their names, and copies those that are not here
    /// any more, as after another build has removed them.
    pub(crate) fn adopt(&self, files: &SnapshotFiles) -> Result<(), Error> {
        for (piece, _) in files.files.iter() {
            if self.find(piece)?.is_some() || files.complete(piece)? {
                continue;
            }
            let copy = self.incoming(piece)?;
            let mut offset = 0;
            while offset < piece.bytes {
                let bytes = files.read_at(&piece.name, offset, COPIED_AT_ONCE);
                let bytes = bytes.map_err(Error::file(&copy.to))?;
                copy.write_at(offset, &bytes)?;
                offset += bytes.len() as u64;
            }
            copy.seal(piece)?;
            copy.complete()?;
        }
        Ok(())
    }

    /// Removes the files of work that was cut off: all of ours but `state` and `pieces`.
    pub(crate) fn sweep(&self, generation: u64, pieces: &[Piece]) -> Result<(), Error> {
        let kept: BTreeSet<PathBuf> = pieces
            .iter()
            .map(|piece| self.piece(&piece.name))
            .chain([self.state(generation)])
            .collect();
        let entries = fs::read_dir(&self.path).map_err(Error::file(&self.path))?;
        for entry in entries {
            let path = entry.map_err(Error::file(&self.path))?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            if name.is_some_and(is_ours) && !kept.contains(&path) {
                remove(&path)?;
            }
        }
        Ok(())
    }
}

/// Whether this is a file that comes and goes.
fn is_ours(name: &str) -> bool {
    let is_state = name.starts_with("state-") && name.ends_with(".iso");
    is_state
        || name.ends_with(".incoming")
        || name.ends_with(".restored")
        || name.ends_with(".backup")
        || name.ends_with(".backup.partial")
}

/// Makes the names in a directory durable.
fn sync(directory: &Path) -> Result<(), Error> {
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(Error::file(directory))
}

/// Removes a file, if it is there.
pub(crate) fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file(path)(error)),
        _ => Ok(()),
    }
}

/// A file that has come, or still comes. Dropping it removes it, unless it has its name.
#[derive(Debug)]
pub(crate) struct Incoming {
    file: File,
    path: PathBuf,
    /// Its name once it is complete.
    to: PathBuf,
}

impl Incoming {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let written = self.file.write_all_at(bytes, offset);
        written.map_err(Error::file(&self.path))
    }

    /// Syncs the file, which must have all bytes now.
    pub(crate) fn seal(&self, piece: &Piece) -> Result<(), Error> {
        let synced = self.file.sync_all().and_then(|()| self.file.metadata());
        let bytes = synced.map_err(Error::file(&self.path))?.len();
        if bytes != piece.bytes {
            return Err(Error::Snapshot {
                id: piece.name.clone(),
                reason: "the file is shorter than was announced; send it again",
            });
        }
        Ok(())
    }

    /// The file, for reading.
    pub(crate) fn file(&self) -> Result<File, Error> {
        self.file.try_clone().map_err(Error::file(&self.path))
    }

    /// Gives the file its name; whether it had none before.
    pub(crate) fn complete(&self) -> Result<bool, Error> {
        match fs::rename(&self.path, &self.to) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::file(&self.to)(error)),
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // Renamed if it is complete; else the next opening removes what cannot be removed now.
        let _ = fs::remove_file(&self.path);
    }
}
