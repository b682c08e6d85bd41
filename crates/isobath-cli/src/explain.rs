//! The engine's errors in the command's words: its options, its verbs.

use std::fmt::{self, Display};

use isobath::Error;
use isobath_lab::{LabError, VolumeError};

use crate::output::size;

/// An error of the laboratory, or of the engine behind it.
pub(crate) fn lab(error: &LabError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match error {
        LabError::Engine(error) => engine(error, f),
        LabError::Volume(error) => volume(error, f),
        LabError::Partly { source, stored } => {
            lab(source, f)?;
            write!(f, "; {stored}")
        }
        other => other.fmt(f),
    }
}

/// Names the problem, and the remedy at a shell.
pub(crate) fn engine(error: &Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match error {
        Error::NoSuchTree { name } => write!(
            f,
            "there is no tree {name:?}; `isobath trees list` shows those that exist"
        ),
        Error::NotAStore { .. } => write!(
            f,
            "{error}: nothing was ever completed in it, or all is cut off; remove it, and make, import or restore it again"
        ),
        Error::Memory { source, .. } if source.kind() == std::io::ErrorKind::OutOfMemory => write!(
            f,
            "{error}; where `ulimit -v` limits the address space, this needs 40 GiB of it, of which little is ever used"
        ),
        Error::NeedsRecovery { .. } => write!(f, "{error}: `isobath recover` does that"),
        Error::FileExists { path } => write!(
            f,
            "{} exists already; choose another name or add --force to replace it",
            path.display()
        ),
        Error::BadOption { option, reason } => match flag(option) {
            Some(flag) => write!(f, "{flag}: {reason}"),
            None => error.fmt(f),
        },
        Error::VolumeFull {
            used,
            limit,
            reason,
        } => match &**reason {
            VolumeError::Limit { limit: most, .. } => write!(
                f,
                "no space for a change, with {} of {} that data may take in use, and it may not grow beyond {}: raise --limit, or delete something",
                size(*used),
                size(*limit),
                size(*most)
            ),
            _ => error.fmt(f),
        },
        Error::LogMissing { paths, path } => write!(
            f,
            "{} keeps its log in {}, which does not exist: if it was moved, say where to with --log-path; if it is lost, restore from a backup, or salvage what is left",
            list(paths),
            path.display()
        ),
        Error::NoSeparateLog { paths, path } => write!(
            f,
            "{} has no log outside its own files, so {} cannot be its log: leave out --log-path",
            list(paths),
            path.display()
        ),
        Error::ReaderOverrun { .. } => f.write_str(
            "the process that writes the store has used space again that was still to be read: run the command again",
        ),
        Error::SnapshotTooOld => f.write_str(
            "more was changed while this read than can be kept of what it reads: run it again, or give it more memory with --pool",
        ),
        Error::Poisoned { cause } => {
            f.write_str("a write failed, and nothing more can be changed: ")?;
            engine(cause, f)
        }
        Error::Volume(error) => volume(error, f),
        other => other.fmt(f),
    }
}

/// The same of what a store lies on.
pub(crate) fn volume(error: &VolumeError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match error {
        VolumeError::NotFound { path } => write!(
            f,
            "{} does not exist; check the name, or make a store there with --create (`isobath put`, `load`, `import`, `files import`)",
            path.display()
        ),
        VolumeError::NoDirectory { path, directory } => write!(
            f,
            "the directory {} does not exist, and so no {}; check the name, or make the directory first",
            directory.display(),
            path.display()
        ),
        VolumeError::Locked { .. } => write!(f, "{error}; --wait 10s waits for it"),
        VolumeError::Limit { limit, .. } => write!(
            f,
            "the store may not grow beyond {}: raise --limit, or delete something",
            size(*limit)
        ),
        other => other.fmt(f),
    }
}

/// The option of the command that sets one of the engine's.
fn flag(option: &str) -> Option<&'static str> {
    Some(match option {
        "volume_limit_bytes" => "--limit",
        "pool_bytes" => "--pool",
        "workers" => "--workers",
        "tasks_per_worker" => "--tasks",
        "depth_per_worker" => "--depth",
        "segment_bytes" => "--segment",
        "fill_factor" => "--fill-factor",
        "cleaning_policy" => "--policy",
        "log_bytes" => "--log",
        "log_path" => "--log-path",
        _ => return None,
    })
}

fn list(paths: &[std::path::PathBuf]) -> String {
    let names: Vec<_> = paths.iter().map(|p| p.display().to_string()).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Told(Error);

    impl Display for Told {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            engine(&self.0, f)
        }
    }

    #[test]
    fn options_have_the_names_that_a_shell_knows() {
        let told = |error| Told(error).to_string();
        for bad in [
            isobath::Options::new().pool_bytes(1),
            isobath::Options::new().volume_limit_bytes(Some(1 << 20)),
            isobath::Options::new().workers(0),
        ] {
            let error = isobath::Store::in_memory(&bad).err().unwrap();
            let text = told(error.into());
            assert!(text.starts_with("--"), "{text}");
            assert!(!text.contains('_'), "{text}");
        }
        let reason = VolumeError::Limit {
            limit: 10 << 30,
            asked: 11 << 30,
        };
        let full = Error::VolumeFull {
            used: 8 << 30,
            limit: 9 << 30,
            reason: reason.into(),
        };
        let text = told(full);
        assert!(
            text.contains("--limit") && text.contains("8.0 GiB"),
            "{text}"
        );
    }
}
