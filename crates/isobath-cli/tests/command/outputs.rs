//! Outputs never go to a file of a store, and replace only what they should.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use super::support;

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::process::Stdio;
use std::thread;

use support::Place;

/// Names of `a.iso`, whose log is `a.log`, and of a store that no command names.
const STORE_FILES: [&str; 9] = [
    "a.iso",
    "./a.iso",
    "a.log",
    "link-to-store",
    "link-to-link",
    "link-to-log",
    "hard-link-to-store",
    "hard-link-to-log",
    "other.iso",
];

fn place_with_stores() -> Place {
    let place = Place::new();
    let create = ["put", "-s", "a.iso", "--create", "--log-path", "a.log"];
    place.run(&[&create[..], &["k", "value"]].concat()).ok();
    place
        .run(&["put", "-s", "other.iso", "--create", "k", "value"])
        .ok();
    symlink("a.iso", place.path("link-to-store")).unwrap();
    symlink("link-to-store", place.path("link-to-link")).unwrap();
    symlink(place.path("a.log"), place.path("link-to-log")).unwrap();
    for name in ["store", "log"] {
        let file = if name == "store" { "a.iso" } else { "a.log" };
        let link = place.path(&format!("hard-link-to-{name}"));
        fs::hard_link(place.path(file), link).unwrap();
    }
    place
}

fn files(place: &Place) -> Vec<(u64, Vec<u8>)> {
    ["a.iso", "a.log", "other.iso"]
        .iter()
        .map(|name| {
            let path = place.path(name);
            (
                fs::metadata(&path).unwrap().ino(),
                // The log's area is large and has little in it.
                fs::read(&path).unwrap(),
            )
        })
        .collect()
}

#[test]
fn no_output_goes_to_a_file_of_a_store() {
    let place = place_with_stores();
    let (names, before) = (place.names(), files(&place));
    let analysis = ["sim", "analysis", "--fill", "0.8", "--csv"];
    for file in STORE_FILES {
        let commands: [&[&str]; 6] = [
            &["get", "-s", "a.iso", "k", "--output", file],
            &["export", "-s", "a.iso", file, "--force"],
            &["backup", "-s", "a.iso", file, "--force"],
            &["backup", "-s", "a.iso", file, "--force", "--no-verify"],
            &["export", "-s", "other.iso", file, "--force"],
            &[&analysis[..], &[file]].concat(),
        ];
        for command in commands {
            place.run(command).fails(3, "is a file of a store");
        }
    }
    for verb in ["export", "backup"] {
        place
            .run(&[verb, "-s", "a.iso", "a.iso"])
            .fails(3, "is a file of a store");
    }
    assert_eq!(place.names(), names);
    assert!(files(&place) == before);
    place.run(&["check", "-s", "a.iso"]).ok();
}

#[test]
fn no_report_of_a_campaign_goes_to_a_store() {
    let place = place_with_stores();
    let campaign = "bench run --engine null --records 1000 --duration 100ms --out campaign";
    let words: Vec<&str> = campaign.split(' ').collect();
    place.run(&words).ok();
    place
        .run(&["vssd", "create", "ssd", "--size", "64MiB"])
        .ok();
    let before = files(&place);
    for file in STORE_FILES {
        for command in [
            &["bench", "report", "campaign", "--html", file][..],
            &["vssd", "stats", "ssd", "--cdf", file],
        ] {
            place.run(command).fails(3, "is a file of a store");
        }
    }
    assert!(files(&place) == before);
    place.run(&["bench", "report", "campaign"]).ok();
    assert!(place.path("report.html").exists());
}

#[test]
fn a_store_named_like_an_unfinished_output_stays() {
    let place = Place::new();
    for name in ["x.partial", "x.partial.map"] {
        place
            .run(&["put", "-s", name, "--create", "k", "value"])
            .ok();
    }
    place
        .run(&["put", "-s", "a.iso", "--create", "k", "v"])
        .ok();
    for command in [
        &["get", "-s", "a.iso", "k", "--output", "x"][..],
        &["export", "-s", "a.iso", "x"],
        &["backup", "-s", "a.iso", "x"],
    ] {
        place.run(command).fails(3, "is a file of a store");
    }
    fs::rename(place.path("x.partial"), place.path("y")).unwrap();
    place
        .run(&["backup", "-s", "a.iso", "x"])
        .fails(3, "is a file of a store");
    place.run(&["check", "-s", "y"]).ok();
    place.run(&["check", "-s", "x.partial.map"]).ok();
}

#[test]
fn standard_output_does_not_go_to_the_store() {
    let place = Place::new();
    place
        .run(&["put", "-s", "a.iso", "--create", "k", "v"])
        .ok();
    let before = fs::read(place.path("a.iso")).unwrap();
    for verb in [
        &["scan", "-s", "a.iso"][..],
        &["put", "-s", "a.iso", "k", "w"],
    ] {
        let mut append = fs::File::options();
        let store = append.append(true).open(place.path("a.iso")).unwrap();
        let output = place.command().args(verb).stdout(store).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
    }
    let after = fs::read(place.path("a.iso")).unwrap();
    assert_eq!(after.len(), before.len());
    assert_eq!(place.run(&["get", "-s", "a.iso", "k"]).ok().text(), "v\n");
}

#[test]
fn links_are_written_through() {
    let place = Place::new();
    place
        .run(&["put", "-s", "a.iso", "--create", "k", "v"])
        .ok();
    place.write("elsewhere/old", "something longer");
    symlink("elsewhere/old", place.path("link")).unwrap();
    symlink("elsewhere/new", place.path("dangling")).unwrap();
    for link in ["link", "dangling"] {
        place
            .run(&["get", "-s", "a.iso", "k", "--output", link])
            .ok();
        assert!(fs::symlink_metadata(place.path(link)).unwrap().is_symlink());
        assert_eq!(fs::read(place.path(link)).unwrap(), b"v");
    }
    place
        .run(&["export", "-s", "a.iso", "link"])
        .fails(3, "exists already");
    place
        .run(&["export", "-s", "a.iso", "link", "--force"])
        .ok();
    place
        .run(&["import", "-s", "b.iso", "--create", "elsewhere/old"])
        .ok();
    assert!(
        fs::symlink_metadata(place.path("link"))
            .unwrap()
            .is_symlink()
    );
    let names = fs::read_dir(place.path("elsewhere")).unwrap().count();
    assert_eq!(names, 2, "nothing unfinished stays");
}

#[test]
fn fifos_and_devices_are_written_through() {
    let place = Place::new();
    place
        .run(&["put", "-s", "a.iso", "--create", "k", "v"])
        .ok();
    let fifo = place.path("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    place.run(&["export", "-s", "a.iso", "exported"]).ok();
    for (command, least) in [
        (&["get", "-s", "a.iso", "k", "--output", "fifo"][..], 1),
        (&["export", "-s", "a.iso", "fifo"], 100),
        (&["backup", "-s", "a.iso", "fifo", "--no-verify"], 100),
    ] {
        let reader = thread::spawn({
            let fifo = fifo.clone();
            move || {
                let mut bytes = Vec::new();
                fs::File::open(fifo)
                    .unwrap()
                    .read_to_end(&mut bytes)
                    .unwrap();
                bytes
            }
        });
        place.run(command).ok();
        assert!(fs::metadata(&fifo).unwrap().file_type().is_fifo());
        assert!(reader.join().unwrap().len() >= least);
    }
    place
        .run(&["get", "-s", "a.iso", "k", "--output", "/dev/null"])
        .ok();
    assert!(
        fs::metadata("/dev/null")
            .unwrap()
            .file_type()
            .is_char_device()
    );
    let piped = place
        .run(&["get", "-s", "a.iso", "k", "--output", "/dev/stdout"])
        .ok();
    assert_eq!(piped.out, b"v");
}

#[test]
fn what_an_open_descriptor_has_behind_it_is_added_to() {
    let place = Place::new();
    place
        .run(&["put", "-s", "a.iso", "--create", "k", "v"])
        .ok();
    let log = place.write("log", "earlier\n");
    let file = fs::File::options().append(true).open(&log).unwrap();
    let status = place
        .command()
        .args(["get", "-s", "a.iso", "k", "--output", "/dev/stdout"])
        .stdout(Stdio::from(file))
        .status();
    assert!(status.unwrap().success());
    assert_eq!(fs::read(&log).unwrap(), b"earlier\nv");
}

#[test]
fn leftovers_of_unfinished_outputs_are_replaced_and_nothing_behind_them() {
    let place = Place::new();
    place
        .run(&["put", "-s", "a.iso", "--create", "k", "v"])
        .ok();
    place.write("precious", "precious");
    symlink("precious", place.path("x.partial")).unwrap();
    place
        .run(&["get", "-s", "a.iso", "k", "--output", "x"])
        .ok();
    assert_eq!(fs::read(place.path("precious")).unwrap(), b"precious");
    place.write("y.partial", "half of it");
    place.run(&["export", "-s", "a.iso", "y"]).ok();
    place.run(&["import", "-s", "b.iso", "--create", "y"]).ok();
    // One that another process is writing stays.
    let other = fs::File::create(place.path("z.partial")).unwrap();
    other.lock().unwrap();
    place
        .run(&["export", "-s", "a.iso", "z"])
        .fails(3, "another process is writing it");
    assert!(place.path("z.partial").exists() && !place.path("z").exists());
}

#[test]
fn errors_of_the_command_line_are_json_where_json_is_asked_for() {
    let place = Place::new();
    for args in [&["--json", "unknown"][..], &["get", "--json"]] {
        let run = place.run(args);
        assert_eq!(run.code, 2, "{run:?}");
        let told: serde_json::Value = serde_json::from_str(&run.err).unwrap();
        assert_eq!(told["exit_code"], 2);
        assert!(told["error"].as_str().is_some_and(|text| !text.is_empty()));
    }
    place.run(&["put", "--", "--json"]).fails(2, "error: ");
    place.run(&["--json", "--help"]).ok();
}
