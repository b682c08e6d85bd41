//! The files of a store, as users name them.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The files or block devices of a store: one path, or several as a slice, an array or a `Vec`.
/// Several are striped, in their order.
pub trait StorePaths {
    /// The paths, in order.
    fn store_paths(&self) -> Vec<PathBuf>;
}

macro_rules! one_path {
    ($($path:ty),+) => {$(
        impl StorePaths for $path {
            fn store_paths(&self) -> Vec<PathBuf> {
                vec![PathBuf::from(self)]
            }
        }
    )+};
}

one_path!(str, String, Path, PathBuf, OsStr, OsString);

impl<P: AsRef<Path>> StorePaths for [P] {
    fn store_paths(&self) -> Vec<PathBuf> {
        self.iter().map(|path| path.as_ref().to_owned()).collect()
    }
}

impl<P: AsRef<Path>, const N: usize> StorePaths for [P; N] {
    fn store_paths(&self) -> Vec<PathBuf> {
        self.as_slice().store_paths()
    }
}

impl<P: AsRef<Path>> StorePaths for Vec<P> {
    fn store_paths(&self) -> Vec<PathBuf> {
        self.as_slice().store_paths()
    }
}

impl<P: StorePaths + ?Sized> StorePaths for &P {
    fn store_paths(&self) -> Vec<PathBuf> {
        (**self).store_paths()
    }
}
