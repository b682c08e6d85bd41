//! The target of a probe: opening it without harming anything, filling it, and restoring it.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use isobath_io::{DirectMode, Volume, VolumeOptions};
use isobath_model::profile::TargetKind;

use crate::machine::in_memory;
use crate::{LabError, free_space};

/// The kind of the path, which decides the probe's treatment of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Intent {
    /// A test file is made there, written in full, and removed.
    TestFile(PathBuf),
    /// The file exists: it is read, never written.
    ReadOnly(PathBuf),
    /// The block device is overwritten.
    Overwrite(PathBuf),
}

/// Least bytes that a probe runs on: below, everything is some cache.
pub(super) const MIN_BYTES: u64 = 64 << 20;
/// Space left on the file system for others.
const SPARE_BYTES: u64 = 256 << 20;
/// The bytes zeroed at the start of a device afterwards: our label, so that the device counts as
/// empty again.
const LABEL_BYTES: usize = 1 << 20;

/// Decides what to do with a path. Nothing is written.
///
/// # Errors
/// [`LabError::Input`] for what is neither file, directory nor block device, and for sparse or tiny
/// files.
pub fn intent(path: &Path) -> Result<Intent, LabError> {
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Intent::TestFile(path.to_path_buf()));
        }
        Err(e) => return Err(LabError::io("look up", path)(e)),
    };
    let kind = meta.file_type();
    if kind.is_dir() {
        let name = format!(".isobath-probe-{}.tmp", std::process::id());
        return Ok(Intent::TestFile(path.join(name)));
    }
    if kind.is_block_device() {
        return Ok(Intent::Overwrite(path.to_path_buf()));
    }
    if !kind.is_file() {
        return Err(LabError::input(
            path,
            "it is neither a file, nor a directory, nor a block device; name one of these",
        ));
    }
    if meta.len() < MIN_BYTES {
        return Err(LabError::input(
            path,
            format!(
                "it has {} bytes; a probe needs at least {MIN_BYTES}; name a directory, and a test file is made there",
                meta.len()
            ),
        ));
    }
    // The kernel counts in sectors of 512 bytes. Holes are answered without the drive.
    if meta.blocks() * 512 < meta.len() / 10 * 9 {
        return Err(LabError::input(
            path,
            "it is sparse or compressed: reads of its holes never reach the drive; name a directory, and a test file is made there",
        ));
    }
    Ok(Intent::ReadOnly(path.to_path_buf()))
}

/// An open target.
pub(crate) struct Opened {
    pub(super) volume: Volume,
    pub(super) bytes: u64,
    pub(super) kind: TargetKind,
    /// Reads alone are allowed.
    pub(super) read_only: bool,
    /// A device whose label must go at the end.
    wipe: Option<PathBuf>,
}

impl Opened {
    /// Opens the target. A test file has no name any more when this returns, so nothing is left
    /// behind however the process ends.
    pub(super) fn open(intent: &Intent, bytes: u64, destroy: bool) -> Result<Opened, LabError> {
        let options = VolumeOptions::new().direct(DirectMode::Required);
        let (Intent::TestFile(path) | Intent::ReadOnly(path) | Intent::Overwrite(path)) = intent;
        let paths = std::slice::from_ref(path);
        let opened = |volume, kind| Opened {
            volume,
            bytes,
            kind,
            read_only: matches!(intent, Intent::ReadOnly(_)),
            wipe: None,
        };
        match intent {
            Intent::TestFile(path) => {
                let directory = path.parent().filter(|p| !p.as_os_str().is_empty());
                let directory = directory.unwrap_or(Path::new("."));
                refuse_memory(directory)?;
                let needed = bytes.saturating_add(SPARE_BYTES);
                let free = free_space(path)?;
                if free.available_bytes < needed {
                    return Err(LabError::NoSpace {
                        path: directory.to_path_buf(),
                        available_bytes: free.available_bytes,
                        needed_bytes: needed,
                        option: "PATH, or probe less with --size",
                    });
                }
                let made = Volume::create(paths, &options);
                let volume = made.map_err(|e| explain(path, e.into()))?;
                fs::remove_file(path).map_err(LabError::io("unlink", path))?;
                volume.grow(bytes)?;
                Ok(opened(volume, TargetKind::File))
            }
            Intent::ReadOnly(path) => {
                refuse_memory(path)?;
                let made = Volume::open_unlabelled(paths, &options);
                let volume = made.map_err(|e| explain(path, e.into()))?;
                let mut opened = opened(volume, TargetKind::File);
                opened.bytes = bytes.min(opened.volume.len()) / 4096 * 4096;
                Ok(opened)
            }
            Intent::Overwrite(path) => {
                let made = Volume::create(paths, &options.overwrite_device(destroy));
                let volume = made.map_err(|e| explain(path, e.into()))?;
                // From here on the device carries our label, whatever fails.
                let mut opened = opened(volume, TargetKind::BlockDevice);
                opened.wipe = Some(path.clone());
                let most = opened.volume.limit().unwrap_or(bytes) / 4096 * 4096;
                opened.bytes = bytes.min(most);
                if opened.volume.len() < opened.bytes {
                    opened.volume.grow(opened.bytes)?;
                }
                Ok(opened)
            }
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(path) = &self.wipe {
            // Best effort: an Isobath label may stay, which names itself.
            if let Ok(mut device) = fs::OpenOptions::new().write(true).open(path) {
                // The device holds nothing that anyone needs.
                let _ = device.write_all(&[0; LABEL_BYTES]);
                let _ = device.sync_all();
            }
        }
    }
}

fn refuse_memory(path: &Path) -> Result<(), LabError> {
    match in_memory(path) {
        None => Ok(()),
        Some(name) => Err(LabError::input(
            path,
            format!(
                "it is on a {name}, which is memory and no drive; probe a path on the drive itself"
            ),
        )),
    }
}

/// Adds what the user can do.
fn explain(path: &Path, error: LabError) -> LabError {
    use isobath_io::VolumeError;
    match error {
        LabError::Volume(VolumeError::DirectRefused { .. }) => LabError::input(
            path,
            "its file system refuses O_DIRECT, so every read would come from memory; probe a path on the drive itself",
        ),
        LabError::Volume(VolumeError::DeviceInUse { what, .. }) => LabError::input(
            path,
            format!(
                "the device is {what}, so it may hold a file system or data; wipe it first, or add --destroy to overwrite it"
            ),
        ),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir() -> tempfile::TempDir {
        tempfile::TempDir::new_in(env!("CARGO_MANIFEST_DIR")).unwrap()
    }

    #[test]
    fn what_a_path_is_decides_what_is_done() {
        let dir = dir();
        let file = dir.path().join("f");
        assert_eq!(intent(&file).unwrap(), Intent::TestFile(file.clone()));
        let Intent::TestFile(inside) = intent(dir.path()).unwrap() else {
            panic!("a directory gets a test file");
        };
        assert_eq!(inside.parent(), Some(dir.path()));
        fs::write(&file, "small").unwrap();
        assert!(intent(&file).unwrap_err().to_string().contains("at least"));
        fs::File::create(&file).unwrap().set_len(MIN_BYTES).unwrap();
        assert!(intent(&file).unwrap_err().to_string().contains("sparse"));
        let null = intent(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(null.contains("neither"), "{null}");
    }

    #[test]
    fn a_test_file_has_no_name() {
        let dir = dir();
        let opened = Opened::open(&intent(dir.path()).unwrap(), MIN_BYTES, false).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        opened.volume.write_at(0, &[7; 4096]).unwrap();
        let mut back = [0; 4096];
        opened.volume.read_at(0, &mut back).unwrap();
        assert_eq!(back, [7; 4096]);
    }

    #[test]
    fn more_than_there_is_space_for() {
        let dir = dir();
        let intent = intent(dir.path()).unwrap();
        for bytes in [1 << 60, u64::MAX] {
            let opened = Opened::open(&intent, bytes, false);
            let error = opened.err().unwrap().to_string();
            assert!(error.contains("--size"), "{error}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn memory_that_looks_like_a_drive_is_refused() {
        let shared = Path::new("/dev/shm");
        if in_memory(shared).is_none() {
            return;
        }
        let dir = tempfile::TempDir::new_in(shared).unwrap();
        let open = |path: &Path| {
            let opened = Opened::open(&intent(path).unwrap(), MIN_BYTES, false);
            opened.err().unwrap().to_string()
        };
        assert!(open(dir.path()).contains("tmpfs"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let file = dir.path().join("f");
        fs::write(&file, vec![1; MIN_BYTES as usize]).unwrap();
        assert!(open(&file).contains("tmpfs"));
        assert!(in_memory(Path::new("/proc")).is_none());
    }

    #[test]
    fn refusals_say_what_to_do() {
        use isobath_io::VolumeError;
        let path = PathBuf::from("/mnt/x");
        let refused = VolumeError::DirectRefused { path: path.clone() };
        assert!(
            explain(&path, refused.into())
                .to_string()
                .contains("O_DIRECT")
        );
        let what = "not zero at its start";
        let used = VolumeError::DeviceInUse {
            path: path.clone(),
            what,
        };
        assert!(
            explain(&path, used.into())
                .to_string()
                .contains("--destroy")
        );
    }
}
