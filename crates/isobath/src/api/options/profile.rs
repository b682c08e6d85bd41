//! Options from a drive's profile.

use std::path::Path;

use isobath_model::advise::open_settings;
use isobath_model::profile::DeviceProfile;

use super::{MAX_DEPTH, MAX_TASKS, Options};
use crate::error::OpenError;

impl Options {
    /// Takes depth, tasks and segment size from the profile of the drive that `isobath probe`
    /// wrote, for as many workers as are set so far; options that are set afterwards win. Fitting
    /// takes some milliseconds. Needs the feature `profile`.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), isobath::Error> {
    /// let options = isobath::Options::new().profile("isobath-profile.json".as_ref())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`OpenError::BadOption`] if the file cannot be read, is no profile of this version, or has
    /// too few points.
    pub fn profile(mut self, path: &Path) -> Result<Options, OpenError> {
        let wrong = |reason: String| OpenError::BadOption {
            option: "profile",
            reason: format!("{}: {reason}", path.display()),
        };
        let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
        let profile = DeviceProfile::from_json(&text).map_err(|e| wrong(e.to_string()))?;
        let workers = u32::try_from(self.workers).unwrap_or(u32::MAX);
        let settings = open_settings(&profile, workers).map_err(|e| wrong(e.to_string()))?;
        self.depth = settings.depth_per_worker.min(MAX_DEPTH);
        self.tasks = (settings.tasks_per_worker as usize).min(MAX_TASKS);
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/examples/profile.json"
    );

    #[test]
    fn a_profile_sets_what_the_drive_decides_and_nothing_else() {
        let plain = Options::new().workers(2);
        let set = plain.clone().profile(EXAMPLE.as_ref()).unwrap();
        let one = Options::new().workers(1).profile(EXAMPLE.as_ref()).unwrap();
        assert!(set.depth > 1 && set.tasks >= set.depth as usize);
        // The drive's depth is divided between the workers.
        assert_eq!(one.depth.div_ceil(2), set.depth);
        assert!(set.config().is_ok());
        let back = Options {
            depth: plain.depth,
            tasks: plain.tasks,
            segment_bytes: plain.segment_bytes,
            ..set.clone()
        };
        assert_eq!(format!("{back:?}"), format!("{plain:?}"));
        assert_eq!(set.depth_per_worker(7).depth, 7);
    }

    #[test]
    fn a_store_is_opened_with_what_its_profile_says() {
        let profile = DeviceProfile::from_json(&std::fs::read_to_string(EXAMPLE).unwrap()).unwrap();
        let said = open_settings(&profile, 2).unwrap();
        let pool = 64 << 20;
        let options = Options::new().workers(2).pool_bytes(pool);
        let options = options.profile(EXAMPLE.as_ref()).unwrap();
        let config = options.config().unwrap();
        assert_eq!(config.depth, said.depth_per_worker);
        assert!(config.tasks <= said.tasks_per_worker as usize && config.tasks > 0);
        assert_eq!(config.sizes.bytes, crate::shared::SEGMENT_BYTES);

        let dir = tempfile::tempdir().unwrap();
        let path = [dir.path().join("s.iso")];
        let store = crate::Store::create(&path, &options).unwrap();
        assert_eq!(store.workers(), 2);
        let tree = store.create_tree("t").unwrap();
        tree.insert(b"k", b"v").unwrap();
        store.close().unwrap();
        let store = crate::Store::open(&path, &options).unwrap();
        let found = store.tree("t").unwrap().get(b"k").unwrap();
        assert_eq!(found.as_deref(), Some(&b"v"[..]));
        store.close().unwrap();
    }

    #[test]
    fn a_file_that_is_no_profile_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.json");
        let refused = || {
            let error = Options::new().profile(&path).unwrap_err().to_string();
            assert!(error.contains("p.json"), "{error}");
            error
        };
        refused();
        std::fs::write(&path, "{}").unwrap();
        assert!(refused().contains("not a device profile"));
        let newer = r#"{"format": "isobath-device-profile", "version": 99}"#;
        std::fs::write(&path, newer).unwrap();
        assert!(refused().contains("version 99"));
        // A probe that was interrupted before its first point.
        let text = std::fs::read_to_string(EXAMPLE).unwrap();
        let at = text.find("\"points\": [").unwrap();
        std::fs::write(&path, format!("{}\"points\": []}}", &text[..at])).unwrap();
        assert!(refused().contains("measure"));
    }
}
