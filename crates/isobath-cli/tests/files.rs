//! `isobath files`: trees in and out, names, and the mount, for real programs.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests read and write files as they like"
)]

mod support;

#[path = "../../../xtask/skipped.rs"]
mod skipped;

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use support::{Answer, Place};

/// A tree `in` of many kinds.
fn make(place: &Place) {
    let odd = std::ffi::OsStr::from_bytes(b"\xff not utf-8\n");
    let root = place.path("in");
    fs::create_dir_all(root.join("dir/inner")).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    fs::write(root.join(odd), "odd").unwrap();
    fs::write(root.join("dir/none"), "").unwrap();
    fs::write(root.join("dir/text"), "some text\n").unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    let noise: Vec<u8> = (0..1_500_000).map(|_| random.u8(..)).collect();
    fs::write(root.join("dir/large"), noise).unwrap();
    for n in 0..1500 {
        fs::write(
            root.join(format!("dir/inner/{n:04}")),
            vec![n as u8; n % 700],
        )
        .unwrap();
    }
    fs::hard_link(root.join("dir/text"), root.join("same")).unwrap();
    symlink("dir/text", root.join("link")).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"end", 20 << 20).unwrap();
    let mode = fs::Permissions::from_mode(0o4750);
    fs::set_permissions(root.join("dir/none"), mode).unwrap();
    let mode = fs::Permissions::from_mode(0o1777);
    fs::set_permissions(root.join("empty"), mode).unwrap();
}

/// Runs a program and answers what it printed.
fn run(program: &str, args: &[&str], directory: &Path) -> String {
    let output = Command::new(program)
        .args(args)
        .current_dir(directory)
        .output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program} {args:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What `find` says of a tree: kind, permissions, links, size, time, target, path.
fn found(root: &Path) -> Vec<String> {
    // Sizes and links of directories are the file system's own.
    let format = r"%y %m %T@ %l %P\0";
    let rest = r"%n %s %P\0";
    let args = ["-printf", format, "-not", "-type", "d", "-printf", rest];
    let text = run("find", &[&["."], &args[..]].concat(), root);
    let mut lines: Vec<_> = text.split('\0').map(str::to_owned).collect();
    lines.sort();
    lines
}

fn files(place: &Place, args: &[&str]) -> Answer {
    let mut all = vec!["files", args[0], "-s", "s.iso"];
    all.extend(&args[1..]);
    place.run(&all)
}

#[test]
fn a_tree_goes_in_and_comes_out_the_same() {
    let place = Place::new();
    make(&place);
    let imported = files(&place, &["import", "in", "--create", "--json"]).ok();
    let imported = &imported.json()[0];
    assert_eq!(imported["directories"], 4);
    assert_eq!(imported["files"], 1505);
    assert_eq!(
        (&imported["symlinks"], &imported["hard_links"]),
        (&1.into(), &1.into())
    );
    files(&place, &["export", "in", "out"]).ok();
    run(
        "diff",
        &["-r", "--no-dereference", "in", "out"],
        place.path("").as_path(),
    );
    assert_eq!(found(&place.path("in")), found(&place.path("out")));
    let same = |name: &str| fs::metadata(place.path(name)).unwrap();
    assert_eq!(same("out/same").ino(), same("out/dir/text").ino());
    assert!(same("out/sparse").blocks() < 1000);

    // Not over an existing entry.
    files(&place, &["export", "in", "out"]).fails(3, "exists already");
    files(&place, &["export", "in", "s.iso"]).fails(3, "exists already");
    files(&place, &["import", "in"]).fails(3, "exists already");
    files(&place, &["import", "in/dir", "in", "--replace"]).ok();
    let listed = files(&place, &["ls", "in"]).ok();
    assert_eq!(listed.text(), "inner\nlarge\nnone\ntext\n");
    let checked = files(&place, &["check"]).ok();
    assert!(
        checked
            .text()
            .starts_with("sound: 3 directories, 1,503 files"),
        "{}",
        checked.text()
    );
    place.run(&["check", "-s", "s.iso"]).ok();
}

#[test]
fn names_move_and_go() {
    let place = Place::new();
    make(&place);
    files(&place, &["import", "in", "/", "--create"]).ok();
    files(&place, &["mkdir", "new"]).ok();
    files(&place, &["mv", "dir", "new"]).ok();
    files(&place, &["ln", "new/dir/text", "third name"]).ok();
    files(&place, &["ln", "--symbolic", "nowhere", "new/dangling"]).ok();
    let stat = files(&place, &["stat", "/third name", "--json"])
        .ok()
        .json();
    assert_eq!(
        (&stat[0]["links"], &stat[0]["size"]),
        (&3.into(), &10.into())
    );
    assert_eq!(
        stat[0]["crc32c"],
        format!("{:08x}", crc32c::crc32c(b"some text\n"))
    );
    assert_eq!(
        files(&place, &["cat", "third name"]).ok().text(),
        "some text\n"
    );
    let stat = files(&place, &["stat", "new/dangling"]).ok();
    assert!(
        stat.text().contains("target        nowhere"),
        "{}",
        stat.text()
    );
    let long = files(&place, &["ls", "-l", "new/dir"]).ok();
    let none = long
        .text()
        .lines()
        .find(|line| line.ends_with("none"))
        .unwrap();
    assert!(none.starts_with("-rwsr-x---   1 "), "{none}");
    assert!(
        long.text().lines().all(|line| line.len() <= 80),
        "{}",
        long.text()
    );
    let odd = files(&place, &["ls", "-R", "--json"]).ok();
    let odd = odd
        .json()
        .into_iter()
        .find(|entry| entry.get("name_hex").is_some());
    assert_eq!(odd.unwrap()["name_hex"], "2fff206e6f74207574662d380a");

    files(&place, &["rm", "new"]).fails(3, "is a directory");
    files(&place, &["rmdir", "new"]).fails(3, "not empty");
    files(&place, &["rm", "none"]).fails(1, "no such file");
    files(&place, &["mv", "new", "new/dir"]).fails(3, "inside it");
    files(&place, &["mv", "-n", "same", "third name"]).fails(3, "exists already");
    files(&place, &["cat", "a/../b"]).fails(2, "`..`");
    files(&place, &["cat", "new"]).fails(3, "is a directory");
    files(&place, &["rm", "-r", "new"]).ok();
    files(&place, &["mv", "-T", "empty", "void"]).ok();
    let listed = files(&place, &["ls"]).ok();
    assert!(
        listed
            .text()
            .starts_with("link\nsame\nsparse\nthird name\nvoid\n")
    );
    files(&place, &["check"]).ok();

    // Stores without files, and trees that hold something else.
    place.run(&["files", "ls"]).fails(2, "--store");
    place.store(&[("k", "v")]);
    files(&place, &["ls"]).ok();
    files(&place, &["ls", "--tree", "main"]).fails(3, "holds no files");
    files(&place, &["ls", "--tree", "no"]).fails(1, "no files");
    let other = ["files", "import", "-s", "t.iso", "--create"];
    place
        .run(&[&other[..], &["no such"]].concat())
        .fails(3, "no such");
    place
        .run(&[&other[..], &["in", "a/b"]].concat())
        .fails(1, "a/b");
    assert!(!place.path("t.iso").exists());
}

/// Ctrl-C takes back a begun import, whenever it comes; that an import which is stopped half-way
/// leaves nothing, the library's own tests show.
#[test]
fn an_import_that_is_interrupted_leaves_nothing() {
    let place = Place::new();
    make(&place);
    for wait in 0..8 {
        let mut child = place.command();
        let child = child
            .args(["files", "import", "-s", "i.iso", "--create", "in"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let child = child.unwrap();
        while !place.path("i.iso").exists() {
            sleep(Duration::from_millis(1));
        }
        sleep(Duration::from_millis(wait * 4));
        let id = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
        rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        match output.status.code() {
            Some(0) => {
                place.run(&["files", "check", "-s", "i.iso"]).ok();
                fs::remove_file(place.path("i.iso")).unwrap();
            }
            code => {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert_eq!(code, Some(130), "{said}");
                assert!(!place.path("i.iso").exists());
            }
        }
    }
}

#[test]
fn a_mount_that_fails_has_the_exit_code_of_its_cause() {
    let Some(mounted) = Mounted::new() else {
        return;
    };
    let place = &mounted.0;
    let mount = |store| place.run(&["files", "mount", "-s", store, "mnt"]);
    mount("nothing.iso").fails(3, "nothing.iso does not exist");
    place
        .run(&["put", "-s", "none.iso", "--create", "k", "v"])
        .ok();
    mount("none.iso").fails(1, "the store has no files");
    let args = ["files", "mount", "-s", "none.iso", "--pool", "1", "mnt"];
    place.run(&args).fails(2, "--pool");
}

/// A store with the tree `in`, mounted at `mnt`; unmounted at the end whatever happens.
struct Mounted(Place);

impl Mounted {
    /// `None`, with the reason printed, if nothing can be mounted.
    fn new() -> Option<Mounted> {
        let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        if fuse.is_err() || !cfg!(feature = "mount") {
            skipped::skipped("a mount needs /dev/fuse, and a build with the feature mount");
            return None;
        }
        let mounted = Mounted(Place::new());
        make(&mounted.0);
        files(&mounted.0, &["import", "in", "--create", "/"]).ok();
        fs::create_dir(mounted.0.path("mnt")).unwrap();
        Some(mounted)
    }

    /// Mounts; the process that serves.
    fn mount(&self, more: &[&str]) -> rustix::process::Pid {
        let args = [&["mount", "mnt", "--json"], more].concat();
        let process = files(&self.0, &args).ok().json()[0]["process"].as_i64();
        rustix::process::Pid::from_raw(process.unwrap() as i32).unwrap()
    }

    fn unmount(&self) {
        self.0.run(&["files", "umount", "mnt"]).ok();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let point = self.0.path("mnt");
        let _ = rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH);
    }
}

fn ends(process: rustix::process::Pid) {
    for _ in 0..1000 {
        let path = format!("/proc/{}/stat", process.as_raw_nonzero());
        match fs::read_to_string(path) {
            // A zombie has ended, too: its parent is not this process.
            Ok(stat) if !stat.contains(") Z ") => sleep(Duration::from_millis(10)),
            _ => return,
        }
    }
    panic!("the process does not end");
}

#[test]
fn programs_read_a_mounted_tree() {
    let Some(mounted) = Mounted::new() else {
        return;
    };
    let (place, process) = (&mounted.0, mounted.mount(&[]));
    let (root, original, at) = (place.path("mnt"), place.path("in"), place.path(""));
    assert_eq!(found(&original), found(&root));
    run("diff", &["-r", "--no-dereference", "in", "mnt"], &at);
    let sums = "find . -type f -print0 | sort -z | xargs -0 sha256sum";
    assert_eq!(
        run("sh", &["-c", sums], &original),
        run("sh", &["-c", sums], &root)
    );
    run(
        "sh",
        &["-c", "tar -C mnt -cf - . | tar -C in --compare -f -"],
        &at,
    );
    // Parts of files, through the page cache and without it.
    let large = fs::File::open(root.join("dir/large")).unwrap();
    let expected = fs::read(original.join("dir/large")).unwrap();
    for offset in [1_400_000, 3, 262_143, 700_001] {
        let mut bytes = vec![0; 50_000];
        large.read_exact_at(&mut bytes, offset).unwrap();
        assert_eq!(bytes, &expected[offset as usize..][..50_000]);
    }
    let direct = "dd if=mnt/dir/large bs=4096 iflag=direct status=none | cmp - in/dir/large";
    run("sh", &["-c", direct], &at);
    let system = rustix::fs::statvfs(&root).unwrap();
    assert!(system.f_blocks > 500 && system.f_namemax == 255);

    // Nothing can be written.
    let refused = |result: std::io::Result<()>| result.unwrap_err().raw_os_error();
    let read_only = Some(rustix::io::Errno::ROFS.raw_os_error());
    assert_eq!(refused(fs::write(root.join("new"), "x")), read_only);
    assert_eq!(refused(fs::remove_file(root.join("same"))), read_only);
    assert_eq!(
        refused(fs::rename(root.join("dir"), root.join("d"))),
        read_only
    );
    assert_eq!(refused(fs::create_dir(root.join("d"))), read_only);
    let long = root.join("x".repeat(256));
    let too_long = fs::metadata(long).unwrap_err().raw_os_error();
    assert_eq!(
        too_long,
        Some(rustix::io::Errno::NAMETOOLONG.raw_os_error())
    );

    // A writer beside it changes nothing that it shows.
    files(place, &["rm", "-r", "dir"]).ok();
    files(place, &["mv", "same", "renamed"]).ok();
    run("diff", &["-r", "--no-dereference", "in", "mnt"], &at);
    files(place, &["mount", "mnt"]).fails(3, "mounted there already");
    // Busy: nothing happens; then it ends.
    place.run(&["files", "umount", "mnt"]).fails(3, "busy");
    drop(large);
    mounted.unmount();
    ends(process);
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
    place
        .run(&["files", "umount", "mnt"])
        .fails(3, "no files are mounted");

    // A newer mount shows the present state.
    mounted.mount(&[]);
    assert!(!root.join("dir").exists() && root.join("renamed").exists());
    mounted.unmount();
    // Mount points that are none.
    files(place, &["mount", "in"]).fails(3, "not empty");
    files(place, &["mount", "nowhere"]).fails(3, "nowhere");
    files(place, &["mount", "mnt", "--tree", "no"]).fails(1, "no files");
}

#[test]
fn mount_points_need_not_be_utf_8() {
    let Some(mounted) = Mounted::new() else {
        return;
    };
    let (place, point) = (&mounted.0, mounted.0.path("mnt"));
    let inner = point.join(std::ffi::OsStr::from_bytes(b"\xff\\ \n"));
    fs::create_dir(&inner).unwrap();
    let run = |args: &[&str]| {
        let mut command = place.command();
        let output = command.args(["files"]).args(args).arg(&inner).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    assert_eq!(run(&["mount", "-s", "s.iso"]), (Some(0), String::new()));
    assert!(inner.join("same").exists());
    let (code, said) = run(&["mount", "-s", "s.iso"]);
    assert!(
        code == Some(3) && said.contains("already"),
        "{code:?} {said}"
    );
    // One that is, beside it.
    fs::create_dir(place.path("beside")).unwrap();
    files(place, &["mount", "beside"]).ok();
    let beside = place.run(&["files", "umount", "beside"]);
    let unmounted = run(&["umount"]);
    // Whatever is wrong, nothing stays mounted.
    for left in [&inner, &place.path("beside")] {
        let _ = rustix::mount::unmount(left, rustix::mount::UnmountFlags::DETACH);
    }
    beside.ok();
    assert_eq!(unmounted, (Some(0), String::new()));
    assert!(!inner.join("same").exists());
}

#[test]
fn corrupt_contents_are_an_input_error() {
    let Some(mounted) = Mounted::new() else {
        return;
    };
    let place = &mounted.0;
    // Another value in the place of the first piece: the store below is sound.
    let scanned = [
        "scan", "-s", "s.iso", "-t", "files", "--hex", "--prefix", "63", "--json",
    ];
    let records = place.run(&scanned).ok().json();
    let large = records.iter().find(|record| {
        let value = record["value_hex"].as_str().or(record["value"].as_str());
        value.is_some_and(|value| value.len() > 400_000)
    });
    let key = large.unwrap()["key_hex"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let put = ["put", "-s", "s.iso", "-t", "files", "--hex", &key, "00"];
    place.run(&put).ok();
    place.run(&["check", "-s", "s.iso"]).ok();
    files(place, &["check"]).fails(1, "");
    files(place, &["cat", "dir/large"]).fails(3, "dir/large: the contents");
    // The log goes to no file of a store.
    let before = fs::read(place.path("s.iso")).unwrap();
    files(place, &["mount", "mnt", "--log", "s.iso"]).fails(3, "is a file of a store");
    assert!(fs::read(place.path("s.iso")).unwrap() == before);
    let process = mounted.mount(&["--log", "mount.log"]);
    let mut bytes = Vec::new();
    let mut file = fs::File::open(place.path("mnt/dir/large")).unwrap();
    let error = file.read_to_end(&mut bytes).unwrap_err();
    assert_eq!(
        error.raw_os_error(),
        Some(rustix::io::Errno::IO.raw_os_error())
    );
    drop(file);
    assert_eq!(
        fs::read(place.path("mnt/dir/text")).unwrap(),
        b"some text\n"
    );
    let log = fs::read_to_string(place.path("mount.log")).unwrap();
    assert!(log.contains("/dir/large: the contents"), "{log}");
    mounted.unmount();
    ends(process);
}

#[test]
fn a_server_that_is_killed_leaves_nothing_hanging() {
    let Some(mounted) = Mounted::new() else {
        return;
    };
    let (place, root) = (&mounted.0, mounted.0.path("mnt"));
    // By a signal: it unmounts, also if a program is in it.
    let process = mounted.mount(&[]);
    let mut file = fs::File::open(root.join("dir/large")).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    ends(process);
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap_err();
    drop(file);
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);

    // At once: programs get errors, and the mount point is free after `umount`, or for the next
    // mount.
    for again in [false, true] {
        let process = mounted.mount(&[]);
        let mut file = fs::File::open(root.join("dir/large")).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
        ends(process);
        file.read_to_end(&mut bytes).unwrap_err();
        fs::read_dir(&root).unwrap_err();
        match again {
            false => mounted.unmount(),
            true => {
                let process = mounted.mount(&[]);
                assert_eq!(fs::read(root.join("same")).unwrap(), b"some text\n");
                mounted.unmount();
                ends(process);
            }
        }
    }

    // In the foreground, until it is asked to end.
    let mut child = place.command();
    let child = child.args(["files", "mount", "-s", "s.iso", "mnt", "--foreground"]);
    let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    child.stdout.take().unwrap().read_exact(&mut ready).unwrap();
    assert_eq!(&ready, b"ready\n");
    assert!(root.join("same").exists());
    let id = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!root.join("same").exists());
}
