//! Result codes and messages.

use std::ffi::{CStr, c_char};

use isobath_files::FilesError;

use crate::abi::status::{isobath_status, of};
use crate::message;

/// What every function that can fail returns. `kvs_files_last_error` has the message.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum kvs_files_result {
    /// Done.
    KVS_FILES_OK = 0,
    /// There is nothing of that name, or no tree of that name in the store.
    KVS_FILES_ERR_NOT_FOUND = 1,
    /// The name is taken.
    KVS_FILES_ERR_EXISTS = 2,
    /// A part of the path is no directory, or a directory is needed. Symbolic links are not
    /// followed.
    KVS_FILES_ERR_NOT_A_DIRECTORY = 3,
    /// A directory cannot be read, linked or removed as a file is.
    KVS_FILES_ERR_IS_A_DIRECTORY = 4,
    /// The directory has entries.
    KVS_FILES_ERR_NOT_EMPTY = 5,
    /// A regular file is needed.
    KVS_FILES_ERR_NOT_A_FILE = 6,
    /// A symbolic link is needed.
    KVS_FILES_ERR_NOT_A_LINK = 7,
    /// A name has more than 255 bytes, or the path contains `..`, or names the root where that
    /// cannot be; or a link's target is empty or has more than 4095 bytes.
    KVS_FILES_ERR_NAME = 8,
    /// A directory cannot be moved into itself.
    KVS_FILES_ERR_INTO_ITSELF = 9,
    /// A file has more bytes than offsets can name.
    KVS_FILES_ERR_TOO_LARGE = 10,
    /// A file has as many names as can be counted.
    KVS_FILES_ERR_TOO_MANY_LINKS = 11,
    /// Contents have another CRC-32C than they were stored with; the message names the file.
    KVS_FILES_ERR_CHECKSUM = 12,
    /// Records of the tree, or pages of the store, are corrupt.
    KVS_FILES_ERR_CORRUPT = 13,
    /// The tree of that name holds something else than files, or files of a newer version.
    KVS_FILES_ERR_NOT_FILES = 14,
    /// The file system outside refused or failed.
    KVS_FILES_ERR_HOST = 15,
    /// Sockets, pipes and devices cannot be stored; exports go to names that are free.
    KVS_FILES_ERR_REFUSED = 16,
    /// A pointer that must not be NULL is.
    KVS_FILES_ERR_NULL = 17,
    /// An argument makes no sense: an index beyond the last one, an offset beyond the end, an
    /// unknown flag.
    KVS_FILES_ERR_ARGUMENT = 18,
    /// The buffer is too small; the needed length was written.
    KVS_FILES_ERR_BUFFER = 19,
    /// The device's handle is NULL, closed or none, or the store was closed.
    KVS_FILES_ERR_CLOSED = 20,
    /// The store is open for reading only.
    KVS_FILES_ERR_READ_ONLY = 21,
    /// The store has no space left.
    KVS_FILES_ERR_FULL = 22,
    /// Other threads have changed the same names each time that the change was tried: try again.
    KVS_FILES_ERR_BUSY = 23,
    /// More was changed since the map was made than the store can keep of what it had: make it
    /// again.
    KVS_FILES_ERR_TOO_OLD = 24,
    /// Reading or writing the store failed, now or before.
    KVS_FILES_ERR_IO = 25,
    /// The library failed: please report it.
    KVS_FILES_ERR_PANIC = 26,
    /// Any other error; the message says which.
    KVS_FILES_ERR_OTHER = 27,
}

use kvs_files_result::*;

/// Names of the codes, in their order.
const NAMES: [&CStr; 28] = [
    c"KVS_FILES_OK",
    c"KVS_FILES_ERR_NOT_FOUND",
    c"KVS_FILES_ERR_EXISTS",
    c"KVS_FILES_ERR_NOT_A_DIRECTORY",
    c"KVS_FILES_ERR_IS_A_DIRECTORY",
    c"KVS_FILES_ERR_NOT_EMPTY",
    c"KVS_FILES_ERR_NOT_A_FILE",
    c"KVS_FILES_ERR_NOT_A_LINK",
    c"KVS_FILES_ERR_NAME",
    c"KVS_FILES_ERR_INTO_ITSELF",
    c"KVS_FILES_ERR_TOO_LARGE",
    c"KVS_FILES_ERR_TOO_MANY_LINKS",
    c"KVS_FILES_ERR_CHECKSUM",
    c"KVS_FILES_ERR_CORRUPT",
    c"KVS_FILES_ERR_NOT_FILES",
    c"KVS_FILES_ERR_HOST",
    c"KVS_FILES_ERR_REFUSED",
    c"KVS_FILES_ERR_NULL",
    c"KVS_FILES_ERR_ARGUMENT",
    c"KVS_FILES_ERR_BUFFER",
    c"KVS_FILES_ERR_CLOSED",
    c"KVS_FILES_ERR_READ_ONLY",
    c"KVS_FILES_ERR_FULL",
    c"KVS_FILES_ERR_BUSY",
    c"KVS_FILES_ERR_TOO_OLD",
    c"KVS_FILES_ERR_IO",
    c"KVS_FILES_ERR_PANIC",
    c"KVS_FILES_ERR_OTHER",
];

/// Why a call fails.
pub(crate) enum Failure {
    Null,
    Code(kvs_files_result, String),
    Files(FilesError),
}

impl From<FilesError> for Failure {
    fn from(error: FilesError) -> Failure {
        Failure::Files(error)
    }
}

impl Failure {
    pub(crate) fn argument(reason: impl Into<String>) -> Failure {
        Failure::Code(KVS_FILES_ERR_ARGUMENT, reason.into())
    }

    /// Keeps the message for the calling thread; the code.
    pub(crate) fn tell(self) -> kvs_files_result {
        match self {
            Failure::Null => {
                message::set("a pointer that must not be NULL is");
                KVS_FILES_ERR_NULL
            }
            Failure::Code(code, reason) => {
                message::set(reason);
                code
            }
            Failure::Files(error) => {
                message::set(error.to_string());
                code(&error)
            }
        }
    }
}

fn code(error: &FilesError) -> kvs_files_result {
    match error {
        FilesError::Engine(error) => of_engine(error),
        FilesError::NotFound { .. } => KVS_FILES_ERR_NOT_FOUND,
        FilesError::Exists { .. } => KVS_FILES_ERR_EXISTS,
        FilesError::NotADirectory { .. } => KVS_FILES_ERR_NOT_A_DIRECTORY,
        FilesError::IsADirectory { .. } => KVS_FILES_ERR_IS_A_DIRECTORY,
        FilesError::NotEmpty { .. } => KVS_FILES_ERR_NOT_EMPTY,
        FilesError::NotAFile { .. } => KVS_FILES_ERR_NOT_A_FILE,
        FilesError::NotALink { .. } => KVS_FILES_ERR_NOT_A_LINK,
        FilesError::BadName { .. } => KVS_FILES_ERR_NAME,
        FilesError::IntoItself { .. } => KVS_FILES_ERR_INTO_ITSELF,
        FilesError::TooLarge { .. } => KVS_FILES_ERR_TOO_LARGE,
        FilesError::TooManyLinks { .. } => KVS_FILES_ERR_TOO_MANY_LINKS,
        FilesError::Checksum { .. } => KVS_FILES_ERR_CHECKSUM,
        FilesError::Corrupt { .. } => KVS_FILES_ERR_CORRUPT,
        FilesError::NotFiles { .. } | FilesError::NewerFormat { .. } => KVS_FILES_ERR_NOT_FILES,
        FilesError::Host { .. } => KVS_FILES_ERR_HOST,
        FilesError::Refused { .. } => KVS_FILES_ERR_REFUSED,
        _ => KVS_FILES_ERR_OTHER,
    }
}

fn of_engine(error: &isobath::Error) -> kvs_files_result {
    match of(error) {
        isobath_status::ISOBATH_NO_TREE => KVS_FILES_ERR_NOT_FOUND,
        isobath_status::ISOBATH_ARGUMENT => KVS_FILES_ERR_ARGUMENT,
        isobath_status::ISOBATH_CLOSED => KVS_FILES_ERR_CLOSED,
        isobath_status::ISOBATH_READ_ONLY => KVS_FILES_ERR_READ_ONLY,
        isobath_status::ISOBATH_FULL => KVS_FILES_ERR_FULL,
        isobath_status::ISOBATH_CONFLICT => KVS_FILES_ERR_BUSY,
        isobath_status::ISOBATH_TOO_OLD => KVS_FILES_ERR_TOO_OLD,
        isobath_status::ISOBATH_CORRUPT => KVS_FILES_ERR_CORRUPT,
        isobath_status::ISOBATH_IO | isobath_status::ISOBATH_POISONED => KVS_FILES_ERR_IO,
        _ => KVS_FILES_ERR_OTHER,
    }
}

/// The message of the calling thread's last call that failed, in a sentence for people. Valid until
/// the thread's next call that fails; never NULL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_files_last_error() -> *const c_char {
    message::get()
}

/// The name of a result code, such as "KVS_FILES_OK"; never NULL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_files_result_name(result: i32) -> *const c_char {
    let name = usize::try_from(result).ok().and_then(|at| NAMES.get(at));
    name.map_or(c"no result of kvs_files".as_ptr(), |name| name.as_ptr())
}
