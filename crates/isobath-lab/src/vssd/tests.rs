//! Drives and the files of their file system, without a mount.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use isobath_flash::ftl::{FlashConfig, FlashDevice, NoData};
use isobath_flash::policy::PolicyKind;
use isobath_flash::rng::Rng;
use rustix::io::Errno;

use super::files::{Files, Node};
use super::*;
use crate::Silent;

const PAGE: usize = PAGE_BYTES as usize;
/// Pages of the drives of these tests.
const PAGES: u32 = 4096;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("drive")
    }
}

fn shape() -> NewDrive {
    NewDrive {
        capacity_bytes: u64::from(PAGES) * PAGE_BYTES,
        over_provisioning: 0.2,
        superblock_bytes: None,
        policy: PolicyKind::Greedy,
        cache_bytes: 256 << 10,
        wear_difference_max: None,
    }
}

/// Data that never changes keeps its superblocks from wearing, unless the drive levels: then also
/// after it was saved and opened.
#[test]
fn wear_is_levelled_on_a_drive_that_was_made_so() {
    let spread = |wear_difference_max| {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("drive");
        let new = NewDrive {
            wear_difference_max,
            ..shape()
        };
        drop(VirtualDrive::create(&path, &new).unwrap());
        let (drive, files) = in_use(&path, None);
        (0..PAGES).for_each(|page| write(&files, page, 1, 1));
        drive.end_use().unwrap();
        drop((files, drive));
        let drive = Arc::new(VirtualDrive::open(&path, OpenAs::AsIs).unwrap());
        drive.begin_use(None).unwrap();
        let files = Files::new(drive.clone(), None).unwrap();
        let mut rng = Rng::new(1);
        for _ in 0..30 * PAGES {
            write(&files, rng.below(PAGES / 8), 1, 2);
        }
        files.fsync(Node::Drive).unwrap();
        let stats = files.stats();
        let levelled = stats.since_mark.flash_levelled_bytes;
        assert_eq!(levelled > 0, wear_difference_max.is_some());
        assert!(levelled <= stats.since_mark.flash_relocated_bytes);
        stats.wear_max - stats.wear_min
    };
    let (apart, near) = (spread(None), spread(Some(8)));
    // 23 and 84 erases between the most and the least worn superblock.
    assert!(near <= 23 && apart >= 84, "{near} {apart}");
}

/// A drive in use, and its files.
fn in_use(path: &Path, profile: Option<Profile>) -> (Arc<VirtualDrive>, Files) {
    let drive = Arc::new(VirtualDrive::open(path, OpenAs::Declared).unwrap());
    drive.begin_use(profile.clone()).unwrap();
    let files = Files::new(drive.clone(), profile.as_ref()).unwrap();
    (drive, files)
}

fn write(files: &Files, page: u32, pages: usize, fill: u8) {
    let data = vec![fill; pages * PAGE];
    let offset = u64::from(page) * PAGE_BYTES;
    files.write(Node::Drive, offset, &data).unwrap();
}

fn read(files: &Files, page: u32) -> u8 {
    let offset = u64::from(page) * PAGE_BYTES;
    let (data, _) = files.read(Node::Drive, 0, offset, PAGE as u32).unwrap();
    assert!(data.iter().all(|&byte| byte == data[0]));
    data[0]
}

#[test]
fn sequential_overwriting_costs_one_write_of_flash_each() {
    let place = Place::new();
    drop(VirtualDrive::create(&place.path(), &shape()).unwrap());
    let (drive, files) = in_use(&place.path(), None);
    for round in 1..=4 {
        for page in (0..PAGES).step_by(32) {
            write(&files, page, 32, round);
        }
    }
    files.fsync(Node::Drive).unwrap();
    let stats = files.stats();
    assert_eq!(
        stats.life.host_written_bytes,
        4 * u64::from(PAGES) * PAGE_BYTES
    );
    assert_eq!(stats.wa_d, Some(1.0));
    // Measured 179.
    assert!(stats.life.erases >= 179 && stats.life.flash_relocated_bytes == 0);
    assert_eq!(stats.valid_pages, u64::from(PAGES));
    assert!((stats.written_share - 1.0).abs() < 1e-12);
    assert_eq!((read(&files, 0), read(&files, PAGES - 1)), (4, 4));
    drive.end_use().unwrap();
}

#[test]
fn random_overwriting_costs_what_the_simulated_drive_says() {
    let place = Place::new();
    let drive = VirtualDrive::create(&place.path(), &shape()).unwrap();
    drive.precondition(2.0, 7, &Silent).unwrap();
    drop(drive);
    let (drive, files) = in_use(&place.path(), None);
    assert_eq!(
        files.stats().wa_d,
        None,
        "the mark is behind the preconditioning"
    );
    let mut config = FlashConfig::new(shape().capacity_bytes);
    config.over_provisioning = 0.2;
    config.block_bytes = files.stats().superblock_bytes;
    config.cache_pages = 64;
    let mut flash = FlashDevice::new(config, NoData).unwrap();
    flash.precondition(2.0, 7).unwrap();
    let before = flash.smart();
    let mut rng = Rng::new(1);
    for _ in 0..3 * PAGES {
        let page = rng.below(PAGES);
        write(&files, page, 1, 1);
        flash.write(page, &[0; PAGE], 0).unwrap();
    }
    files.fsync(Node::Drive).unwrap();
    flash.flush(0).unwrap();
    let smart = flash.smart().since(&before);
    let stats = files.stats();
    assert_eq!(stats.since_mark, smart);
    // Measured 3.074.
    assert!(stats.wa_d > Some(3.07), "{stats:?}");
    assert_eq!(stats.valid_pages, u64::from(PAGES));
    drive.check_declared(OpenAs::Declared).unwrap();
}

#[test]
fn discards_trim_and_read_zeros() {
    let place = Place::new();
    drop(VirtualDrive::create(&place.path(), &shape()).unwrap());
    let (_drive, files) = in_use(&place.path(), None);
    write(&files, 0, 64, 9);
    let discard = |page: u64, pages: u64, mode| {
        files.fallocate(Node::Drive, page * PAGE_BYTES, pages * PAGE_BYTES, mode)
    };
    // Punched holes as of discards; zeroed ranges.
    discard(0, 8, 0x03).unwrap();
    discard(8, 8, 0x10).unwrap();
    discard(16, 8, 0x11).unwrap();
    for mode in [0, 0x01, 0x02, 0x20] {
        assert_eq!(discard(32, 1, mode), Err(Errno::OPNOTSUPP), "{mode}");
    }
    let stats = files.stats();
    assert_eq!(stats.life.host_trimmed_bytes, 24 * PAGE_BYTES);
    assert_eq!(stats.valid_pages, 40);
    assert_eq!(
        (read(&files, 0), read(&files, 23), read(&files, 24)),
        (0, 0, 9)
    );
    assert_eq!(discard(u64::from(PAGES), 1, 0x03), Err(Errno::NOSPC));
    let misaligned = files.fallocate(Node::Drive, 100, PAGE_BYTES, 0x03);
    assert_eq!(misaligned, Err(Errno::INVAL));
}

#[test]
fn a_preconditioned_drive_has_zeros_written_to_it() {
    let place = Place::new();
    let drive = VirtualDrive::create(&place.path(), &shape()).unwrap();
    drive.precondition(0.0, 1, &Silent).unwrap();
    drop(drive);
    let (_drive, files) = in_use(&place.path(), None);
    let zeroed = files.fallocate(Node::Drive, 0, PAGE_BYTES, 0x11);
    assert_eq!(zeroed, Err(Errno::OPNOTSUPP));
    assert_eq!(files.stats().valid_pages, u64::from(PAGES));
    // A discard that is asked for is done.
    files.fallocate(Node::Drive, 0, PAGE_BYTES, 0x03).unwrap();
    assert_eq!(files.stats().valid_pages, u64::from(PAGES) - 1);
}

#[test]
fn files_say_what_they_are_and_refuse_what_they_are_not() {
    let place = Place::new();
    drop(VirtualDrive::create(&place.path(), &shape()).unwrap());
    let (drive, files) = in_use(&place.path(), None);
    for node in Node::FILES {
        assert_eq!(Files::lookup(node.name().as_bytes()), Ok(node));
        assert_eq!(Node::of_number(node as u64), Some(node));
    }
    assert_eq!(Files::lookup(b"other"), Err(Errno::NOENT));
    assert_eq!(Node::of_number(99), None);
    assert_eq!(files.size(Node::Drive), drive.capacity_bytes());
    assert_eq!(files.open(Node::Root), Err(Errno::ISDIR));
    assert_eq!(files.resize(Node::Control, Some(0)), Ok(()));
    assert_eq!(files.resize(Node::Drive, Some(4096)), Err(Errno::PERM));
    assert_eq!(files.resize(Node::Drive, None), Ok(()));
    assert_eq!(files.blocks(), u64::from(PAGES));
    // A number is what it was when it was opened, in however many reads.
    let handle = files.open(Node::Stats).unwrap();
    write(&files, 0, 1, 1);
    let (first, _) = files.read(Node::Stats, handle, 0, 10).unwrap();
    let (rest, _) = files.read(Node::Stats, handle, 10, 1 << 20).unwrap();
    let stats: DriveStats = serde_json::from_slice(&[first, rest].concat()).unwrap();
    assert_eq!(stats.life.host_written_bytes, 0);
    assert_eq!(files.read(Node::Stats, handle, 1 << 40, 10).unwrap().0, b"");
    files.release(handle);
    assert_eq!(files.read(Node::Stats, handle, 0, 10), Err(Errno::BADF));
    let handle = files.open(Node::Frequency).unwrap();
    let (csv, _) = files.read(Node::Frequency, handle, 0, 1 << 20).unwrap();
    assert!(csv.starts_with(b"lba_share,write_share\n0,0\n"));
    assert!(csv.ends_with(b"1.000000,1.000000\n"));
    assert_eq!(files.write(Node::Stats, 0, b"x"), Err(Errno::BADF));
    assert_eq!(
        files.write(Node::Control, 0, b"not a command"),
        Err(Errno::INVAL)
    );
    files.write(Node::Control, 0, b"mark\n").unwrap();
    let stats = files.stats();
    assert_eq!(stats.life.host_written_bytes, PAGE_BYTES);
    assert_eq!(stats.since_mark.host_written_bytes, 0);
    // At the end, and beyond it.
    let end = drive.capacity_bytes();
    let (data, _) = files
        .read(Node::Drive, 0, end - PAGE_BYTES, 3 * PAGE as u32)
        .unwrap();
    assert_eq!(data.len(), PAGE);
    assert_eq!(files.write(Node::Drive, end, &[0; PAGE]), Err(Errno::NOSPC));
    assert_eq!(files.write(Node::Drive, 1, &[0; PAGE]), Err(Errno::INVAL));
    assert_eq!(files.write(Node::Drive, 0, &[0; 100]), Err(Errno::INVAL));
}

#[test]
fn a_timing_model_makes_completions_later() {
    let place = Place::new();
    drop(VirtualDrive::create(&place.path(), &shape()).unwrap());
    let profile = Profile::named("consumer-qlc").unwrap();
    let (drive, files) = in_use(&place.path(), Some(profile.clone()));
    assert_eq!(files.stats().cache_bytes, profile.cache_bytes);
    let cached = files.write(Node::Drive, 0, &[1; PAGE]).unwrap();
    let flushed = files.fsync(Node::Drive).unwrap();
    assert!(
        flushed >= cached + profile.program_ns - profile.cache_ns,
        "{cached} {flushed}"
    );
    let (sender, receiver) = std::sync::mpsc::channel();
    files.complete(flushed, move || sender.send(()).unwrap());
    receiver.recv().unwrap();
    let stats = files.stats();
    assert_eq!(
        (stats.paced, stats.profile.as_deref()),
        (1, Some("consumer-qlc"))
    );
    assert!(stats.modelled_ns >= flushed);
    drive.end_use().unwrap();
    drop((files, drive));
    let drive = VirtualDrive::open(&place.path(), OpenAs::Declared).unwrap();
    assert_eq!(drive.stats().profile, None);
    assert_eq!(
        drive.stats().cache_bytes,
        shape().cache_bytes,
        "the drive's own"
    );
}

/// Does things of all kinds.
fn work(files: &Files, seed: u64, steps: u32) {
    let mut rng = Rng::new(seed);
    for _ in 0..steps {
        let page = rng.below(PAGES - 8);
        match rng.below(100) {
            0..=4 => {
                let offset = u64::from(page) * PAGE_BYTES;
                files
                    .fallocate(Node::Drive, offset, 8 * PAGE_BYTES, 0x03)
                    .unwrap();
            }
            5..=9 => drop(files.fsync(Node::Drive).unwrap()),
            10..=19 => drop(read(files, page)),
            _ => write(files, page, 1 + rng.below(8) as usize, rng.below(255) as u8),
        }
    }
}

#[test]
fn a_killed_process_loses_neither_data_nor_counts() {
    for profile in [None, Profile::named("enterprise-tlc")] {
        let place = Place::new();
        drop(VirtualDrive::create(&place.path(), &shape()).unwrap());
        let (drive, files) = in_use(&place.path(), profile.clone());
        work(&files, 1, 4000);
        let before = drive.stats();
        let frequency = drive.write_frequency_csv();
        let contents: Vec<u8> = (0..PAGES).map(|page| read(&files, page)).collect();
        let reads = drive.stats().life.host_read_bytes - before.life.host_read_bytes;
        // Not shut down: as if it was killed. An operation was being written to the journal.
        drop((files, drive));
        let journal = place.path().join("journal");
        let mut bytes = fs::read(&journal).unwrap();
        bytes.extend([2, 0, 0, 0, 7]);
        fs::write(&journal, bytes).unwrap();

        let (drive, files) = in_use(&place.path(), profile);
        let after = drive.stats();
        assert_eq!(after.kills, 1);
        assert_eq!(drive.write_frequency_csv(), frequency);
        assert_eq!(
            after.life.host_read_bytes,
            before.life.host_read_bytes + reads
        );
        assert_eq!(
            after.life.host_written_bytes,
            before.life.host_written_bytes
        );
        assert_eq!(
            after.life.host_trimmed_bytes,
            before.life.host_trimmed_bytes
        );
        assert_eq!(after.life.host_flushes, before.life.host_flushes);
        assert_eq!(after.valid_pages, before.valid_pages);
        assert!(before.life.erases > 0);
        // The write cache's contents are on flash now; what was there was written by the same
        // decisions.
        let more = after.life.flash_written_bytes - before.life.flash_written_bytes;
        assert!(
            more <= before.cache_bytes + after.life.flash_relocated_bytes
                - before.life.flash_relocated_bytes
        );
        let again: Vec<u8> = (0..PAGES).map(|page| read(&files, page)).collect();
        assert_eq!(again, contents);
        drive.end_use().unwrap();
        drop((files, drive));
        let drive = VirtualDrive::open(&place.path(), OpenAs::Declared).unwrap();
        assert_eq!(drive.stats().kills, 1, "it ended well this time");
    }
}

#[test]
fn the_same_work_gives_the_same_counts_however_often_it_is_interrupted() {
    let run = |interrupted: bool| {
        let place = Place::new();
        drop(VirtualDrive::create(&place.path(), &shape()).unwrap());
        let (mut drive, mut files) = in_use(&place.path(), None);
        for seed in 0..6 {
            work(&files, seed, 500);
            files.fsync(Node::Drive).unwrap();
            if interrupted {
                drop((files, drive));
            } else {
                drive.save().unwrap();
                drop((files, drive));
            }
            (drive, files) = in_use(&place.path(), None);
        }
        drive.stats().life
    };
    assert_eq!(run(false), run(true));
}

#[test]
fn drives_that_are_broken_or_busy_are_refused() {
    let place = Place::new();
    let path = place.path();
    let refused = || {
        VirtualDrive::open(&path, OpenAs::Declared)
            .unwrap_err()
            .to_string()
    };
    assert!(refused().contains("no virtual SSD"));
    let drive = VirtualDrive::create(&path, &shape()).unwrap();
    assert!(refused().contains("in use"));
    drop(drive);
    let again = VirtualDrive::create(&path, &shape()).unwrap_err();
    assert!(again.to_string().contains("not empty"));
    let image = path.join("image");
    let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.set_len(4096).unwrap();
    assert!(refused().contains("holds 4096 bytes, and the drive has 16777216"));
    file.set_len(16 << 20).unwrap();
    drop(VirtualDrive::open(&path, OpenAs::Declared).unwrap());
    let state = path.join("state");
    let good = fs::read(&state).unwrap();
    fs::write(&state, &good[..good.len() / 2]).unwrap();
    assert!(refused().contains("truncated or corrupt"));
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 1;
    fs::write(&state, &bad).unwrap();
    assert!(refused().contains("truncated or corrupt"));
    fs::write(&state, &good).unwrap();
    drop(VirtualDrive::open(&path, OpenAs::Declared).unwrap());
    fs::remove_file(&image).unwrap();
    assert!(refused().contains("cannot open"));
}

#[test]
fn a_drive_of_a_machine_that_went_down_is_refused_unless_it_is_taken_as_it_is() {
    let place = Place::new();
    let path = place.path();
    let drive = VirtualDrive::create(&path, &shape()).unwrap();
    drive.precondition(0.0, 1, &Silent).unwrap();
    drive.begin_use(None).unwrap();
    drop(drive);
    let journal = path.join("journal");
    let mut bytes = fs::read(&journal).unwrap();
    bytes[20] ^= 1;
    let crc = crc32c::crc32c(&bytes[..36]);
    bytes[36..40].copy_from_slice(&crc.to_le_bytes());
    fs::write(&journal, bytes).unwrap();
    let refused = VirtualDrive::open(&path, OpenAs::Declared).unwrap_err();
    assert!(
        refused.to_string().contains("machine went down"),
        "{refused}"
    );
    let drive = VirtualDrive::open(&path, OpenAs::AsIs).unwrap();
    assert_eq!(drive.declared().0, DeclaredState::AsIs);
    drive.end_use().unwrap();
    drop(drive);
    drop(VirtualDrive::open(&path, OpenAs::Declared).unwrap());
}

#[test]
fn a_run_begins_only_in_the_state_that_the_drive_declares() {
    let place = Place::new();
    let path = place.path();
    let drive = VirtualDrive::create(&path, &shape()).unwrap();
    drive.check_declared(OpenAs::Declared).unwrap();
    drive.expect(DeclaredState::Trimmed).unwrap();
    let reason = drive.expect(DeclaredState::Preconditioned).unwrap_err();
    assert!(reason.to_string().contains("expects it preconditioned"));
    // Something is written without the drive being mounted.
    drive.write(0, &[1; 2 * PAGE], 0).unwrap();
    let reason = drive
        .check_declared(OpenAs::Declared)
        .unwrap_err()
        .to_string();
    assert!(
        reason.contains("declared trimmed, and 2 of its 4096 pages"),
        "{reason}"
    );
    assert!(drive.expect(DeclaredState::Trimmed).is_err());

    drive.precondition(0.5, 1, &Silent).unwrap();
    drive.expect(DeclaredState::Preconditioned).unwrap();
    let mut page = [7; PAGE];
    drive.read(0, &mut page, 0).unwrap();
    assert_eq!(page, [0; PAGE], "what it held is gone");
    // A preconditioned drive stays so for as long as nothing is discarded.
    drive.begin_use(None).unwrap();
    let reason = drive.expect(DeclaredState::Preconditioned).unwrap_err();
    assert!(reason.to_string().contains("was mounted since"), "{reason}");
    drive.write(0, &[1; PAGE], 0).unwrap();
    drive.check_declared(OpenAs::Declared).unwrap();
    drive.discard(0, PAGE_BYTES, 0).unwrap();
    let reason = drive
        .check_declared(OpenAs::Declared)
        .unwrap_err()
        .to_string();
    assert!(
        reason.contains("4095 of its 4096 pages hold data instead of 4096"),
        "{reason}"
    );
    drive.check_declared(OpenAs::AsIs).unwrap();
    assert_eq!(drive.declared().0, DeclaredState::AsIs);
    drive.check_declared(OpenAs::Declared).unwrap();

    drive.trim_all().unwrap();
    drive.expect(DeclaredState::Trimmed).unwrap();
    assert_eq!(drive.stats().valid_pages, 0);
}

#[test]
fn shapes_that_cannot_be_are_named_and_leave_nothing() {
    let place = Place::new();
    let path = place.path();
    let refused = |change: &dyn Fn(&mut NewDrive)| {
        let mut new = shape();
        change(&mut new);
        let error = VirtualDrive::create(&path, &new).unwrap_err().to_string();
        assert!(!path.exists());
        error
    };
    assert!(refused(&|new| new.capacity_bytes = 0).contains("multiple of 4096"));
    assert!(refused(&|new| new.capacity_bytes = 4097).contains("multiple of 4096"));
    assert!(refused(&|new| new.capacity_bytes = 4096).contains("spare superblocks"));
    assert!(refused(&|new| new.capacity_bytes = 1 << 50).contains("2^31"));
    assert!(refused(&|new| new.over_provisioning = 1.5).contains("over-provisioning 1.5"));
    assert!(refused(&|new| new.over_provisioning = f64::NAN).contains("over-provisioning"));
    assert!(refused(&|new| new.cache_bytes = 5).contains("write cache"));
    assert!(refused(&|new| new.superblock_bytes = Some(5000)).contains("multiples"));
    assert!(refused(&|new| new.policy = PolicyKind::MdcOpt).contains("mdc-opt"));
}

#[test]
fn the_mark_divides_what_is_counted() {
    let place = Place::new();
    let drive = VirtualDrive::create(&place.path(), &shape()).unwrap();
    // Some pages twice, others once.
    for (first, pages) in [(0, 32), (0, 8), (100, 24)] {
        let data = vec![1; pages * PAGE];
        drive.write(first * PAGE_BYTES, &data, 0).unwrap();
    }
    drive.flush(0).unwrap();
    let before = drive.stats();
    assert_eq!(before.written_share, 56.0 / f64::from(PAGES));
    assert_eq!(before.since_mark, before.life);
    drive.set_mark().unwrap();
    let marked = drive.stats();
    assert_eq!((marked.written_share, marked.wa_d), (0.0, None));
    assert_eq!(marked.since_mark, Smart::default());
    assert_eq!((marked.life, marked.wa_d_life), (before.life, before.wa_d));
    // The mark and the counts outlive the process.
    drive.write(0, &[2; PAGE], 0).unwrap();
    drive.end_use().unwrap();
    drop(drive);
    let stats = VirtualDrive::open(&place.path(), OpenAs::Declared)
        .unwrap()
        .stats();
    assert_eq!(stats.written_share, 1.0 / f64::from(PAGES));
    assert_eq!(stats.since_mark.host_written_bytes, PAGE_BYTES);
    let written = before.life.host_written_bytes + PAGE_BYTES;
    assert_eq!(stats.life.host_written_bytes, written);
}

#[test]
fn a_journal_that_a_saved_state_has_in_it_is_not_done_again() {
    let place = Place::new();
    drop(VirtualDrive::create(&place.path(), &shape()).unwrap());
    let (drive, files) = in_use(&place.path(), None);
    work(&files, 1, 500);
    let journal = place.path().join("journal");
    let left = fs::read(&journal).unwrap();
    drive.end_use().unwrap();
    let (stats, frequency) = (drive.stats(), drive.write_frequency_csv());
    drop((files, drive));
    // The process was killed between the two steps of an end.
    fs::write(&journal, left).unwrap();
    let drive = VirtualDrive::open(&place.path(), OpenAs::Declared).unwrap();
    assert_eq!(drive.stats(), stats);
    assert_eq!(drive.write_frequency_csv(), frequency);
}

#[test]
fn an_operation_on_many_pages_ends_with_its_last_page() {
    let place = Place::new();
    drop(VirtualDrive::create(&place.path(), &shape()).unwrap());
    let (drive, _files) = in_use(&place.path(), Profile::named("consumer-qlc"));
    let at = 1_000_000;
    let one = drive.write(0, &[1; PAGE], at).unwrap();
    let many = drive.write(0, &[1; 64 * PAGE], at).unwrap();
    // Writes into the write cache complete at once.
    assert!(at < one && one <= many, "{one} {many}");
    let mut data = [0; 64 * PAGE];
    let one = drive.read(1 << 20, &mut data[..PAGE], many).unwrap();
    let many = drive.read(2 << 20, &mut data, one).unwrap();
    assert!(one < many, "{one} {many}");
}
