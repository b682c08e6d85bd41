//! The directory of a node:
//!
//! | file | contents |
//! | --- | --- |
//! | `log.iso` | the store of log and vote, and the record *current* |
//! | `state-N.iso` | the store of the state machine; N counts installed snapshots |
//! | `NAME.backup` | a file of the current snapshot |
//! | `NAME.incoming` | one that is being received |
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
        fs::create_dir_all(path).map_err(Error::file(path))?;
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

    /// A name for a file of a snapshot of the entries up to `index`, which no node has used.
    pub(crate) fn new_name(index: u64) -> String {
        let unique = || RandomState::new().hash_one(std::process::id());
        format!("{index}-{:016x}{:016x}", unique(), unique())
    }

    /// Makes the directory's names durable.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        let synced = File::open(&self.path).and_then(|directory| directory.sync_all());
        synced.map_err(Error::file(&self.path))
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
                reason: "its file is gone or has another length",
            };
            Ok((piece.clone(), self.find(piece)?.ok_or_else(lost)?))
        });
        let files = files.collect::<Result<Vec<_>, Error>>()?;
        Ok(SnapshotFiles {
            files: files.into(),
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
            file: Some(file.map_err(Error::file(&path))?),
            path,
            to: self.piece(&piece.name),
        })
    }

    /// Copies those files of a snapshot that are not here, as after another build has removed them.
    pub(crate) fn adopt(&self, files: &SnapshotFiles) -> Result<(), Error> {
        for (piece, _) in files.files.iter() {
            if self.find(piece)?.is_some() {
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
            copy.complete(piece)?;
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
        || name.ends_with(".backup")
        || name.ends_with(".backup.partial")
}

/// Removes a file, if it is there.
pub(crate) fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file(path)(error)),
        _ => Ok(()),
    }
}

/// A file that is being received. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// `None` once it is complete.
    file: Option<File>,
    path: PathBuf,
    /// Its name once it is complete.
    to: PathBuf,
}

impl Incoming {
    pub(crate) fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let written = self
            .file
            .iter()
            .try_for_each(|file| file.write_all_at(bytes, offset));
        written.map_err(Error::file(&self.path))
    }

    /// Syncs the file and gives it its name.
    pub(crate) fn complete(mut self, piece: &Piece) -> Result<File, Error> {
        let synced = self.file.as_ref().map_or(Ok(0), |file| {
            file.sync_all()?;
            Ok(file.metadata()?.len())
        });
        let (bytes, file) = (synced.map_err(Error::file(&self.path))?, self.file.take());
        match file {
            Some(file) if bytes == piece.bytes => {
                fs::rename(&self.path, &self.to).map_err(Error::file(&self.to))?;
                Ok(file)
            }
            _ => Err(Error::Snapshot {
                id: piece.name.clone(),
                reason: "the file is shorter than was announced",
            }),
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // Renamed if it is complete; else the next opening removes what cannot be removed now.
        let _ = fs::remove_file(&self.path);
    }
}
