//! Paths in a file tree.

use crate::FilesError;
use crate::layout::{MAX_NAME_BYTES, MAX_TARGET_BYTES};

/// The names of a path from the root on. A path may begin and end with slashes and have several in
/// a row; `.` is left out. `..` is refused: a path names one place, whatever is moved while it is
/// resolved.
///
/// # Errors
///
/// [`FilesError::BadName`].
pub(crate) fn names(path: &[u8]) -> Result<Vec<&[u8]>, FilesError> {
    let mut names = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        if name.is_empty() || name == b"." {
            continue;
        }
        check(name).map_err(|reason| bad(path, reason))?;
        names.push(name);
    }
    Ok(names)
}

/// Whether a name can be stored; why not.
pub(crate) fn check(name: &[u8]) -> Result<(), &'static str> {
    match name {
        b"" | b"." => Err("is no name"),
        b".." => Err("`..` is no name here; write the path from the root"),
        _ if name.len() > MAX_NAME_BYTES => Err("a name has at most 255 bytes"),
        _ if name.contains(&0) => Err("a name has no byte 0"),
        _ if name.contains(&b'/') => Err("a name has no slash"),
        _ => Ok(()),
    }
}

/// Whether a symbolic link can have that target.
pub(crate) fn check_target(path: &[u8], target: &[u8]) -> Result<(), FilesError> {
    match target {
        b"" => Err(bad(path, "a link's target has at least one byte")),
        _ if target.len() > MAX_TARGET_BYTES => {
            Err(bad(path, "a link's target has at most 4095 bytes"))
        }
        _ if target.contains(&0) => Err(bad(path, "a link's target has no byte 0")),
        _ => Ok(()),
    }
}

fn bad(path: &[u8], reason: &'static str) -> FilesError {
    FilesError::BadName {
        path: path.to_vec(),
        reason,
    }
}

/// A directory's path and a name, joined.
pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = directory.to_vec();
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_lists_of_names() {
        let expected: Vec<&[u8]> = vec![b"a", b"b\xff"];
        assert_eq!(names(b"//a/./b\xff/").unwrap(), expected);
        assert_eq!(names(b"/").unwrap(), Vec::<&[u8]>::new());
        assert_eq!(names(b"").unwrap(), Vec::<&[u8]>::new());
        assert!(names(b"a/../b").is_err());
        assert!(names(b"a\0b").is_err());
        assert!(names(&[b'x'; 255]).is_ok());
        assert!(names(&[b'x'; 256]).is_err());
    }

    #[test]
    fn targets_are_bytes_that_a_kernel_takes() {
        assert!(check_target(b"l", b"../somewhere/else").is_ok());
        assert!(check_target(b"l", b"").is_err());
        assert!(check_target(b"l", &[b'x'; 4096]).is_err());
        assert!(check_target(b"l", b"a\0").is_err());
    }
}
