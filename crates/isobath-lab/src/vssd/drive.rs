//! A drive: its contents, its translation layer, and its files in a directory.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use isobath_flash::ftl::{FlashConfig, FlashDevice, FlashError, NoData, Smart};
use isobath_flash::policy::PolicyKind;
use isobath_flash::rng::Rng;
use rustix::fs::{FlockOperation, Mode, OFlags};

use super::image::Image;
use super::journal::{self, Journal, JournalRecord, Kind};
use super::state::{self, DeclaredState, Header, Saved};
use super::stats::{DriveStats, write_frequency_csv};
use super::{PAGE_BYTES, Profile, fuse_directory};
use crate::{LabError, Monitor, Stage, Unit};

/// Operations after which the state is saved and the journal begins again, at least.
const MIN_JOURNAL_RECORDS: u64 = 1 << 20;
/// Pages between two looks at the monitor.
const PAGES_PER_LOOK: u32 = 1 << 14;
/// Points of a write-frequency CDF.
const CDF_POINTS: usize = 1001;

/// The shape of a drive to be made.
#[derive(Debug, Clone, PartialEq)]
pub struct NewDrive {
    /// Bytes that the host sees; a multiple of 4096.
    pub capacity_bytes: u64,
    /// Share of the flash that the host does not see.
    pub over_provisioning: f64,
    /// Bytes of a superblock; `None`: a 1,024th of the capacity as a power of two, 256 KiB to 8
    /// MiB.
    pub superblock_bytes: Option<u32>,
    /// The cleaning policy.
    pub policy: PolicyKind,
    /// Bytes of the write cache.
    pub cache_bytes: u64,
    /// Static wear levelling: erases by which a superblock may lag behind the most worn one; `None`
    /// levels nothing.
    pub wear_difference_max: Option<u32>,
}

impl NewDrive {
    fn header(&self) -> Result<Header, LabError> {
        let refuse = |reason: String| Err(LabError::Request(reason));
        let bytes = self.capacity_bytes;
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) {
            return refuse(format!(
                "a drive of {bytes} bytes: the size must be a multiple of 4096"
            ));
        }
        if !self.cache_bytes.is_multiple_of(PAGE_BYTES) || self.cache_bytes > 4 << 30 {
            return refuse("the write cache must be a multiple of 4096, and at most 4 GiB".into());
        }
        let usual = || (bytes / 1024).next_power_of_two().clamp(256 << 10, 8 << 20) as u32;
        let mut config = FlashConfig::new(bytes);
        config.over_provisioning = self.over_provisioning;
        config.block_bytes = self.superblock_bytes.unwrap_or_else(usual);
        config.policy = self.policy;
        config.cache_pages = (self.cache_bytes / PAGE_BYTES) as u32;
        if let Err(error) = config.check() {
            return refuse(format!("virtual SSD: {error}"));
        }
        Ok(Header {
            number: 0,
            capacity_bytes: bytes,
            superblock_bytes: config.block_bytes,
            over_provisioning: config.over_provisioning,
            policy: config.policy.to_string(),
            cache_pages: config.cache_pages,
            clean_below: config.clean_below,
            clean_batch: config.clean_batch,
            wear_difference_max: self.wear_difference_max,
            declared: DeclaredState::Trimmed,
            used: false,
            now: 0,
            life: Smart::default(),
            mark: Smart::default(),
            kills: 0,
            profile: None,
        })
    }
}

/// Whether a drive has to be in the state that it declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenAs {
    /// Refuse it otherwise.
    Declared,
    /// Take it as it is.
    AsIs,
}

/// The part of a drive that one operation changes after another.
struct Core {
    flash: FlashDevice<NoData>,
    header: Header,
    /// Host writes of each page since the mark.
    writes: Vec<u32>,
    /// Only while the drive is served.
    journal: Option<Journal>,
    scratch: Vec<u8>,
}

/// A virtual SSD, open in this process alone.
pub struct VirtualDrive {
    directory: PathBuf,
    image: Image,
    core: Mutex<Core>,
    /// Holds the lock of the directory.
    _lock: OwnedFd,
}

crate::names::opaque!(VirtualDrive, "VirtualDrive");

fn state_path(directory: &Path) -> PathBuf {
    directory.join("state")
}

fn image_path(directory: &Path) -> PathBuf {
    directory.join("image")
}

fn journal_path(directory: &Path) -> PathBuf {
    directory.join("journal")
}

impl VirtualDrive {
    /// Makes a trimmed drive in a directory that does not exist, or is empty.
    ///
    /// # Errors
    /// [`LabError::Request`] for a shape that cannot be, [`LabError::Input`] for a directory that
    /// is not empty, [`LabError::Io`].
    pub fn create(directory: &Path, new: &NewDrive) -> Result<VirtualDrive, LabError> {
        let header = new.header()?;
        let config = header.config().map_err(LabError::Request)?;
        let mut flash = FlashDevice::new(config, NoData).map_err(failed)?;
        match fs::create_dir(directory) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let mut entries =
                    fs::read_dir(directory).map_err(LabError::io("read", directory))?;
                if entries.next().is_some() {
                    return Err(LabError::input(
                        directory,
                        "exists and is not empty; name a new directory for the drive",
                    ));
                }
            }
            Err(error) => return Err(LabError::io("create", directory)(error)),
        }
        let lock = lock(directory)?;
        let made = make_files(directory, &header, &mut flash);
        if made.is_err() {
            // At most an empty drive was made.
            let _ = fs::remove_file(image_path(directory));
            let _ = fs::remove_file(state_path(directory));
            let _ = fs::remove_dir(fuse_directory(directory));
            let _ = fs::remove_dir(directory);
        }
        let (image, writes) = made?;
        Ok(VirtualDrive {
            directory: directory.to_path_buf(),
            image,
            core: Mutex::new(Core::new(flash, header, writes)),
            _lock: lock,
        })
    }

    /// Opens a drive. One whose process was killed is brought to where it was.
    ///
    /// # Errors
    /// [`LabError::Input`] if the directory holds no drive, the drive is in use, a file of it is
    /// truncated or corrupt, or the machine crashed while it was mounted and it is not taken
    /// [`OpenAs::AsIs`]; [`LabError::Io`].
    pub fn open(directory: &Path, open_as: OpenAs) -> Result<VirtualDrive, LabError> {
        check_is_drive(directory)?;
        let state_path = state_path(directory);
        let lock = lock(directory)?;
        let Saved {
            header,
            flash,
            writes,
        } = state::load(&state_path)?;
        let wrong = |reason: String| LabError::input(&state_path, reason);
        let image = Image::open(&image_path(directory), header.capacity_bytes)?;
        let config = header.config().map_err(wrong)?;
        let flash = FlashDevice::switch_on(config, NoData, &flash)
            .map_err(|error| wrong(error.to_string()))?;
        let mut core = Core::new(flash, header, writes);
        core.replay(directory, open_as)?;
        core.switch_profile(None)
            .map_err(|error| wrong(error.to_string()))?;
        Ok(VirtualDrive {
            directory: directory.to_path_buf(),
            image,
            core: Mutex::new(core),
            _lock: lock,
        })
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Bytes that the host sees.
    pub fn capacity_bytes(&self) -> u64 {
        self.core().header.capacity_bytes
    }

    /// The state that it was brought into last, and whether it was mounted since.
    pub fn declared(&self) -> (DeclaredState, bool) {
        let core = self.core();
        (core.header.declared, core.header.used)
    }

    /// Its counters.
    pub fn stats(&self) -> DriveStats {
        self.core().stats()
    }

    /// The CDF of the write frequency of logical pages since the mark; see [`write_frequency_csv`].
    pub fn write_frequency_csv(&self) -> String {
        let writes = self.core().writes.clone();
        write_frequency_csv(&writes, CDF_POINTS)
    }

    /// Checks that as many pages hold data as the declared state implies: none of a trimmed drive
    /// that was not used yet, all of a preconditioned one. With [`OpenAs::AsIs`] a drive that fails
    /// declares no state any more.
    ///
    /// # Errors
    /// [`LabError::Input`] if not.
    pub fn check_declared(&self, open_as: OpenAs) -> Result<(), LabError> {
        let mut core = self.core();
        let (valid, pages) = (core.flash.valid_pages(), u64::from(core.flash.pages()));
        let (declared, used) = (core.header.declared, core.header.used);
        let implied = match declared {
            DeclaredState::Trimmed if !used => 0,
            DeclaredState::Preconditioned => pages,
            _ => return Ok(()),
        };
        if valid == implied {
            return Ok(());
        }
        if open_as == OpenAs::AsIs {
            core.header.declared = DeclaredState::AsIs;
            return Ok(());
        }
        Err(LabError::input(
            &self.directory,
            format!(
                "is declared {}, and {valid} of its {pages} pages hold data instead of {implied}: a run on it would not \
                 begin where it says; `isobath vssd precondition` brings it into a state, --as-is goes on without one",
                declared.name()
            ),
        ))
    }

    /// Checks that nothing was done to the drive since it was brought into `state`.
    ///
    /// # Errors
    /// [`LabError::Input`] if it is in another one, or was mounted since.
    pub fn expect(&self, state: DeclaredState) -> Result<(), LabError> {
        let (declared, used) = self.declared();
        if declared == state && !used {
            return self.check_declared(OpenAs::Declared);
        }
        let found = match used {
            true => format!("{} and was mounted since", declared.name()),
            false => declared.name().to_owned(),
        };
        Err(LabError::input(
            &self.directory,
            format!(
                "is {found}, and the run expects it {}; `isobath vssd precondition` brings it there",
                state.name()
            ),
        ))
    }

    /// Paper 002's first state: all pages trimmed. What the drive held is gone. Sets the mark.
    ///
    /// # Errors
    /// [`LabError::Io`].
    pub fn trim_all(&self) -> Result<(), LabError> {
        let mut core = self.core();
        self.image.clear()?;
        core.flash.trim_all().map_err(failed)?;
        core.declare(DeclaredState::Trimmed);
        self.save_in(&mut core, false)
    }

    /// Paper 002's second state: all pages written in order, then random ones, `times` × capacity
    /// (the paper: 2). What the drive held is gone, it reads zeros. Sets the mark.
    ///
    /// # Errors
    /// [`LabError::Io`]; [`LabError::Interrupted`], with the drive in no state.
    pub fn precondition(
        &self,
        times: f64,
        seed: u64,
        monitor: &dyn Monitor,
    ) -> Result<(), LabError> {
        let mut core = self.core();
        self.image.clear()?;
        let pages = core.flash.pages();
        let random = (f64::from(pages) * times) as u64;
        monitor.begin(Stage {
            name: "preconditioning",
            total: Some((u64::from(pages) + random) * PAGE_BYTES),
            unit: Unit::Bytes,
        });
        let mut rng = Rng::new(seed);
        let in_order = (0..pages).map(Some);
        let at_random = std::iter::repeat_n(None, random as usize);
        let mut written = 0;
        for page in in_order.chain(at_random) {
            let page = page.unwrap_or_else(|| rng.below(pages));
            let done = core.flash.write(page, &ZEROS, 0);
            done.map_err(failed)?;
            written += 1;
            if written == PAGES_PER_LOOK {
                monitor.advance(u64::from(written) * PAGE_BYTES);
                written = 0;
                if monitor.cancelled() {
                    core.declare(DeclaredState::AsIs);
                    self.save_in(&mut core, false)?;
                    return Err(LabError::Interrupted);
                }
            }
        }
        core.flash.flush(0).map_err(failed)?;
        core.declare(DeclaredState::Preconditioned);
        self.save_in(&mut core, false)
    }

    /// The drive is in use from now on, under a timing model if there is one: what it does is
    /// written to a journal.
    ///
    /// # Errors
    /// [`LabError::Io`].
    pub fn begin_use(&self, profile: Option<Profile>) -> Result<(), LabError> {
        let mut core = self.core();
        core.switch_profile(profile).map_err(failed)?;
        core.header.used = true;
        self.save_in(&mut core, true)
    }

    /// Saves the state. The drive may be used on.
    ///
    /// # Errors
    /// [`LabError::Io`]; the state saved before and the journal stay then.
    pub fn save(&self) -> Result<(), LabError> {
        let mut core = self.core();
        let goes_on = core.journal.is_some();
        self.save_in(&mut core, goes_on)
    }

    /// The drive is not in use any more: the state is saved, and the journal goes.
    ///
    /// # Errors
    /// As for [`save`](Self::save).
    pub fn end_use(&self) -> Result<(), LabError> {
        let mut core = self.core();
        core.header.profile = None;
        self.save_in(&mut core, false)
    }

    /// Sets the mark from which [`DriveStats::since_mark`] and the write frequency count.
    ///
    /// # Errors
    /// [`LabError::Io`].
    pub fn set_mark(&self) -> Result<(), LabError> {
        let mut core = self.core();
        core.mark();
        let goes_on = core.journal.is_some();
        self.save_in(&mut core, goes_on)
    }

    fn save_in(&self, core: &mut Core, goes_on: bool) -> Result<(), LabError> {
        self.image.sync()?;
        let flash = core.flash.shut_down().map_err(failed)?;
        core.header.number += 1;
        core.header.now = flash.now;
        core.header.life = flash.smart;
        let saved = Saved {
            header: core.header.clone(),
            flash,
            writes: std::mem::take(&mut core.writes),
        };
        let written = state::save(&state_path(&self.directory), &saved);
        core.writes = saved.writes;
        if let Err(error) = written {
            // The journal goes on after the state that is there.
            core.header.number -= 1;
            return Err(error);
        }
        let journal = journal_path(&self.directory);
        if goes_on {
            // As a process would find it that opens the drive: the same operations then give the
            // same drive.
            let config = core.header.config().map_err(LabError::Request)?;
            core.flash = FlashDevice::switch_on(config, NoData, &saved.flash).map_err(failed)?;
            core.journal = Some(Journal::begin(&journal, core.header.number)?);
        } else {
            core.journal = None;
            crate::files::removed(&journal, fs::remove_file(&journal))?;
        }
        Ok(())
    }
}

/// A host's request.
#[cfg_attr(
    not(feature = "vssd"),
    allow(dead_code, reason = "what serves a drive calls these")
)]
impl VirtualDrive {
    /// Reads whole pages at the virtual time `at_ns`; when that is done.
    pub(super) fn read(&self, offset: u64, out: &mut [u8], at_ns: u64) -> io::Result<u64> {
        let record = self.record(Kind::Read, offset, out.len() as u64, at_ns)?;
        self.image.read(offset, out)?;
        self.operate(&record)
    }

    /// Writes whole pages.
    pub(super) fn write(&self, offset: u64, from: &[u8], at_ns: u64) -> io::Result<u64> {
        let record = self.record(Kind::Write, offset, from.len() as u64, at_ns)?;
        self.image.write(offset, from)?;
        self.operate(&record)
    }

    /// Discards whole pages; they read zeros from then on.
    pub(super) fn discard(&self, offset: u64, len: u64, at_ns: u64) -> io::Result<u64> {
        let record = self.record(Kind::Discard, offset, len, at_ns)?;
        self.image.punch(offset, len)?;
        self.operate(&record)
    }

    pub(super) fn flush(&self, at_ns: u64) -> io::Result<u64> {
        self.operate(&self.record(Kind::Flush, 0, 0, at_ns)?)
    }

    fn record(&self, kind: Kind, offset: u64, len: u64, at_ns: u64) -> io::Result<JournalRecord> {
        if !(offset | len).is_multiple_of(PAGE_BYTES) {
            return Err(rustix::io::Errno::INVAL.into());
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.capacity_bytes() => Ok(JournalRecord {
                kind,
                first: (offset / PAGE_BYTES) as u32,
                pages: (len / PAGE_BYTES) as u32,
                at_ns,
            }),
            _ => Err(rustix::io::Errno::NOSPC.into()),
        }
    }

    fn operate(&self, record: &JournalRecord) -> io::Result<u64> {
        let mut core = self.core();
        if let Some(journal) = &mut core.journal {
            journal.append(record)?;
        }
        let done = core.apply(record).map_err(io::Error::other)?;
        let limit = MIN_JOURNAL_RECORDS.max(u64::from(core.flash.pages()));
        if core.journal.as_ref().is_some_and(|j| j.records() >= limit) {
            self.save_in(&mut core, true).map_err(io::Error::other)?;
        }
        Ok(done)
    }
}

/// Contents of a page for the translation layer, which keeps none.
static ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

fn failed(error: FlashError) -> LabError {
    LabError::Request(format!("virtual SSD: {error}"))
}

/// Whether a directory holds a drive.
pub(super) fn check_is_drive(directory: &Path) -> Result<(), LabError> {
    if state_path(directory).exists() {
        return Ok(());
    }
    Err(LabError::input(
        directory,
        "is no virtual SSD; `isobath vssd create` makes one",
    ))
}

/// The files of a new drive, and the write counts of its pages.
fn make_files(
    directory: &Path,
    header: &Header,
    flash: &mut FlashDevice<NoData>,
) -> Result<(Image, Vec<u32>), LabError> {
    let image = Image::create(&image_path(directory), header.capacity_bytes)?;
    let fuse = fuse_directory(directory);
    fs::create_dir(&fuse).map_err(LabError::io("create", &fuse))?;
    let saved = Saved {
        flash: flash.shut_down().map_err(failed)?,
        writes: vec![0; flash.pages() as usize],
        header: header.clone(),
    };
    state::save(&state_path(directory), &saved)?;
    Ok((image, saved.writes))
}

/// Takes the drive for this process.
fn lock(directory: &Path) -> Result<OwnedFd, LabError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let file = rustix::fs::open(directory, flags, Mode::empty())
        .map_err(|error| LabError::io("open", directory)(error.into()))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(LabError::input(
            directory,
            "is in use: it is mounted, or another process works on it; `isobath vssd umount` ends a mount",
        )),
        Err(error) => Err(LabError::io("lock", directory)(error.into())),
    }
}

/// Whether a process serves the drive or works on it.
pub(super) fn is_in_use(directory: &Path) -> Result<bool, LabError> {
    match lock(directory) {
        Ok(_) => Ok(false),
        Err(LabError::Input { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

impl Core {
    fn new(flash: FlashDevice<NoData>, header: Header, writes: Vec<u32>) -> Core {
        Core {
            flash,
            header,
            writes,
            journal: None,
            scratch: vec![0; PAGE_BYTES as usize],
        }
    }

    /// Does again what the drive did before its process was killed.
    fn replay(&mut self, directory: &Path, open_as: OpenAs) -> Result<(), LabError> {
        let Some(left) = journal::read(&journal_path(directory), self.header.number)? else {
            return Ok(());
        };
        if left.is_of_another_boot && open_as == OpenAs::Declared {
            return Err(LabError::input(
                directory,
                "the machine went down while the drive was mounted: what was written last may be missing from its files; \
                 --as-is takes it as it is, `isobath vssd precondition --destroy` begins anew",
            ));
        }
        self.header.kills += 1;
        for record in &left.records {
            // An operation that failed then fails now.
            let _ = self.apply(record);
        }
        if left.is_of_another_boot {
            self.header.declared = DeclaredState::AsIs;
        }
        Ok(())
    }

    /// The one place where an operation reaches the translation layer, now or in a replay.
    fn apply(&mut self, record: &JournalRecord) -> Result<u64, FlashError> {
        let (first, at) = (record.first, record.at_ns);
        let mut done = at;
        match record.kind {
            Kind::Read => {
                for page in first..first + record.pages {
                    done = done.max(self.flash.read(page, &mut self.scratch, at)?);
                }
            }
            Kind::Write => {
                for page in first..first + record.pages {
                    done = done.max(self.flash.write(page, &ZEROS, at)?);
                    if let Some(count) = self.writes.get_mut(page as usize) {
                        *count = count.saturating_add(1);
                    }
                }
            }
            Kind::Discard => done = self.flash.trim(first, record.pages, at)?,
            Kind::Flush => done = self.flash.flush(at)?,
        }
        Ok(done)
    }

    /// Goes on under another timing model, from the same state.
    fn switch_profile(&mut self, profile: Option<Profile>) -> Result<(), FlashError> {
        let state = self.flash.shut_down()?;
        self.header.profile = profile;
        let config = self
            .header
            .config()
            .map_err(|reason| FlashError::State { reason })?;
        self.flash = FlashDevice::switch_on(config, NoData, &state)?;
        Ok(())
    }

    fn declare(&mut self, state: DeclaredState) {
        self.header.declared = state;
        self.header.used = false;
        self.mark();
    }

    fn mark(&mut self) {
        self.header.mark = self.flash.smart();
        self.writes.fill(0);
    }

    fn stats(&self) -> DriveStats {
        let life = self.flash.smart();
        let since_mark = life.since(&self.header.mark);
        let config = self.flash.config();
        let wear = self.flash.wear();
        let written = self.writes.iter().filter(|&&count| count > 0).count();
        DriveStats {
            capacity_bytes: config.user_bytes,
            over_provisioning: config.over_provisioning,
            superblock_bytes: config.block_bytes,
            superblocks: config.blocks(),
            policy: self.header.policy.clone(),
            cache_bytes: u64::from(config.cache_pages) * PAGE_BYTES,
            declared: self.header.declared,
            used: self.header.used,
            valid_pages: self.flash.valid_pages(),
            pages: u64::from(self.flash.pages()),
            life,
            since_mark,
            wa_d_life: life.wa_d(),
            wa_d: since_mark.wa_d(),
            wear_min: wear.iter().copied().min().unwrap_or(0),
            wear_max: wear.iter().copied().max().unwrap_or(0),
            written_share: written as f64 / self.writes.len().max(1) as f64,
            kills: self.header.kills,
            pid: None,
            profile: self.header.profile.as_ref().map(|p| p.name.clone()),
            modelled_ns: 0,
            paced: 0,
            late: 0,
        }
    }
}
