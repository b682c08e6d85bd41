//! Bad input: each kind has an error of its own that names the problem and
//! what to do, and changes nothing on disk.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use super::support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use isobath::{Options, Store};
use support::{Place, command_in};

/// Verbs that open a store, with what they need behind it.
const OPENERS: &[&[&str]] = &[
    &["get", "-s", "x.iso", "k"],
    &["put", "-s", "x.iso", "k", "v"],
    &["delete", "-s", "x.iso", "k"],
    &["scan", "-s", "x.iso"],
    &["stats", "-s", "x.iso"],
    &["info", "-s", "x.iso"],
    &["check", "-s", "x.iso"],
    &["compact", "-s", "x.iso"],
    &["trees", "-s", "x.iso", "list"],
    &["trees", "-s", "x.iso", "drop", "t"],
    &["export", "-s", "x.iso", "out"],
    &["backup", "-s", "x.iso", "out"],
];

#[test]
fn a_missing_store() {
    let place = Place::new();
    for args in OPENERS {
        place.run(args).fails(3, "x.iso");
    }
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn a_directory_instead_of_a_store() {
    let place = Place::new();
    std::fs::create_dir(place.path("x.iso")).unwrap();
    for args in OPENERS {
        place.run(args).fails(3, "is a directory");
    }
    place
        .run(&["put", "-s", "x.iso", "--create", "k", "v"])
        .fails(3, "is a directory");
}

#[test]
fn foreign_files_of_any_length_stay_as_they_are() {
    let place = Place::new();
    let mut noise = vec![0u8; 70 << 20];
    fastrand::Rng::with_seed(1).fill(&mut noise);
    for length in [0, 1, 4096, 100_000, noise.len()] {
        place.write("x.iso", &noise[..length]);
        for args in OPENERS {
            place.run(args).fails(3, "not an Isobath store");
        }
        assert!(std::fs::read(place.path("x.iso")).unwrap() == noise[..length]);
    }
}

#[test]
fn a_truncated_store() {
    let place = Place::new();
    place.store(&[("a", "1")]);
    let whole = std::fs::read(place.path("s.iso")).unwrap();
    for length in [whole.len() - 1, whole.len() / 2, 8192, 4096, 100] {
        place.write("x.iso", &whole[..length]);
        for args in OPENERS {
            place.run(args).fails(3, "x.iso");
        }
        assert!(std::fs::read(place.path("x.iso")).unwrap() == whole[..length]);
    }
}

#[test]
fn striped_files_in_another_order_or_missing() {
    let place = Place::new();
    place
        .run(&["put", "-s", "1.iso", "-s", "2.iso", "--create", "k", "v"])
        .ok();
    let get = |paths: &[&str]| {
        let mut args = vec!["get", "k"];
        for path in paths {
            args.extend(["-s", path]);
        }
        place.run(&args)
    };
    assert_eq!(get(&["1.iso", "2.iso"]).ok().text(), "v\n");
    get(&["2.iso", "1.iso"]).fails(3, "wrong order");
    get(&["1.iso"]).fails(3, "has 2 files in all");
    get(&["2.iso"]).fails(3, "has 2 files in all");
    get(&["1.iso", "1.iso"]).fails(3, "1.iso");
    place
        .run(&["put", "-s", "3.iso", "-s", "4.iso", "--create", "k", "v"])
        .ok();
    get(&["1.iso", "4.iso"]).fails(3, "4.iso");
    assert_eq!(get(&["1.iso", "2.iso"]).ok().text(), "v\n");
}

#[test]
fn a_second_opener_is_refused() {
    let place = Place::new();
    place.store(&[("a", "1")]);
    let options = isobath::Options::new().pool_bytes(16 << 20).workers(1);
    let held = isobath::Store::open(&[place.path("s.iso")], &options).unwrap();
    place
        .run(&["put", "-s", "s.iso", "k", "v"])
        .fails(3, "s.iso");
    held.close().unwrap();
    assert_eq!(place.run(&["get", "-s", "s.iso", "a"]).ok().text(), "1\n");
    // Readers share, also with a writer.
    let reader = isobath::Store::open(&[place.path("s.iso")], &options.read_only(true)).unwrap();
    assert_eq!(place.run(&["get", "-s", "s.iso", "a"]).ok().text(), "1\n");
    place.run(&["put", "-s", "s.iso", "a", "2"]).ok();
    let before = reader.tree("main").unwrap().get("a").unwrap();
    assert_eq!(before.as_deref(), Some(&b"1"[..]));
    assert_eq!(place.run(&["get", "-s", "s.iso", "a"]).ok().text(), "2\n");
    reader.close().unwrap();
}

/// Every verb that reads, beside a process that has the store open and has not written a
/// checkpoint.
#[test]
fn verbs_that_read_do_so_beside_a_writer() {
    let place = Place::new();
    place.store(&[("a", "1")]);
    let options = Options::new().pool_bytes(16 << 20).publish_stats(false);
    let store = Store::open(place.path("s.iso"), &options).unwrap();
    let tree = store.tree("main").unwrap();
    (0..2_000u32).for_each(|n| tree.insert(n.to_le_bytes(), [7; 200]).unwrap());
    tree.insert("new", "2").unwrap();
    assert_eq!(place.run(&["get", "-s", "s.iso", "new"]).ok().text(), "2\n");
    let scan = place.run(&["scan", "-s", "s.iso", "--count"]).ok();
    assert!(scan.text().contains("2,002"), "{scan:?}");
    let stats = place.run(&["stats", "-s", "s.iso", "--json"]).ok().json();
    assert_eq!(stats[0]["trees"], 1);
    place.run(&["trees", "list", "-s", "s.iso"]).ok();
    let check = place.run(&["check", "-s", "s.iso"]).ok();
    assert!(check.text().contains("sound"), "{check:?}");
    place.run(&["export", "-s", "s.iso", "e"]).ok();
    place.run(&["backup", "-s", "s.iso", "b"]).ok();
    place
        .run(&["backup", "-s", "s.iso", "b2", "--since", "b"])
        .fails(3, "Store::backup");
    place.run(&["recover", "-s", "s.iso"]).fails(3, "in use");
    tree.insert("newer", "3").unwrap();
    place.run(&["restore", "b", "r.iso", "--check"]).ok();
    assert_eq!(place.run(&["get", "-s", "r.iso", "new"]).ok().text(), "2\n");
    store.close().unwrap();
}

#[test]
fn a_store_that_was_not_closed() {
    let place = Place::new();
    place.store(&[("a", "1")]);
    // The files of a process killed while it writes.
    let store = Store::open(place.path("s.iso"), &Options::new().pool_bytes(16 << 20)).unwrap();
    store.tree("main").unwrap().insert("killed", "").unwrap();
    std::fs::copy(place.path("s.iso"), place.path("killed.iso")).unwrap();
    store.close().unwrap();
    std::fs::rename(place.path("killed.iso"), place.path("s.iso")).unwrap();
    let left = std::fs::read(place.path("s.iso")).unwrap();
    // Verbs that read replay the log for themselves and leave it for the next writer.
    for (verb, word) in [
        (&["get", "killed"][..], "\n"),
        (&["scan", "--count"], "2"),
        (&["stats"], "records"),
        (&["check"], "sound"),
        (&["export", "e"], "2 records"),
        (&["backup", "b"], "backed up"),
    ] {
        let args = [&verb[..1], &["-s", "s.iso"], &verb[1..]].concat();
        let answer = place.run(&args).ok();
        assert!(
            verb == ["stats"] || answer.text().contains(word),
            "{answer:?}"
        );
    }
    assert!(std::fs::read(place.path("s.iso")).unwrap() == left);
    let recover = ["recover", "-s", "s.iso"];
    assert_eq!(place.run(&recover).ok().text(), "recovered\n");
    let again = place.run(&recover).ok();
    assert!(again.text().contains("nothing to recover"), "{again:?}");
    // Records acknowledged before are there.
    place.run(&["put", "-s", "s.iso", "b", "2"]).ok();
    assert_eq!(place.run(&["get", "-s", "s.iso", "a"]).ok().text(), "1\n");
    assert_eq!(place.run(&["get", "-s", "s.iso", "b"]).ok().text(), "2\n");
    place.run(&["check", "-s", "s.iso"]).ok();
}

#[test]
fn options_that_cannot_work() {
    let place = Place::new();
    place.store(&[("a", "1")]);
    let get = |more: &[&str]| place.run(&[&["get", "-s", "s.iso", "a"][..], more].concat());
    get(&["--pool", "4KiB"]).fails(2, "pool");
    get(&["--pool", "lots"]).fails(2, "is no size");
    get(&["--workers", "0"]).fails(2, "--workers");
    get(&["--workers", "1000000"]).fails(2, "workers");
    get(&["--frobnicate"]).fails(2, "--frobnicate");
    get(&["--raw", "--output", "x"]).fails(2, "cannot be used with");
    place
        .run(&["frobnicate"])
        .fails(2, "unrecognized subcommand");
    place.run(&["get", "a"]).fails(2, "--store");
    place.run(&["put", "-s", "s.iso", "k"]).fails(2, "VALUE");
    place
        .run(&["put", "-s", "s.iso", "--hex", "0g", "00"])
        .fails(2, "no hexadecimal digit");
    place
        .run(&["put", "-s", "s.iso", "k", "--file", "none"])
        .fails(3, "cannot open none");
    place
        .run(&["put", "-s", "s.iso", "k", "--file", "."])
        .fails(3, "is a directory");
    place
        .run(&["get", "-s", "s.iso", "a", "--output", "no/such/dir"])
        .fails(3, "cannot create no/such/dir");
    assert_eq!(place.names(), ["s.iso"]);
}

#[test]
fn errors_are_json_where_asked_for() {
    let place = Place::new();
    let answer = place.run(&["get", "-s", "x.iso", "k", "--json"]);
    let error: serde_json::Value = serde_json::from_str(&answer.err).unwrap();
    assert_eq!(error["exit_code"], 3);
    assert!(error["error"].as_str().unwrap().contains("x.iso"));
    assert_eq!(answer.code, 3);
}

/// A small file system of its own; `None` if the system refuses to mount.
struct Mounted {
    place: Place,
}

impl Mounted {
    fn new(bytes: u64) -> Option<Mounted> {
        let place = Place::new();
        std::fs::create_dir(place.path("m")).unwrap();
        let options = format!("size={bytes}");
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(place.path("m"))
            .stderr(Stdio::null())
            .status();
        if done.is_ok_and(|status| status.success()) {
            Some(Mounted { place })
        } else {
            crate::skipped::skipped("mounting needs more rights than this test has");
            None
        }
    }

    fn path(&self) -> std::path::PathBuf {
        self.place.path("m")
    }

    fn remount_read_only(&self) -> bool {
        Command::new("mount")
            .args(["-o", "remount,ro"])
            .arg(self.path())
            .status()
            .is_ok_and(|status| status.success())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path()).status();
    }
}

fn run(dir: &Path, args: &[&str]) -> (Option<i32>, String) {
    let output = command_in(dir).args(args).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!error.contains("panicked"), "{error}");
    (output.status.code(), error)
}

#[test]
fn no_space_at_all_leaves_no_store() {
    let Some(mounted) = Mounted::new(1 << 20) else {
        return;
    };
    let (code, error) = run(
        &mounted.path(),
        &["put", "-s", "x.iso", "--create", "k", "v"],
    );
    assert_eq!(code, Some(3), "{error}");
    assert!(error.contains("space"), "{error}");
    assert!(!mounted.path().join("x.iso").exists());
    let (code, error) = run(&mounted.path(), &["quickstart", "--from", "/etc"]);
    assert_eq!(code, Some(3), "{error}");
    assert!(error.contains("free some space"), "{error}");
    assert_eq!(std::fs::read_dir(mounted.path()).unwrap().count(), 0);
}

#[test]
fn space_that_ends_during_a_load_is_an_error_and_the_store_stays_readable() {
    let Some(mounted) = Mounted::new(160 << 20) else {
        return;
    };
    let dir = mounted.path();
    let file = mounted.place.path("lines");
    let value = "v".repeat(1000);
    let lines: String = (0..200_000)
        .map(|n| format!("k{n:07}\t{value}\n"))
        .collect();
    std::fs::write(&file, lines).unwrap();
    let args = ["load", "-s", "x.iso", "lines", file.to_str().unwrap()];
    let put = ["put", "-s", "x.iso", "--create", "k0000000", "mine"];
    assert_eq!(run(&dir, &put).0, Some(0));
    let (code, error) = run(&dir, &args);
    assert_eq!(code, Some(3), "{error}");
    assert!(error.contains("full") || error.contains("space"), "{error}");
    // Records stored before are there, and deleting works.
    let (code, error) = run(&dir, &["check", "-s", "x.iso"]);
    assert_eq!(code, Some(0), "{error}");
    let (code, error) = run(&dir, &["get", "-s", "x.iso", "k0000000"]);
    assert_eq!(code, Some(0), "{error}");
    let (code, error) = run(&dir, &["delete", "-s", "x.iso", "k0000000"]);
    assert_eq!(code, Some(0), "{error}");
}

#[test]
fn read_only_media_can_be_read_and_refuse_to_be_written() {
    let Some(mounted) = Mounted::new(160 << 20) else {
        return;
    };
    let dir = mounted.path();
    assert_eq!(
        run(&dir, &["put", "-s", "x.iso", "--create", "k", "v"]).0,
        Some(0)
    );
    if !mounted.remount_read_only() {
        crate::skipped::skipped("no file system can be mounted read-only");
        return;
    }
    assert_eq!(run(&dir, &["get", "-s", "x.iso", "k"]).0, Some(0));
    assert_eq!(run(&dir, &["check", "-s", "x.iso"]).0, Some(0));
    let (code, error) = run(&dir, &["put", "-s", "x.iso", "k", "w"]);
    assert_eq!(code, Some(3), "{error}");
    assert!(error.contains("x.iso"), "{error}");
    let (code, error) = run(&dir, &["export", "-s", "x.iso", "e"]);
    assert_eq!(code, Some(3), "{error}");
    assert!(error.contains("cannot create e"), "{error}");
}

#[test]
fn a_limit_of_the_address_space_is_named() {
    let place = Place::new();
    let run = Command::new("sh")
        .args([
            "-c",
            "ulimit -v 4000000 && exec \"$0\" put -s s.iso --create k v",
        ])
        .arg(env!("CARGO_BIN_EXE_isobath"))
        .current_dir(place.path(""))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(3), "{told}");
    assert!(
        told.contains("`ulimit -v`") && told.contains("GiB"),
        "{told}"
    );
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn an_empty_file_becomes_a_store_where_that_is_asked_for() {
    let place = Place::new();
    let put = |more: &[&str]| place.run(&[&["put", "-s", "s.iso"][..], more, &["k", "v"]].concat());
    place.write("s.iso", "");
    put(&[]).fails(3, "not an Isobath store");
    place
        .run(&["get", "-s", "s.iso", "k"])
        .fails(3, "not an Isobath store");
    assert_eq!(std::fs::read(place.path("s.iso")).unwrap(), b"");
    put(&["--create"]).ok();
    assert_eq!(place.run(&["get", "-s", "s.iso", "k"]).ok().text(), "v\n");
    put(&["--create"]).ok();
    // If nothing could be stored it is empty again.
    place.write("t.iso", "");
    place.write("bad", "no tab\n");
    place
        .run(&["load", "-s", "t.iso", "--create", "lines", "bad"])
        .fails(3, "line 1");
    assert_eq!(std::fs::read(place.path("t.iso")).unwrap(), b"");
    // The shell has made an empty file for the output.
    let to = std::fs::File::create(place.path("out")).unwrap();
    let mut command = place.command();
    command.args(["put", "-s", "out", "--create", "k", "v"]);
    let done = command.stdout(to).output().unwrap();
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    assert_eq!(std::fs::read(place.path("out")).unwrap(), b"");
}

#[test]
fn a_link_to_nothing_is_told_as_one() {
    let place = Place::new();
    std::os::unix::fs::symlink("gone", place.path("link")).unwrap();
    let told = "is a symbolic link to gone, which does not exist";
    for args in [
        &["get", "-s", "link", "k"][..],
        &["put", "-s", "link", "k", "v"],
        &["put", "-s", "link", "--create", "k", "v"],
        &["salvage", "-s", "link", "to"],
        &["load", "-s", "s.iso", "--create", "lines", "link"],
        &["import", "-s", "s.iso", "--create", "link"],
    ] {
        place.run(args).fails(3, told);
    }
    assert!(!place.path("gone").exists() && !place.path("s.iso").exists());
}

/// Runs the command where files may have so many blocks of 512 bytes at most.
fn with_file_limit(place: &Place, blocks: u64, args: &[&str]) -> std::process::Output {
    let command = place.command();
    let mut shell = std::process::Command::new("sh");
    let script = format!("ulimit -f {blocks} && exec \"$0\" \"$@\"");
    shell.args(["-c", &script]).arg(command.get_program());
    let directory = command.get_current_dir().unwrap();
    shell.args(args).current_dir(directory).output().unwrap()
}

#[test]
fn a_limit_on_the_length_of_files_is_an_error_with_advice() {
    let place = Place::new();
    let told = |done: &std::process::Output| {
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        // Not killed by SIGXFSZ.
        assert_eq!(done.status.code(), Some(3), "{done:?}");
        assert!(text.contains("ulimit -f"), "{text}");
    };
    // No room for an empty store.
    let put = ["put", "-s", "s.iso", "--create", "k", "v"];
    told(&with_file_limit(&place, 1000, &put));
    assert!(!place.path("s.iso").exists());
    // A load that outgrows it: existing records stay.
    place.run(&put).ok();
    let lines: String = (0..200_000)
        .map(|n| format!("key{n:08}\t{n:0100}\n"))
        .collect();
    place.write("lines", &lines);
    let blocks = std::fs::metadata(place.path("s.iso")).unwrap().len() / 512;
    let load = ["load", "-s", "s.iso", "lines", "lines"];
    told(&with_file_limit(&place, blocks + 4096, &load));
    place.run(&["check", "-s", "s.iso"]).ok();
    assert_eq!(place.run(&["get", "-s", "s.iso", "k"]).ok().text(), "v\n");
    // Below what the store has already: its log cannot be written, and nothing else is.
    place.run(&load).ok();
    let change = ["put", "-s", "s.iso", "k", "w"];
    told(&with_file_limit(&place, blocks / 100, &change));
    place.run(&["check", "-s", "s.iso"]).ok();
    assert_eq!(place.run(&["get", "-s", "s.iso", "k"]).ok().text(), "v\n");
    assert_eq!(
        place
            .run(&["scan", "-s", "s.iso"])
            .ok()
            .text()
            .lines()
            .count(),
        200_001
    );
    // Other files that the command writes.
    told(&with_file_limit(
        &place,
        64,
        &["export", "-s", "s.iso", "e"],
    ));
    told(&with_file_limit(
        &place,
        64,
        &["backup", "-s", "s.iso", "b"],
    ));
    assert!(!place.path("e").exists() && !place.path("b").exists());
}

#[test]
fn a_limit_in_which_no_store_has_space() {
    let place = Place::new();
    place.store(&[("a", "1")]);
    for limit in ["0", "1", "1MiB"] {
        for store in ["s.iso", "new.iso"] {
            let put = ["put", "-s", store, "--create", "--limit", limit, "b", "2"];
            place.run(&put).fails(2, "--limit: a store");
        }
    }
    assert_eq!(place.names(), ["s.iso"]);
    // One that leaves little room to grow is no mistake.
    let put = ["put", "-s", "s.iso", "--limit", "10MiB", "b", "2"];
    place.run(&put).ok();
    assert_eq!(place.run(&["scan", "s.iso"]).ok().text(), "a\t1\nb\t2\n");
}

#[test]
fn too_few_descriptors() {
    let place = Place::new();
    place.store(&[("a", "1")]);
    for verb in ["get s.iso a", "put -s s.iso a 2", "check s.iso"] {
        for most in 4..9 {
            let line = format!("ulimit -n {most}; exec \"$0\" {verb}");
            let mut limited = Command::new("sh");
            limited.args(["-c", &line, env!("CARGO_BIN_EXE_isobath")]);
            let told = limited.current_dir(place.path(".")).output().unwrap();
            let err = String::from_utf8_lossy(&told.stderr);
            let is_told = err.contains("ulimit -n") && err.starts_with("isobath: ");
            assert!(told.status.success() || is_told, "{verb}, {most}: {told:?}");
        }
    }
}

#[test]
fn a_creation_that_was_cut_off_is_made_again() {
    let place = Place::new();
    let put = ["put", "-s", "a.iso", "-s", "b.iso", "--create", "key", "v"];
    place.run(&put).ok();
    let whole = ["a.iso", "b.iso"].map(|name| fs::read(place.path(name)).unwrap());
    let cut = |file: usize, label: usize, length: usize| {
        let mut bytes = whole[file][..label].to_vec();
        bytes.resize(length, 0);
        bytes
    };
    let all = whole[0].len();
    for (a, b, why) in [
        (cut(0, 8192, 8192), cut(1, 0, 0), "Isobath store"),
        (cut(0, 8192, 8192), cut(1, 8192, 8192), "a.iso is truncated"),
        (
            cut(0, 8192, all),
            cut(1, 8192, whole[1].len()),
            "Isobath store",
        ),
    ] {
        place.write("a.iso", &a);
        place.write("b.iso", &b);
        let without = ["put", "-s", "a.iso", "-s", "b.iso", "key", "v"];
        place.run(&without).fails(3, why);
        place.run(&put).ok();
        let get = ["get", "-s", "a.iso", "-s", "b.iso", "key"];
        assert_eq!(place.run(&get).ok().text().trim(), "v");
    }
    // Files of other programs stay.
    place.write("a.iso", cut(0, 8192, 8192));
    place.write("b.iso", b"a letter");
    place.run(&put).fails(3, "b.iso is not an Isobath store");
    assert_eq!(fs::read(place.path("b.iso")).unwrap(), b"a letter");
}
