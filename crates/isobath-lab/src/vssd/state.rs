//! The file that keeps a drive's translation layer between mounts.
//!
//! ```text
//!  0  magic "ISOVSSD1"
//!  8  version, u32: 1
//! 12  bytes of the header, u32
//! 16  the header, JSON: shape, declared state, counters
//!     arrays, each a count (u64) and its elements:
//!       map         u32 per logical page: its slot, or 0xffffffff
//!       wear        u32 per superblock: erases
//!       superblocks 40 bytes each: live bytes u32, live pages u32, history u64, sealed at u64, seal number u64,
//!                   stream u16, state u8 (0 free, 1 open, 2 sealed), 5 zeros
//!       free        u32 per erased superblock, in the order of use
//!       open        8 bytes per stream: superblock u32 or 0xffffffff, programmed pages u32
//!       histories   u32 per logical page, if the policy keeps them
//!       writes      u32 per logical page: host writes since the mark
//! end-4  CRC-32C of everything before
//! ```
//!
//! All numbers are little-endian.

use std::io;
use std::path::Path;

use clap::ValueEnum;
use isobath_flash::ftl::{FlashConfig, FlashState, Smart};
use isobath_flash::policy::{History, SegmentRecord, SegmentState, StreamId};
use serde::{Deserialize, Serialize};

use super::profile::Profile;
use crate::LabError;
use crate::names::named;

const MAGIC: &[u8; 8] = b"ISOVSSD1";
const VERSION: u32 = 1;
const NONE: u32 = u32::MAX;

named! {
    /// The state in which a drive begins a run, paper 002 section 3.4.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
    #[serde(rename_all = "kebab-case")]
    pub enum DeclaredState {
        /// All pages erased, as new
        Trimmed = "trimmed",
        /// Written in order, then at random for twice the capacity
        Preconditioned = "preconditioned",
        /// Neither: what it is was not made by this program.
        #[value(skip)]
        AsIs = "as is",
    }
}

/// Everything about a drive but its arrays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Header {
    /// Counts the states saved; a journal names the one that it follows.
    pub(super) number: u64,
    pub(super) capacity_bytes: u64,
    pub(super) superblock_bytes: u32,
    pub(super) over_provisioning: f64,
    pub(super) policy: String,
    pub(super) cache_pages: u32,
    pub(super) clean_below: u32,
    pub(super) clean_batch: u32,
    /// States without it are of drives that level nothing.
    #[serde(default)]
    pub(super) wear_difference_max: Option<u32>,
    pub(super) declared: DeclaredState,
    /// Mounted since it was brought into the declared state.
    pub(super) used: bool,
    pub(super) now: u64,
    pub(super) life: Smart,
    /// The counters at the mark.
    pub(super) mark: Smart,
    /// Times that the process was killed while the drive was mounted.
    pub(super) kills: u64,
    /// The timing model of the mount that began with this state.
    pub(super) profile: Option<Profile>,
}

impl Header {
    /// The configuration of the translation layer, under the profile of the mount.
    pub(super) fn config(&self) -> Result<FlashConfig, String> {
        let mut config = FlashConfig::new(self.capacity_bytes);
        config.block_bytes = self.superblock_bytes;
        config.over_provisioning = self.over_provisioning;
        config.policy = self
            .policy
            .parse()
            .map_err(|_| format!("policy {:?} is unknown", self.policy))?;
        config.cache_pages = self.cache_pages;
        config.clean_below = self.clean_below;
        config.clean_batch = self.clean_batch;
        config.wear_difference_max = self.wear_difference_max;
        if let Some(profile) = &self.profile {
            config.timing = Some(profile.timing());
            config.cache_pages = profile.cache_pages();
        }
        Ok(config)
    }
}

/// A saved drive.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Saved {
    pub(super) header: Header,
    pub(super) flash: FlashState,
    /// Host writes of each page since the mark.
    pub(super) writes: Vec<u32>,
}

/// Writes the state beside the old one and puts it in its place, durably.
pub(super) fn save(path: &Path, saved: &Saved) -> Result<(), LabError> {
    let bytes = encode(saved).map_err(LabError::io("write", path))?;
    let new = path.with_extension("new");
    let written = std::fs::write(&new, bytes)
        .and_then(|()| std::fs::File::open(&new)?.sync_all())
        .and_then(|()| std::fs::rename(&new, path))
        .and_then(|()| match path.parent() {
            Some(directory) => std::fs::File::open(directory)?.sync_all(),
            None => Ok(()),
        });
    written.map_err(LabError::io("write", path))
}

/// Reads a state.
///
/// # Errors
/// [`LabError::Input`] for a file that is foreign, of a newer version, truncated or corrupt.
pub(super) fn load(path: &Path) -> Result<Saved, LabError> {
    let bytes = std::fs::read(path).map_err(LabError::io("read", path))?;
    decode(&bytes).map_err(|reason| LabError::input(path, reason))
}

fn encode(saved: &Saved) -> io::Result<Vec<u8>> {
    let header = serde_json::to_vec(&saved.header)?;
    let flash = &saved.flash;
    let mut out = Vec::with_capacity(64 + header.len() + 4 * (flash.map.len() * 2 + 64));
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(header.len() as u32).to_le_bytes());
    out.extend_from_slice(&header);
    put_array(&mut out, &flash.map);
    put_array(&mut out, &flash.wear);
    put_count(&mut out, flash.segments.len());
    for record in &flash.segments {
        put_segment(&mut out, record);
    }
    put_array(&mut out, &flash.free);
    put_count(&mut out, flash.open.len());
    for open in &flash.open {
        let (block, used) = open.unwrap_or((NONE, 0));
        out.extend_from_slice(&block.to_le_bytes());
        out.extend_from_slice(&used.to_le_bytes());
    }
    put_array(&mut out, &flash.histories);
    put_array(&mut out, &saved.writes);
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    Ok(out)
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&(count as u64).to_le_bytes());
}

fn put_array(out: &mut Vec<u8>, numbers: &[u32]) {
    put_count(out, numbers.len());
    for number in numbers {
        out.extend_from_slice(&number.to_le_bytes());
    }
}

fn put_segment(out: &mut Vec<u8>, record: &SegmentRecord) {
    out.extend_from_slice(&record.live_bytes.to_le_bytes());
    out.extend_from_slice(&record.live_pages.to_le_bytes());
    out.extend_from_slice(&record.history.0.to_le_bytes());
    out.extend_from_slice(&record.sealed_at.to_le_bytes());
    out.extend_from_slice(&record.seal_seq.to_le_bytes());
    out.extend_from_slice(&record.stream.0.to_le_bytes());
    let state = match record.state {
        SegmentState::Free => 0,
        SegmentState::Open => 1,
        // A drive that was shut down cleans nothing.
        SegmentState::Sealed | SegmentState::Cleaning => 2,
    };
    out.extend_from_slice(&[state, 0, 0, 0, 0, 0]);
}

fn decode(bytes: &[u8]) -> Result<Saved, String> {
    if !bytes.starts_with(MAGIC) {
        return Err("is no state of a virtual SSD".into());
    }
    let version = Reader(bytes.get(8..).unwrap_or_default()).u32()?;
    if version != VERSION {
        return Err(format!(
            "is of version {version}, and this program knows version {VERSION}"
        ));
    }
    let corrupt = "is truncated or corrupt: its checksum does not match; put a copy of it back, or make a new drive; what \
                   the drive held is whole in the file `image` beside it, which `mount -o loop,ro` reads";
    let (body, crc) = bytes.split_last_chunk::<4>().ok_or(corrupt)?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return Err(corrupt.into());
    }
    let mut reader = Reader(body.get(12..).unwrap_or_default());
    let header_bytes = reader.u32()? as usize;
    let header: Header = serde_json::from_slice(reader.take(header_bytes)?)
        .map_err(|error| format!("has a header that cannot be read: {error}"))?;
    let map = reader.array()?;
    let wear = reader.array()?;
    let count = reader.count(40)?;
    let segments = (0..count).map(|_| reader.segment());
    let segments = segments.collect::<Result<Vec<_>, _>>()?;
    let free = reader.array()?;
    let count = reader.count(8)?;
    let open = (0..count).map(|_| {
        let (block, used) = (reader.u32()?, reader.u32()?);
        Ok((block != NONE).then_some((block, used)))
    });
    let open = open.collect::<Result<Vec<_>, String>>()?;
    let histories = reader.array()?;
    let writes = reader.array()?;
    if !reader.0.is_empty() || writes.len() != map.len() {
        return Err("has arrays of wrong lengths".into());
    }
    let flash = FlashState {
        smart: header.life,
        now: header.now,
        map,
        wear,
        segments,
        free,
        open,
        histories,
    };
    Ok(Saved {
        header,
        flash,
        writes,
    })
}

/// Takes numbers from the front of the rest.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, count: usize) -> Result<&'b [u8], String> {
        let short = || "ends too early".to_owned();
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.fixed().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.fixed().map(u64::from_le_bytes)
    }

    /// A count of elements of `bytes` bytes each, which must be there.
    fn count(&mut self, bytes: usize) -> Result<usize, String> {
        let count = self.u64()?;
        match usize::try_from(count) {
            Ok(count) if count <= self.0.len() / bytes => Ok(count),
            _ => Err("has an array beyond its end".into()),
        }
    }

    fn array(&mut self) -> Result<Vec<u32>, String> {
        let count = self.count(4)?;
        let (numbers, _) = self.take(4 * count)?.as_chunks::<4>();
        Ok(numbers
            .iter()
            .map(|four| u32::from_le_bytes(*four))
            .collect())
    }

    fn segment(&mut self) -> Result<SegmentRecord, String> {
        let record = SegmentRecord {
            live_bytes: self.u32()?,
            live_pages: self.u32()?,
            history: History(self.u64()?),
            sealed_at: self.u64()?,
            seal_seq: self.u64()?,
            stream: StreamId(u16::from_le_bytes(self.fixed()?)),
            state: match self.fixed::<6>()?[0] {
                0 => SegmentState::Free,
                1 => SegmentState::Open,
                2 => SegmentState::Sealed,
                other => return Err(format!("has a superblock in state {other}")),
            },
        };
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved() -> Saved {
        let record = |n: u32, state| SegmentRecord {
            live_bytes: n * 4096,
            live_pages: n,
            history: History(u64::MAX - u64::from(n)),
            sealed_at: 5,
            seal_seq: 6,
            stream: StreamId(1),
            state,
        };
        let life = Smart {
            host_written_bytes: 77,
            ..Smart::default()
        };
        Saved {
            header: Header {
                number: 9,
                capacity_bytes: 12288,
                superblock_bytes: 8192,
                over_provisioning: 0.1 + 0.2,
                policy: "greedy".into(),
                cache_pages: 4,
                clean_below: 3,
                clean_batch: 1,
                wear_difference_max: Some(16),
                declared: DeclaredState::Preconditioned,
                used: true,
                now: 3,
                life,
                mark: Smart::default(),
                kills: 1,
                profile: Profile::named("consumer-qlc"),
            },
            flash: FlashState {
                smart: life,
                now: 3,
                map: vec![0, NONE, 64],
                wear: vec![1, 2],
                segments: vec![
                    record(1, SegmentState::Sealed),
                    record(2, SegmentState::Open),
                ],
                free: vec![],
                open: vec![Some((1, 2)), None],
                histories: vec![7, 8, 9],
            },
            writes: vec![3, 4, 5],
        }
    }

    #[test]
    fn states_come_back() {
        let saved = saved();
        assert_eq!(decode(&encode(&saved).unwrap()), Ok(saved.clone()));
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("state");
        save(&path, &saved).unwrap();
        save(&path, &saved).unwrap();
        assert_eq!(load(&path).unwrap(), saved);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn every_flipped_or_missing_byte_is_found() {
        let good = encode(&saved()).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert!(decode(&bad).is_err(), "byte {at}");
            assert!(decode(&good[..at]).is_err(), "{at} bytes");
        }
        let reason = |bytes: &[u8]| decode(bytes).unwrap_err();
        assert!(reason(b"").contains("no state"));
        assert!(reason(&good[..100]).contains("truncated or corrupt"));
        let mut newer = good;
        newer[8] = 2;
        assert!(reason(&newer).contains("version 2"));
    }
}
