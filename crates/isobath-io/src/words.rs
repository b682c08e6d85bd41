//! Sizes and reasons in messages.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Bytes as a message shows them: "512 B", "1.5 MiB".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// Units above a byte; each is 1024 of the one before.
const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

impl ByteSize {
    /// At least `bytes`, and a number that is enough where it is typed as it is shown.
    #[must_use]
    pub fn at_least(bytes: u64) -> ByteSize {
        let unit = u128::from(Self::unit(bytes).1);
        let tenths = (u128::from(bytes) * 10).div_ceil(unit);
        let shown = (tenths * unit).div_ceil(10);
        ByteSize(u64::try_from(shown).unwrap_or(bytes))
    }

    /// The unit's place in [`UNITS`], from 1, and its bytes.
    fn unit(bytes: u64) -> (usize, u64) {
        let power = bytes.max(1).ilog2() / 10;
        (power as usize, 1 << (10 * power))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 1024.0 of a unit is shown as one of the next.
        let (power, unit) = Self::unit(self.0.saturating_add(self.0 / 20_480));
        match power.checked_sub(1).and_then(|at| UNITS.get(at)) {
            None => write!(f, "{} B", self.0),
            Some(name) => write!(f, "{:.1} {name}", self.0 as f64 / unit as f64),
        }
    }
}

/// Two sizes that are not the same and are shown so: in bytes where their units hide the
/// difference.
pub fn two_sizes(one: u64, other: u64) -> (String, String) {
    let shown = (ByteSize(one).to_string(), ByteSize(other).to_string());
    match shown.0 == shown.1 {
        true => (format!("{one} bytes"), format!("{other} bytes")),
        false => shown,
    }
}

/// Why the system refused `path`: of a missing one, whether that is the file or the directory
/// that it is to be in; of a file that is too long, what limits it.
pub fn reason(path: &Path, error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::FileTooLarge {
        return "the system lets it become no longer; raise the limit on the length of files (ulimit -f)"
            .to_owned();
    }
    if error.kind() != io::ErrorKind::NotFound {
        return error.to_string();
    }
    match (missing_directory(path), dangling_target(path)) {
        (Some(directory), _) => format!("there is no directory {}", directory.display()),
        (None, Some(target)) => format!(
            "it is a symbolic link to {}, which does not exist",
            target.display()
        ),
        (None, None) => "it does not exist".to_owned(),
    }
}

/// The target of `path`, if it is a symbolic link that leads to nothing.
pub(crate) fn dangling_target(path: &Path) -> Option<PathBuf> {
    if path.exists() {
        return None;
    }
    std::fs::read_link(path).ok()
}

/// The first directory on the way to `path` that does not exist.
pub(crate) fn missing_directory(path: &Path) -> Option<&Path> {
    path.ancestors()
        .skip(1)
        .filter(|directory| !directory.as_os_str().is_empty() && !directory.exists())
        .last()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_one_spelling() {
        let shown = |bytes| ByteSize(bytes).to_string();
        assert_eq!(shown(0), "0 B");
        assert_eq!(shown(1023), "1023 B");
        assert_eq!(shown(1024), "1.0 KiB");
        assert_eq!(shown(3 << 29), "1.5 GiB");
        assert_eq!(shown((1 << 20) - 1), "1.0 MiB");
        assert_eq!(shown((1 << 20) - 51), "1.0 MiB");
        assert_eq!(shown((1 << 20) - 52), "1023.9 KiB");
        assert_eq!(shown(u64::MAX), "16.0 EiB");
        assert_eq!(ByteSize::at_least(1025).to_string(), "1.1 KiB");
        assert_eq!(ByteSize::at_least(6 << 20), ByteSize(6 << 20));
        assert_eq!(ByteSize::at_least(1_171_456).to_string(), "1.2 MiB");
        assert_eq!(ByteSize::at_least(u64::MAX), ByteSize(u64::MAX));
    }

    #[test]
    fn sizes_that_differ_are_shown_to_differ() {
        assert_eq!(two_sizes(1 << 20, 2 << 20).0, "1.0 MiB");
        assert_eq!(two_sizes(1 << 20, (1 << 20) - 1).1, "1048575 bytes");
    }

    #[test]
    fn what_is_missing_is_the_file_or_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let error = || io::Error::from(io::ErrorKind::NotFound);
        let file = dir.path().join("none");
        assert_eq!(reason(&file, &error()), "it does not exist");
        let below = file.join("a").join("b");
        let told = reason(&below, &error());
        assert_eq!(told, format!("there is no directory {}", file.display()));
        assert_eq!(reason(Path::new("none"), &error()), "it does not exist");
        std::os::unix::fs::symlink("gone", &file).unwrap();
        let told = reason(&file, &error());
        assert_eq!(told, "it is a symbolic link to gone, which does not exist");
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(reason(&below, &denied).contains("ermission"));
    }
}
