//! Snapshots on their way from node to node: backup files, of which the receiver asks for those
//! that it lacks.

use std::fs::{self, File};
use std::io;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use isobath::{Options, Store};
use openraft::SnapshotMeta;
use serde::{Deserialize, Serialize};

use crate::arrivals::{Arrivals, Guard};
use crate::directory::{Directory, Incoming};
use crate::state::applied_in;
use crate::{Error, Types, cut};

/// The name and length of one of a snapshot's files. Names are unique among all nodes, so equal
/// names are equal files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Its name: small letters, digits and hyphens.
    pub name: String,
    /// Bytes of the file.
    pub bytes: u64,
}

impl Piece {
    /// The piece, if its name can be no path.
    fn checked(&self) -> Result<&Piece, Error> {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.name.is_empty() || self.name.len() > 100 || !self.name.chars().all(is_plain) {
            return Err(Error::Snapshot {
                id: self.name.clone(),
                reason: "that is no name of a snapshot's file; send those of `SnapshotFiles::pieces`",
            });
        }
        Ok(self)
    }
}

/// The files of a snapshot, open for reading: openraft's `SnapshotData`. They stay readable until
/// this is dropped, although the node may have replaced its snapshot by then.
#[derive(Debug, Clone, Default)]
pub struct SnapshotFiles {
    /// In the order of restoring: a full backup, then incremental ones.
    pub(crate) files: Arc<Vec<(Piece, File)>>,
    /// `None` of a snapshot of this node's.
    pub(crate) received: Option<Arc<Received>>,
}

/// What has come of a snapshot, and the store that was made of it. Dropping it removes what was not
/// installed, and lets purges go on.
#[derive(Debug)]
pub(crate) struct Received {
    store: PathBuf,
    files: Vec<(Piece, Incoming)>,
    _guard: Guard,
}

impl Drop for Received {
    fn drop(&mut self) {
        // Installed under another name; else the next opening removes what cannot be removed now.
        let _ = fs::remove_file(&self.store);
    }
}

/// Makes a store of the backup files of a snapshot, which are verified.
pub(crate) fn restore(files: &[PathBuf], to: &Path, options: &Options) -> Result<(), Error> {
    let mut watch = |_: &'static str, _, _| ControlFlow::Continue(());
    Store::restore(files, &[to], options, &mut watch)?;
    Ok(())
}

impl SnapshotFiles {
    /// Names and lengths, in the order of restoring.
    #[must_use]
    pub fn pieces(&self) -> Vec<Piece> {
        self.files.iter().map(|(piece, _)| piece.clone()).collect()
    }

    /// Gives a file that has come with this snapshot its name; whether there is one.
    pub(crate) fn complete(&self, piece: &Piece) -> Result<bool, Error> {
        let mut files = self.received.iter().flat_map(|received| &received.files);
        match files.find(|(came, _)| came == piece) {
            Some((_, incoming)) => incoming.complete(),
            None => Ok(false),
        }
    }

    /// Moves the store that was made of a snapshot that has come; whether there is one.
    pub(crate) fn move_store(&self, to: &Path) -> Result<bool, Error> {
        let Some(received) = &self.received else {
            return Ok(false);
        };
        match fs::rename(&received.store, to) {
            Ok(()) => Ok(true),
            // Another copy of these files was installed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::file(&received.store)(error)),
        }
    }

    /// Reads at most `limit` bytes of the file `name` from `offset` on; fewer at its end, none
    /// behind it.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::NotFound`] if the snapshot has no such file; what reading it fails with.
    pub fn read_at(&self, name: &str, offset: u64, limit: usize) -> io::Result<Vec<u8>> {
        let found = self.files.iter().find(|(piece, _)| piece.name == name);
        let (piece, file) = found.ok_or(io::ErrorKind::NotFound)?;
        let rest = piece.bytes.saturating_sub(offset);
        let length = usize::try_from(rest).map_or(limit, |rest| rest.min(limit));
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
}

/// A snapshot that is being received, from
/// [`StateMachine::receive`](crate::StateMachine::receive). Dropping it removes what has come.
#[derive(Debug)]
pub struct SnapshotReceiver<C> {
    directory: Directory,
    options: Options,
    arrivals: Arrivals,
    /// In the order of restoring.
    files: Vec<(Piece, Arrival)>,
    types: PhantomData<fn() -> C>,
}

#[derive(Debug)]
enum Arrival {
    Here(File),
    Missing(Incoming),
}

impl<C: Types> SnapshotReceiver<C> {
    pub(crate) fn new(
        directory: &Directory,
        options: &Options,
        arrivals: &Arrivals,
        pieces: &[Piece],
    ) -> Result<SnapshotReceiver<C>, Error> {
        let files = pieces.iter().map(|piece| {
            let arrival = match directory.find(piece.checked()?)? {
                Some(file) => Arrival::Here(file),
                None => Arrival::Missing(directory.incoming(piece)?),
            };
            Ok((piece.clone(), arrival))
        });
        Ok(SnapshotReceiver {
            directory: directory.clone(),
            options: options.clone(),
            arrivals: arrivals.clone(),
            files: files.collect::<Result<_, Error>>()?,
            types: PhantomData,
        })
    }

    /// The files that this node lacks.
    #[must_use]
    pub fn missing(&self) -> Vec<Piece> {
        let missing = |(piece, arrival): &(Piece, Arrival)| match arrival {
            Arrival::Here(_) => None,
            Arrival::Missing(_) => Some(piece.clone()),
        };
        self.files.iter().filter_map(missing).collect()
    }

    /// Writes `bytes` at `offset` of the missing file `name`.
    ///
    /// # Errors
    ///
    /// [`Error::Snapshot`] if that file is not missing, or ends before these bytes do;
    /// [`Error::File`].
    pub fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let refused = |reason| Error::Snapshot {
            id: name.to_owned(),
            reason,
        };
        let found = self.files.iter().find(|(piece, _)| piece.name == name);
        let Some((piece, Arrival::Missing(incoming))) = found else {
            return Err(refused(
                "this file was not asked for; send those that are missing",
            ));
        };
        let end = offset.saturating_add(bytes.len() as u64);
        if end > piece.bytes {
            return Err(refused(
                "the file is longer than was announced; send it again",
            ));
        }
        incoming.write_at(offset, bytes)
    }

    /// The complete snapshot, for [`openraft::Raft::install_full_snapshot`] together with `meta`,
    /// which came with it. Syncs what has come, makes a store of it, which verifies it, and looks
    /// whether that ends with the entry, and has the members, that `meta` says; blocks the thread.
    /// openraft has not heard of a snapshot that is refused here: the node goes on, the files that
    /// came are removed, and it can be sent again.
    ///
    /// The log is not purged beyond the node's own snapshot until what this returns is installed or
    /// dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Snapshot`] if a file is shorter than announced, or `meta` is of another snapshot;
    /// [`Error::Store`] if the files are no chain of backups, or corrupt; [`Error::File`].
    pub fn finish(self, meta: &SnapshotMeta<C::NodeId, C::Node>) -> Result<SnapshotFiles, Error> {
        let paths = self.files.iter().map(|(piece, arrival)| match arrival {
            Arrival::Here(_) => Ok(self.directory.piece(&piece.name)),
            Arrival::Missing(incoming) => {
                incoming.seal(piece)?;
                Ok(incoming.path().to_owned())
            }
        });
        let paths = paths.collect::<Result<Vec<_>, Error>>()?;
        let mut received = Received {
            store: self.directory.restored(),
            files: Vec::new(),
            _guard: self.arrivals.guard(),
        };
        restore(&paths, &received.store, &self.options)?;
        applied_in::<C>(&received.store, &self.options)?.check(meta)?;
        cut::at("verified");
        let mut files = Vec::new();
        for (piece, arrival) in self.files {
            let file = match arrival {
                Arrival::Here(file) => file,
                Arrival::Missing(incoming) => {
                    let file = incoming.file()?;
                    received.files.push((piece.clone(), incoming));
                    file
                }
            };
            files.push((piece, file));
        }
        Ok(SnapshotFiles {
            files: Arc::new(files),
            received: Some(Arc::new(received)),
        })
    }
}
