//! Help, version and completions.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use super::support;

use support::Place;

#[test]
fn help_names_every_verb_and_the_exit_codes() {
    let place = Place::new();
    let help = place.run(&["--help"]).ok();
    for word in [
        "quickstart",
        "load",
        "get",
        "put",
        "delete",
        "scan",
        "trees",
        "info",
        "stats",
        "check",
        "compact",
        "export",
        "files",
        "import",
        "backup",
        "restore",
        "salvage",
        "bench",
        "probe",
        "model",
        "advise",
        "sim",
        "raw",
        "vssd",
        "nvme",
        "completions",
        "Exit codes",
        "Examples",
    ] {
        assert!(help.text().contains(word), "{word}");
    }
    let version = place.run(&["--version"]).ok();
    assert_eq!(
        version.text(),
        format!("isobath {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn every_verb_has_help_with_an_example() {
    let place = Place::new();
    for verb in [
        &["quickstart"][..],
        &["load"],
        &["get"],
        &["put"],
        &["delete"],
        &["scan"],
        &["stats"],
        &["info"],
        &["check"],
        &["compact"],
        &["export"],
        &["files"],
        &["files", "import"],
        &["files", "export"],
        &["files", "ls"],
        &["files", "stat"],
        &["files", "cat"],
        &["files", "mkdir"],
        &["files", "mv"],
        &["files", "ln"],
        &["files", "rm"],
        &["files", "rmdir"],
        &["files", "check"],
        &["files", "mount"],
        &["files", "umount"],
        &["import"],
        &["backup"],
        &["restore"],
        &["salvage"],
        &["bench", "run"],
        &["bench", "compare"],
        &["bench", "sweep"],
        &["bench", "campaign"],
        &["bench", "cost"],
        &["bench", "report"],
        &["bench", "self-test"],
        &["probe"],
        &["model"],
        &["advise"],
        &["sim", "clean"],
        &["sim", "analysis"],
        &["sim", "overlay"],
        &["paper"],
        &["raw"],
        &["vssd"],
        &["vssd", "create"],
        &["vssd", "mount"],
        &["vssd", "stats"],
        &["vssd", "precondition"],
        &["vssd", "umount"],
        &["nvme"],
        &["nvme", "list"],
        &["nvme", "identify"],
        &["nvme", "smart"],
        &["nvme", "bind"],
        &["nvme", "unbind"],
        &["completions"],
    ] {
        let help = place.run(&[verb, &["--help"]].concat()).ok();
        assert!(help.text().contains("isobath "), "{verb:?}");
        assert!(help.text().contains("Example"), "{verb:?}");
    }
}

#[test]
fn completions_for_every_shell() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.run(&["completions", shell]).ok();
        assert!(script.text().contains("quickstart"), "{shell}");
    }
    place.run(&["completions", "csh"]).fails(2, "csh");
}
