//! Errors of file trees.

use std::io;
use std::path::{Path, PathBuf};

/// Why an operation on a file tree failed. Paths are shown as text; bytes that are no UTF-8 appear
/// as replacement characters.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] isobath::Error),
    /// There is nothing of that name.
    #[error("{}: there is no such file or directory", shown(path))]
    NotFound {
        /// The path.
        path: Vec<u8>,
    },
    /// The name is taken.
    #[error("{}: exists already", shown(path))]
    Exists {
        /// The path.
        path: Vec<u8>,
    },
    /// A directory is needed, also of each part of a path but the last. Symbolic links are not
    /// followed.
    #[error("{}: is no directory", shown(path))]
    NotADirectory {
        /// The path.
        path: Vec<u8>,
    },
    /// Directories can neither be read as files, nor linked, nor removed as files are.
    #[error("{}: is a directory", shown(path))]
    IsADirectory {
        /// The path.
        path: Vec<u8>,
    },
    /// A directory that is to be removed or replaced has entries.
    #[error("{}: the directory is not empty", shown(path))]
    NotEmpty {
        /// The path.
        path: Vec<u8>,
    },
    /// A regular file is needed.
    #[error("{}: is no regular file", shown(path))]
    NotAFile {
        /// The path.
        path: Vec<u8>,
    },
    /// A symbolic link is needed.
    #[error("{}: is no symbolic link", shown(path))]
    NotALink {
        /// The path.
        path: Vec<u8>,
    },
    /// The path, a name in it, or a link's target cannot be stored.
    #[error("{}: {reason}", shown(path))]
    BadName {
        /// The path.
        path: Vec<u8>,
        /// The problem with it.
        reason: &'static str,
    },
    /// A directory cannot be moved into itself.
    #[error("{} cannot be moved to {}, which is inside it", shown(from), shown(to))]
    IntoItself {
        /// The directory.
        from: Vec<u8>,
        /// Its intended path.
        to: Vec<u8>,
    },
    /// A file would have more bytes than offsets can name.
    #[error("{}: a file has at most {limit} bytes", shown(path))]
    TooLarge {
        /// The path.
        path: Vec<u8>,
        /// Most bytes of a file.
        limit: u64,
    },
    /// A file's contents do not fit into memory as a whole.
    #[error(
        "{}: its {bytes} bytes do not fit into memory; read it in parts",
        shown(path)
    )]
    OutOfMemory {
        /// The path.
        path: Vec<u8>,
        /// The file's bytes.
        bytes: u64,
    },
    /// A file has as many names as can be counted.
    #[error("{}: a file has at most {} names", shown(path), u32::MAX)]
    TooManyLinks {
        /// The path.
        path: Vec<u8>,
    },
    /// Contents are not those that were stored.
    #[error(
        "{}: the contents at byte {offset} have the CRC-32C {found:08x} and were stored with {expected:08x}; restore the file from a backup",
        shown(path)
    )]
    Checksum {
        /// The file.
        path: Vec<u8>,
        /// The offset of the verified bytes.
        offset: u64,
        /// The checksum of the bytes read.
        found: u32,
        /// The checksum that was stored.
        expected: u32,
    },
    /// Records of the tree contradict each other, or are no such records.
    #[error("{}: {what}; `isobath files check` says more", shown(path))]
    Corrupt {
        /// The path, or what the record belongs to.
        path: Vec<u8>,
        /// The problem.
        what: &'static str,
    },
    /// The tree of the store holds no files.
    #[error("the tree {name:?} holds no files: it was not made for them")]
    NotFiles {
        /// The tree's name.
        name: String,
    },
    /// The tree was written by a newer version.
    #[error("the files have format version {found}; this version reads {known}: use a newer one")]
    NewerFormat {
        /// The version found.
        found: u32,
        /// The version that is read.
        known: u32,
    },
    /// The file system outside refused or failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Host {
        /// The attempted action, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Something that cannot be imported, or a place that cannot be exported or mounted to.
    #[error("{}: {reason}", path.display())]
    Refused {
        /// The file or directory.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// The caller asked to stop; nothing is left of the begun work.
    #[error("interrupted")]
    Interrupted,
}

impl From<isobath::TransactionError> for FilesError {
    fn from(error: isobath::TransactionError) -> FilesError {
        FilesError::Engine(error.into())
    }
}

impl FilesError {
    /// For `map_err`: what the system refused, and where.
    pub(crate) fn host(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FilesError {
        let path = path.to_path_buf();
        move |source| FilesError::Host {
            action,
            path,
            source,
        }
    }

    pub(crate) fn refused(path: &Path, reason: impl Into<String>) -> FilesError {
        FilesError::Refused {
            path: path.to_path_buf(),
            reason: reason.into(),
        }
    }

    pub(crate) fn corrupt(path: &[u8], what: &'static str) -> FilesError {
        FilesError::Corrupt {
            path: path.to_vec(),
            what,
        }
    }
}

impl From<FilesError> for io::Error {
    fn from(error: FilesError) -> io::Error {
        io::Error::other(error)
    }
}

/// A path as text.
fn shown(path: &[u8]) -> String {
    match path {
        b"" => "/".to_owned(),
        path => String::from_utf8_lossy(path).into_owned(),
    }
}
