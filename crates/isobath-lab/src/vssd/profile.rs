//! Timing models of drives.

use std::path::Path;

use isobath_flash::ftl::Timing;
use serde::{Deserialize, Serialize};

use crate::LabError;

/// How long a drive's operations take and how much its write cache holds: what paces completions.
///
/// These are models of kinds of drives, as of paper 002's section 4.7, and not of products.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name in reports.
    pub name: String,
    /// Channels, each with its own bus.
    pub channels: u32,
    /// Dies per channel.
    pub dies_per_channel: u32,
    /// Sensing a page of 4 KiB, ns.
    pub read_ns: u64,
    /// Programming a page of 4 KiB, ns; dies × 4 KiB ÷ this is the rate at which the write cache
    /// drains.
    pub program_ns: u64,
    /// Erasing a block, ns.
    pub erase_ns: u64,
    /// Moving a page over a channel, ns.
    pub transfer_ns: u64,
    /// Answering from the drive's memory, ns.
    pub cache_ns: u64,
    /// Bytes of the write cache; a multiple of 4096.
    pub cache_bytes: u64,
}

impl Profile {
    /// The profiles that have names: enterprise flash, consumer flash with a large cache and slow
    /// programs, and a low-latency medium.
    pub const NAMES: [&str; 3] = ["enterprise-tlc", "consumer-qlc", "low-latency"];

    /// A profile by name.
    pub fn named(name: &str) -> Option<Profile> {
        let timing = Timing::nvme_tlc();
        let tlc = Profile {
            name: name.to_owned(),
            channels: timing.channels,
            dies_per_channel: timing.dies_per_channel,
            read_ns: timing.read_ns,
            program_ns: timing.program_ns,
            erase_ns: timing.erase_ns,
            transfer_ns: timing.transfer_ns,
            cache_ns: timing.cache_ns,
            cache_bytes: 4 << 20,
        };
        Some(match name {
            "enterprise-tlc" => tlc,
            "consumer-qlc" => Profile {
                channels: 4,
                dies_per_channel: 4,
                read_ns: 120_000,
                program_ns: 400_000,
                erase_ns: 10_000_000,
                cache_bytes: 64 << 20,
                ..tlc
            },
            "low-latency" => Profile {
                channels: 8,
                dies_per_channel: 8,
                read_ns: 7_000,
                program_ns: 20_000,
                erase_ns: 1,
                transfer_ns: 1_700,
                cache_ns: 7_000,
                cache_bytes: 256 << 10,
                ..tlc
            },
            _ => return None,
        })
    }

    /// A profile by name, or from a JSON file with the fields of this type.
    ///
    /// # Errors
    /// [`LabError::Request`] for an unknown name, [`LabError::Input`] for a file that is no
    /// profile.
    pub fn named_or_file(text: &str) -> Result<Profile, LabError> {
        if let Some(profile) = Profile::named(text) {
            return Ok(profile);
        }
        let path = Path::new(text);
        if !path.exists() {
            return Err(LabError::Request(format!(
                "there is no profile and no file {text:?}; profiles are {}",
                Profile::NAMES.join(", ")
            )));
        }
        let bytes = std::fs::read(path).map_err(LabError::io("read", path))?;
        let profile: Profile = serde_json::from_slice(&bytes)
            .map_err(|error| LabError::input(path, format!("is no timing profile: {error}")))?;
        profile
            .check()
            .map_err(|reason| LabError::input(path, reason))?;
        Ok(profile)
    }

    fn check(&self) -> Result<(), String> {
        if self.cache_bytes < 4096 || !self.cache_bytes.is_multiple_of(4096) {
            return Err("cache_bytes must be a multiple of 4096 above 0".into());
        }
        if self.cache_bytes > 4 << 30 {
            return Err("cache_bytes must be at most 4 GiB".into());
        }
        let dies = u64::from(self.channels) * u64::from(self.dies_per_channel);
        if dies == 0 || dies > 4096 {
            return Err("channels and dies_per_channel must give 1 to 4096 dies".into());
        }
        let times = [self.read_ns, self.program_ns, self.erase_ns];
        if times.contains(&0) {
            return Err("read_ns, program_ns and erase_ns must be above 0".into());
        }
        if times
            .into_iter()
            .chain([self.transfer_ns, self.cache_ns])
            .max()
            > Some(1_000_000_000)
        {
            return Err("times must be at most a second (1000000000 ns)".into());
        }
        Ok(())
    }

    pub(super) fn timing(&self) -> Timing {
        Timing {
            channels: self.channels,
            dies_per_channel: self.dies_per_channel,
            read_ns: self.read_ns,
            program_ns: self.program_ns,
            erase_ns: self.erase_ns,
            // A fifth of a program, as on flash.
            suspend_ns: self.program_ns / 5,
            transfer_ns: self.transfer_ns,
            cache_ns: self.cache_ns,
        }
    }

    pub(super) fn cache_pages(&self) -> u32 {
        // Checked: at most 4 GiB.
        (self.cache_bytes / 4096) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_have_names_or_files() {
        for name in Profile::NAMES {
            let profile = Profile::named_or_file(name).unwrap();
            assert_eq!(profile.check(), Ok(()));
            assert_eq!(profile.name, name);
        }
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("p.json");
        let text = path.to_str().unwrap();
        let refused = |profile: &str| {
            std::fs::write(&path, profile).unwrap();
            Profile::named_or_file(text).unwrap_err().to_string()
        };
        assert!(
            Profile::named_or_file("none")
                .unwrap_err()
                .to_string()
                .contains("consumer-qlc")
        );
        assert!(refused("{}").contains("no timing profile"));
        let mut profile = Profile::named("low-latency").unwrap();
        profile.cache_bytes = 5000;
        let json = serde_json::to_string(&profile).unwrap();
        assert!(refused(&json).contains("multiple of 4096"));
        profile.cache_bytes = 8192;
        profile.name = "mine".into();
        std::fs::write(&path, serde_json::to_string(&profile).unwrap()).unwrap();
        assert_eq!(Profile::named_or_file(text).unwrap(), profile);
    }
}
