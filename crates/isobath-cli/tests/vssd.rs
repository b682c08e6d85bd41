//! The virtual SSD, mounted for real: root, FUSE and loop devices, or a printed reason for leaving
//! it out.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests read and write files as they like"
)]

mod support;

#[path = "../../../xtask/skipped.rs"]
mod skipped;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{Answer, Place};

const MIB: u64 = 1 << 20;

/// A drive `ssd` and a mount point `mnt`, and the drive unmounted at the end whatever happens.
struct Drive(Place);

impl Drive {
    /// `None`, with the reason printed, where drives cannot be mounted.
    fn new(size: &str) -> Option<Drive> {
        let device = |path: &str| OpenOptions::new().read(true).write(true).open(path).is_ok();
        let has = |tool: &str| {
            let directories = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
            directories.iter().any(|d| Path::new(d).join(tool).exists())
        };
        let needs = [
            ("root and /dev/fuse", device("/dev/fuse")),
            ("root and /dev/loop-control", device("/dev/loop-control")),
            ("losetup", has("losetup")),
            ("mkfs.ext4", has("mkfs.ext4")),
            ("a build with the feature vssd", cfg!(feature = "vssd")),
        ];
        if let Some((what, _)) = needs.iter().find(|(_, is_there)| !is_there) {
            skipped::skipped(&format!("a mounted virtual SSD needs {what}"));
            return None;
        }
        let drive = Drive(Place::new());
        fs::create_dir(drive.0.path("mnt")).unwrap();
        drive.vssd(&["create", "ssd", "--size", size]).ok();
        Some(drive)
    }

    fn vssd(&self, args: &[&str]) -> Answer {
        self.0.run(&[&["vssd"], args].concat())
    }

    fn mount(&self) {
        self.vssd(&["mount", "ssd", "mnt"]).ok();
    }

    fn unmount(&self) -> Value {
        self.vssd(&["umount", "ssd", "--json"])
            .ok()
            .json()
            .remove(0)
    }

    fn stats(&self) -> Value {
        self.vssd(&["stats", "ssd", "--json"]).ok().json().remove(0)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path("mnt").join(name)
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        // Nothing to unmount is no failure here.
        let _ = self.vssd(&["umount", "ssd", "--force"]);
    }
}

/// Bytes that no compression or deduplication changes.
fn noise(seed: u64, bytes: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut out = vec![0; bytes as usize];
    rng.fill(&mut out);
    out
}

/// Writes a file in order, and has the file system write it to the drive.
fn write_in_order(file: &mut File, data: &[u8]) {
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(data).unwrap();
    file.sync_all().unwrap();
}

fn mib(value: &Value) -> f64 {
    value.as_u64().unwrap() as f64 / MIB as f64
}

#[test]
fn programs_run_on_it_and_what_they_write_is_counted_and_stays() {
    let Some(drive) = Drive::new("192MiB") else {
        return;
    };
    let mounted = drive.vssd(&["mount", "ssd", "mnt", "--json"]).ok().json();
    assert_eq!(mounted[0]["formatted"], true);
    let trimmed = mib(&drive.stats()["life"]["host_trimmed_bytes"]);
    assert!(
        trimmed >= 192.0,
        "{trimmed}: a trimmed drive is formatted with discard"
    );
    let mounted_twice = drive.vssd(&["mount", "ssd", "mnt"]);
    mounted_twice.fails(3, "something is mounted there already");
    let elsewhere = drive.0.path("other");
    fs::create_dir(&elsewhere).unwrap();
    drive.vssd(&["mount", "ssd", "other"]).fails(3, "in use");
    drive
        .vssd(&["precondition", "ssd", "--destroy"])
        .fails(3, "in use");

    // Sequential overwriting: one write of flash for each of the host's.
    let mut file = File::create(drive.file("file")).unwrap();
    let mut data = Vec::new();
    drive.vssd(&["stats", "ssd", "--mark"]).ok();
    for round in 0..5 {
        data = noise(round, 48 * MIB);
        write_in_order(&mut file, &data);
    }
    let stats = drive.stats();
    let written = mib(&stats["since_mark"]["host_written_bytes"]);
    assert!((240.0..244.0).contains(&written), "{stats}");
    let wa_d = stats["wa_d"].as_f64().unwrap();
    assert!((0.99..1.02).contains(&wa_d), "{stats}");
    assert!(
        stats["since_mark"]["erases"].as_u64().unwrap() > 50,
        "{stats}"
    );

    // A database, and its own verification.
    let lines: String = (0..20_000)
        .map(|n| format!("key{n:08}\tvalue of {n}\n"))
        .collect();
    let load = [
        "load",
        "-s",
        "mnt/s.iso",
        "--pool",
        "8MiB",
        "--create",
        "lines",
    ];
    drive.0.feed(&load, lines.as_bytes()).ok();
    drive.0.run(&["check", "-s", "mnt/s.iso"]).ok();

    // Busy: nothing happens.
    drive
        .vssd(&["umount", "mnt"])
        .fails(3, "is busy (used by process");
    drop(file);
    let before = drive.stats();
    let after = drive.unmount();
    assert!(
        after["life"]["host_written_bytes"].as_u64()
            >= before["life"]["host_written_bytes"].as_u64()
    );
    assert_eq!(after["kills"], 0);
    drive.vssd(&["umount", "ssd"]).fails(3, "is not mounted");
    assert!(fs::read_dir(drive.0.path("mnt")).unwrap().next().is_none());

    drive.mount();
    let mut again = Vec::new();
    let file = File::open(drive.file("file"))
        .unwrap()
        .read_to_end(&mut again);
    assert!(file.is_ok() && again == data, "the file is what it was");
    drive.0.run(&["check", "-s", "mnt/s.iso"]).ok();
    let cdf = drive.vssd(&["stats", "ssd", "--cdf", "-"]).ok();
    let middle = cdf
        .text()
        .lines()
        .find(|line| line.starts_with("0.5"))
        .unwrap();
    let share: f64 = middle.split(',').nth(1).unwrap().parse().unwrap();
    assert!(
        share > 0.9,
        "half of the pages got nearly all writes: {middle}"
    );
    let history = fs::read_to_string(drive.0.path("ssd/history.csv")).unwrap();
    assert!(
        history.starts_with("unix_s,") && history.lines().count() > 1,
        "{history}"
    );
    assert_eq!(history.matches("unix_s").count(), 1, "of two mounts");
    let counters = |line: &str| line.split_once(',').unwrap().1.to_owned();
    let lines: Vec<String> = history.lines().map(counters).collect();
    let repeated = lines.windows(2).any(|two| two[0] == two[1]);
    assert!(!repeated, "a line where nothing happened: {history}");
    let watched = ["stats", "ssd", "--watch", "--every", "20ms", "--count", "2"];
    assert_eq!(drive.vssd(&watched).ok().text().lines().count(), 3);
    drive.unmount();
}

/// What the loop device and programs see of the FUSE file system.
#[test]
fn the_drive_is_a_file_whose_flushes_count_and_which_stays() {
    let Some(drive) = Drive::new("64MiB") else {
        return;
    };
    drive.vssd(&["mount", "ssd", "mnt", "--discard"]).ok();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let point = fs::canonicalize(drive.0.path("mnt")).unwrap();
    let own = mounts
        .lines()
        .find(|line| line.contains(point.to_str().unwrap()));
    let options = own.unwrap().split(' ').nth(3).unwrap();
    assert!(
        options.split(',').any(|option| option == "discard"),
        "{options}"
    );

    let fuse = drive.0.path("ssd/fuse");
    let system = rustix::fs::statfs(&fuse).unwrap();
    assert_eq!((system.f_bsize, system.f_blocks), (4096, 64 << 8));
    let entries = fs::read_dir(&fuse).unwrap().take(50);
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> = names.collect();
    assert_eq!(names, ["drive", "stats", "frequency", "control"]);
    let file = fuse.join("drive");
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(fs::remove_file(&file).is_err() && file.exists());

    let flushes = || drive.stats()["life"]["host_flushes"].as_u64().unwrap();
    let at_rest = flushes();
    drop(File::open(&file).unwrap());
    assert_eq!(flushes(), at_rest, "to close a file is no flush");
    File::open(&file).unwrap().sync_all().unwrap();
    assert_eq!(flushes(), at_rest + 1);
    drive.unmount();
}

#[test]
fn a_killed_process_hangs_nothing_and_what_was_synced_is_there() {
    let Some(drive) = Drive::new("64MiB") else {
        return;
    };
    drive.mount();
    let data = noise(1, 4 * MIB);
    write_in_order(&mut File::create(drive.file("synced")).unwrap(), &data);
    // A program that goes on writing.
    let script = "while dd if=/dev/zero of=mnt/more bs=64k count=64 conv=fsync; do :; done";
    let mut writer = Command::new("sh");
    let writer = writer.args(["-c", script]).current_dir(drive.0.path("."));
    let mut writer = writer.stderr(Stdio::null()).spawn().unwrap();
    let before = drive.stats();
    let pid = before["pid"].as_i64().unwrap() as i32;
    let process = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    // It fails, and does not hang.
    assert!(writer.wait().is_ok());

    drive.vssd(&["stats", "ssd"]).fails(3, "was killed");
    drive
        .vssd(&["mount", "ssd", "--raw"])
        .fails(3, "was killed; `isobath vssd umount` cleans up");
    let after = drive.unmount();
    assert_eq!(after["kills"], 1);
    let written = |stats: &Value| stats["life"]["host_written_bytes"].as_u64().unwrap();
    assert!(written(&after) >= written(&before), "{before} {after}");
    drive.mount();
    assert_eq!(fs::read(drive.file("synced")).unwrap(), data);
    drive.unmount();
}

#[test]
fn a_preconditioned_drive_stays_full_and_amplifies() {
    let Some(drive) = Drive::new("64MiB") else {
        return;
    };
    drive.vssd(&["precondition", "ssd"]).ok();
    let wrong = ["mount", "ssd", "mnt", "--expect", "trimmed"];
    drive.vssd(&wrong).fails(3, "expects it trimmed");
    let wrong = ["mount", "ssd", "mnt", "--discard"];
    drive.vssd(&wrong).fails(2, "preconditioned drive");
    drive
        .vssd(&["mount", "ssd", "mnt", "--expect", "preconditioned"])
        .ok();
    let stats = drive.stats();
    assert_eq!(
        stats["valid_pages"], stats["pages"],
        "formatting discards nothing"
    );
    // Random overwriting of half the drive.
    let mut file = File::create(drive.file("file")).unwrap();
    write_in_order(&mut file, &noise(1, 32 * MIB));
    drive.vssd(&["stats", "ssd", "--mark"]).ok();
    let mut rng = fastrand::Rng::with_seed(2);
    let page = noise(3, 4096);
    for _ in 0..6 {
        for _ in 0..1024 {
            file.seek(SeekFrom::Start(rng.u64(..8192) * 4096)).unwrap();
            file.write_all(&page).unwrap();
        }
        file.sync_all().unwrap();
    }
    fs::remove_file(drive.file("file")).unwrap();
    drop(file);
    let after = drive.unmount();
    assert_eq!(
        after["valid_pages"], after["pages"],
        "deleting discards nothing"
    );
    let wa_d = after["wa_d"].as_f64().unwrap();
    assert!((1.5..6.0).contains(&wa_d), "{after}");
    let used = ["mount", "ssd", "mnt", "--expect", "preconditioned"];
    drive.vssd(&used).fails(3, "was mounted since");
    drive.mount();
    drive.unmount();
    drive.vssd(&["precondition", "ssd"]).fails(2, "--destroy");
    let trimmed = [
        "precondition",
        "ssd",
        "--state",
        "trimmed",
        "--destroy",
        "--json",
    ];
    assert_eq!(drive.vssd(&trimmed).ok().json()[0]["valid_pages"], 0);
}

#[test]
fn a_full_file_system_and_a_forced_end_lose_nothing_that_was_synced() {
    let Some(drive) = Drive::new("64MiB") else {
        return;
    };
    let profiled = ["mount", "ssd", "mnt", "--profile", "low-latency"];
    drive.vssd(&profiled).ok();
    let kept = noise(1, MIB);
    write_in_order(&mut File::create(drive.file("kept")).unwrap(), &kept);
    let full = fs::write(drive.file("big"), noise(2, 80 * MIB)).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    let stats = drive.stats();
    assert_eq!(stats["profile"], "low-latency");
    assert!(stats["paced"].as_u64().unwrap() > 0, "{stats}");
    // In use: --force unmounts all the same.
    let open = File::open(drive.file("kept")).unwrap();
    drive.vssd(&["umount", "ssd", "--force"]).ok();
    drop(open);
    drive.mount();
    assert_eq!(fs::read(drive.file("kept")).unwrap(), kept);
    drive.unmount();
}

#[test]
fn a_full_disk_under_the_drive_loses_nothing_that_was_synced() {
    let Some(drive) = Drive::new("64MiB") else {
        return;
    };
    let small = drive.0.path("small");
    fs::create_dir(&small).unwrap();
    let disk = |command: &str, args: &[&str]| {
        let mut command = Command::new(command);
        assert!(command.args(args).arg(&small).status().unwrap().success());
    };
    disk("mount", &["-t", "tmpfs", "-o", "size=24M", "none"]);
    drive.vssd(&["create", "small/ssd", "--size", "64MiB"]).ok();
    drive.vssd(&["mount", "small/ssd", "mnt"]).ok();
    let kept = noise(1, 2 * MIB);
    write_in_order(&mut File::create(drive.file("kept")).unwrap(), &kept);
    let mut file = File::create(drive.file("more")).unwrap();
    let written = file
        .write_all(&noise(2, 40 * MIB))
        .and_then(|()| file.sync_all());
    assert!(written.is_err(), "a disk of 24 MiB does not take 40");
    drop(file);
    // Nor its state, which is larger than the free space.
    let unmounted = drive.vssd(&["umount", "small/ssd"]);
    unmounted.fails(3, "No space left on device");
    disk("mount", &["-o", "remount,size=120M"]);
    drive.vssd(&["mount", "small/ssd", "mnt"]).ok();
    assert_eq!(fs::read(drive.file("kept")).unwrap(), kept);
    drive.vssd(&["umount", "small/ssd"]).ok();
    disk("umount", &[]);
}

#[test]
fn bad_input_is_refused_and_leaves_nothing_mounted() {
    let Some(drive) = Drive::new("64MiB") else {
        return;
    };
    let mount = |args: &[&str]| drive.vssd(&[&["mount"], args].concat());
    mount(&["ssd", "none"]).fails(3, "does not exist");
    mount(&["mnt", "mnt"]).fails(3, "is no virtual SSD");
    mount(&["ssd", "ssd/fuse"]).fails(3, "own directory");
    mount(&["ssd", "mnt", "--profile", "floppy"]).fails(2, "consumer-qlc");
    mount(&["ssd"]).fails(2, "MOUNTPOINT");
    let file = drive.0.write("mnt/file", "x");
    mount(&["ssd", "mnt"]).fails(3, "not empty");
    fs::remove_file(file).unwrap();
    drive
        .vssd(&["umount", "mnt"])
        .fails(3, "none is mounted there");
    drive
        .vssd(&["create", "ssd", "--size", "64MiB"])
        .fails(3, "not empty");
    drive
        .vssd(&["create", "new", "--size", "100"])
        .fails(2, "multiple of 4096");
    let watched = ["stats", "ssd", "--watch"];
    drive.vssd(&watched).fails(1, "not mounted");

    // The block device alone; then there is no file system on the drive.
    let raw = mount(&["ssd", "--raw", "--json"]).ok().json().remove(0);
    let device = raw["device"].as_str().unwrap();
    assert_eq!(raw["direct_io"], true);
    let mut block = OpenOptions::new()
        .read(true)
        .write(true)
        .open(device)
        .unwrap();
    write_in_order(&mut block, &noise(1, MIB));
    drop(block);
    let stats = drive.unmount();
    assert_eq!(stats["valid_pages"], 256);
    mount(&["ssd", "mnt"]).fails(3, "holds no ext4 file system");
    assert_eq!(
        drive.stats()["pid"],
        Value::Null,
        "the failed mount was taken back"
    );
    mount(&["ssd", "mnt", "--format"]).ok();
    drive.unmount();

    let image = drive.0.path("ssd/image");
    let file = OpenOptions::new().write(true).open(&image).unwrap();
    file.set_len(MIB).unwrap();
    mount(&["ssd", "mnt"]).fails(3, "holds 1048576 bytes");
    file.set_len(64 * MIB).unwrap();
    let state = drive.0.path("ssd/state");
    let good = fs::read(&state).unwrap();
    fs::write(&state, &good[..1000]).unwrap();
    mount(&["ssd", "mnt"]).fails(3, "truncated or corrupt");
    fs::write(&state, good).unwrap();
}

#[test]
fn without_root_it_says_what_is_missing() {
    let place = Place::new();
    place
        .run(&["vssd", "create", "ssd", "--size", "64MiB"])
        .ok();
    let mut command = place.command();
    command.args(["vssd", "mount", "ssd", "mnt"]);
    if rustix::process::geteuid().is_root() {
        command.uid(65534);
    }
    let answer = match command.output() {
        Ok(output) => output,
        Err(error) => {
            skipped::skipped(&format!("another user cannot run the command: {error}"));
            return;
        }
    };
    let said = String::from_utf8_lossy(&answer.stderr).into_owned();
    let expected = match cfg!(feature = "vssd") {
        true => "it needs root's rights",
        false => "this build has no FUSE",
    };
    assert!(said.contains(expected), "{said}");
}

/// Each run gets a drive in its state, any engine runs on it, and nothing stays mounted.
#[test]
fn benchmarks_make_their_drives() {
    let Some(drive) = Drive::new("16MiB") else {
        return;
    };
    let place = &drive.0;
    let words = "bench sweep --engines isobath,drive --workload update-small --simulated 64MiB --vssd drives --sizes 0.4 \
        --over-provisioning 0.2 --profiles tlc --duration 4s --log-off --pool 8MiB --threads 8 --workers 1 --tasks 8 --json";
    let state = |state: &str| {
        let args: Vec<&str> = words.split_whitespace().chain(["--state", state]).collect();
        place.run(&args).ok().json()
    };
    let (trimmed, full) = (state("trimmed"), state("preconditioned"));
    for row in trimmed.iter().chain(&full) {
        let medium = &row["setting"]["medium"];
        assert_eq!(
            (&medium["kind"], &medium["profile"]),
            (&"virtual".into(), &"tlc".into())
        );
        assert_eq!(medium["capacity_bytes"], 64 * MIB);
        let wa_a = row["wa_a"].as_f64().unwrap();
        assert!(
            wa_a > 1.0 && row["modelled_operations_per_s"].as_f64() > Some(0.0),
            "{row}"
        );
        assert!(row["drive_reads_per_s"].is_null(), "rates of FUSE");
    }
    let wa_d = |rows: &[Value], engine: &str| {
        let named = |row: &&Value| row["setting"]["kind"] == engine;
        rows.iter().find(named).unwrap()["wa_d"].as_f64().unwrap()
    };
    // One I/O for each update at a random place: a drive whose other pages are all full must move
    // some of them.
    assert!(wa_d(&full, "drive") > 1.1, "{}", wa_d(&full, "drive"));
    assert!(wa_d(&full, "drive") > wa_d(&trimmed, "drive"));
    assert_eq!(fs::read_dir(place.path("drives")).unwrap().count(), 0);
    let without = place.run(&["bench", "run", "--engine", "drive", "--simulated", "64MiB"]);
    without.fails(2, "with --vssd DIR every engine runs on a virtual one");
    // The user's file stays, though it has the name of the benchmark's own.
    for name in ["drive", "mounted"] {
        let own = format!("own-{name}");
        let file = place.path(&own).join(name).join("file");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "mine").unwrap();
        let run = ["bench", "run", "--simulated", "64MiB", "--vssd", &own];
        place.run(&run).fails(3, "no benchmark made it");
        assert_eq!(fs::read(&file).unwrap(), b"mine");
    }
    let both = words.replace("--vssd drives", "--vssd drives --path x");
    let both: Vec<&str> = both.split_whitespace().collect();
    place.run(&both).fails(2, "cannot be used with");
}
