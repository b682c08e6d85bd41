//! Mounted trees, as the kernel lists them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::FilesError;

/// What the sources of mounted file trees begin with in the kernel's list; the store follows. Their
/// type is `fuse`, with or without a subtype, as they were mounted by root or by `fusermount3`.
pub(crate) const SOURCE_PREFIX: &str = "isobath-files:";

/// Whether a file tree is mounted at `path`, whether or not its process still serves it.
#[must_use]
pub fn is_mounted(path: &Path) -> bool {
    // Bytes: a mount point, of anything on the machine, need not be UTF-8.
    let list = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let path = resolve(path);
    let mut lines = list.split(|byte| *byte == b'\n').filter_map(mount_point);
    lines.any(|at| at == path)
}

/// The absolute path without symbolic links, also of a file that does not exist yet or does not
/// answer any more, as the mount point of a process that was killed: then of its directory. Two
/// names of one file have the same, but for hard links.
#[must_use]
pub fn resolve(path: &Path) -> PathBuf {
    // The kernel follows symbolic links to the mount point without asking the file system mounted
    // there.
    if let Ok(real) = std::fs::canonicalize(path) {
        return real;
    }
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let (Some(above), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return absolute;
    };
    let above = std::fs::canonicalize(above).unwrap_or_else(|_| above.to_path_buf());
    above.join(name)
}

/// The mount point of a file tree in a line of the kernel's list.
fn mount_point(line: &[u8]) -> Option<PathBuf> {
    let mut fields = line.split(|byte| *byte == b' ');
    let point = fields.nth(4)?;
    // Optional fields end with a dash; no other field is one, for the kernel writes spaces as
    // `\040`.
    let mut behind = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, source) = (behind.next()?, behind.next()?);
    if !kind.starts_with(b"fuse") || !source.starts_with(SOURCE_PREFIX.as_bytes()) {
        return None;
    }
    Some(OsString::from_vec(unescaped(point)).into())
}

/// A field of the kernel's list, in which some bytes are a backslash and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        let byte = (*first == b'\\').then(|| octal(behind)).flatten();
        plain.push(byte.unwrap_or(*first));
        rest = match byte {
            Some(_) => behind.get(3..).unwrap_or_default(),
            None => behind,
        };
    }
    plain
}

/// The byte that the first three octal digits are.
fn octal(digits: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(digits.get(..3)?).ok()?;
    u8::from_str_radix(digits, 8).ok()
}

/// Takes a mounted tree off its mount point; the process that serves it ends. If that process
/// was killed before, the rest of the mount is removed, also while programs are in it.
///
/// # Errors
///
/// [`FilesError::Refused`] if none is mounted there, or where programs use it: nothing is
/// changed then.
pub fn unmount(path: &Path) -> Result<(), FilesError> {
    if !is_mounted(path) {
        return Err(FilesError::refused(path, "no files are mounted there"));
    }
    let at = resolve(path);
    let mut done = rustix::mount::unmount(&at, UnmountFlags::empty());
    if done == Err(Errno::BUSY) && is_dead(path) {
        done = rustix::mount::unmount(&at, UnmountFlags::DETACH);
    }
    match done {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => by_helper(&at, is_dead(path)),
        Err(Errno::BUSY) => Err(busy(path)),
        Err(error) => Err(FilesError::host("unmount", path)(error.into())),
    }
}

/// Whether the process that served a mounted tree has ended. The kernel may have attributes of the
/// mount point in memory, but asks for those of the file system each time.
pub(crate) fn is_dead(path: &Path) -> bool {
    matches!(rustix::fs::statvfs(path), Err(Errno::NOTCONN))
}

fn busy(path: &Path) -> FilesError {
    FilesError::refused(path, "is busy; end what uses it and try again")
}

/// Without root's rights the helper of the FUSE project unmounts what its user has mounted.
fn by_helper(path: &Path, is_dead: bool) -> Result<(), FilesError> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(is_dead.then_some("-z")).arg(path);
    let output = command
        .output()
        .map_err(FilesError::host("run fusermount3 for", path))?;
    match output.status.success() {
        true => Ok(()),
        false if is_mounted(path) => Err(busy(path)),
        false => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_mounts_are_understood() {
        let other = b"21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw";
        assert_eq!(mount_point(other), None);
        assert_eq!(mount_point(b"rubbish"), None);
        assert_eq!(mount_point(b""), None);
        for (field, point) in [
            (&b"/mnt/a\\040b"[..], &b"/mnt/a b"[..]),
            (b"/mnt/\\040-\\040", b"/mnt/ - "),
            (b"/mnt/n\\012l\\134\\043", b"/mnt/n\nl\\#"),
            (b"/mnt/\\134040", b"/mnt/\\040"),
            (b"/mnt/\xff\\", b"/mnt/\xff\\"),
        ] {
            let line = [
                b"90 21 0:50 / ",
                field,
                b" ro - fuse isobath-files:/my.iso ro",
            ]
            .concat();
            let expected = PathBuf::from(OsString::from_vec(point.to_vec()));
            assert_eq!(mount_point(&line), Some(expected));
        }
    }

    #[test]
    fn links_lead_to_the_mount_point() {
        let directory = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(directory.path()).unwrap();
        std::fs::create_dir_all(root.join("mnt/photos")).unwrap();
        std::os::unix::fs::symlink("mnt/photos", root.join("link")).unwrap();
        for path in ["mnt/photos", "mnt/photos/", "link", "mnt/../mnt/photos/."] {
            assert_eq!(resolve(&root.join(path)), root.join("mnt/photos"), "{path}");
        }
        assert_eq!(
            resolve(&root.join("link/none")),
            root.join("mnt/photos/none")
        );
    }
}
