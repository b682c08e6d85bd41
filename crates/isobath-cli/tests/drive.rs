//! probe, model and advise, and what they say to bad input.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests read and write files as they like"
)]

mod support;

#[path = "../../../xtask/skipped.rs"]
mod skipped;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::Place;

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name)
}

/// A place on the repository's own file system: where temporary files live may be memory.
fn on_disk() -> tempfile::TempDir {
    tempfile::TempDir::new_in(env!("CARGO_MANIFEST_DIR")).unwrap()
}

/// A place with the documented profile `p.json` and a workload `w.toml`.
fn place() -> Place {
    let place = Place::new();
    place.write(
        "p.json",
        std::fs::read(docs("examples/profile.json")).unwrap(),
    );
    place.write(
        "w.toml",
        std::fs::read(docs("workloads/read-mostly.toml")).unwrap(),
    );
    place
}

fn profile() -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(docs("examples/profile.json")).unwrap()).unwrap()
}

#[test]
fn model_prints_every_model_and_writes_a_page() {
    let place = place();
    let answer = place.run(&["model", "p.json", "--html", "r.html"]).ok();
    for word in ["DAM", "PDAM", "affine", "queue", "held out", "µs", " *"] {
        assert!(answer.text().contains(word), "{word}: {}", answer.text());
    }
    let page = std::fs::read_to_string(place.path("r.html")).unwrap();
    assert!(
        page.contains("<svg")
            && !page.contains("<script")
            && !page.contains("http://www.w3.org/1999/xhtml")
    );
    assert_eq!(place.names(), ["p.json", "r.html", "w.toml"]);

    let json = place.run(&["model", "p.json", "--json"]).ok().json();
    let models = json[0]["models"].as_array().unwrap();
    assert!(models.iter().filter(|m| m["chosen"] == true).count() == 1);
    assert!(models.iter().any(|m| m["held_out"]["median"].is_f64()));
}

/// A drive that is at another level for half of the test: models are wrong there, as a user meets
/// them, and right at the level that they were trained at.
#[test]
fn evaluate_judges_models_as_a_user_meets_them_too() {
    let place = place();
    let mut other = profile();
    let mut level = other["regimes"][0].clone();
    level["usable"] = false.into();
    other["regimes"].as_array_mut().unwrap().push(level);
    let regime = other["regimes"].as_array().unwrap().len() - 1;
    let points = other["points"].as_array_mut().unwrap();
    for (i, point) in points.iter_mut().enumerate() {
        let rate = point["throughput_pages_per_s"].as_f64().unwrap();
        point["throughput_pages_per_s"] = (rate * 1.01).into();
        if i % 2 == 0 {
            point["throughput_pages_per_s"] = (rate * 3.0).into();
            point["regime"] = regime.into();
        }
    }
    let count = points.len();
    let at_level = points.iter().filter(|p| p["regime"] == 0).count();
    place.write("test.json", other.to_string());
    let json = place
        .run(&["model", "p.json", "--evaluate", "test.json", "--json"])
        .ok()
        .json();
    assert_eq!(json[0]["met_points"], count);
    assert!(json[0]["test_points"].as_u64().unwrap() <= at_level as u64);
    let models = json[0]["models"].as_array().unwrap();
    let queue = models.iter().find(|m| m["kind"] == "queue").unwrap();
    let p90 = |what: &str| queue[what]["p90"].as_f64().unwrap();
    assert!(p90("as_met") > 0.6 && p90("unseen") < 0.4, "{queue}");
}

#[test]
fn evaluate_judges_models_on_another_run() {
    let place = place();
    let mut other = profile();
    for point in other["points"].as_array_mut().unwrap() {
        let rate = point["throughput_pages_per_s"].as_f64().unwrap();
        point["throughput_pages_per_s"] = (rate * 1.05).into();
    }
    place.write("test.json", other.to_string());
    let json = place
        .run(&["model", "p.json", "--evaluate", "test.json", "--json"])
        .ok()
        .json();
    let between = json[0]["between_runs"]["median"].as_f64().unwrap();
    assert!((between - (1.0 - 1.0 / 1.05)).abs() < 1e-3, "{between}");
    let unseen = |kind: &str| {
        let models = json[0]["models"].as_array().unwrap();
        let model = models.iter().find(|m| m["kind"] == kind).unwrap();
        model["unseen"]["median"].as_f64().unwrap()
    };
    assert!(unseen("queue") < unseen("dam"));
    let text = place
        .run(&[
            "model",
            "p.json",
            "--evaluate",
            "test.json",
            "--html",
            "r.html",
        ])
        .ok();
    assert!(text.text().contains("judged on"), "{}", text.text());
    let page = std::fs::read_to_string(place.path("r.html")).unwrap();
    assert!(page.contains("Unseen: median"));
    place
        .run(&["model", "p.json", "--evaluate", "p.json"])
        .fails(2, "the same measurements");
}

#[test]
fn the_accuracy_experiment_needs_a_directory_on_a_drive() {
    let place = Place::new();
    place.write("file", "x");
    place
        .run(&["model", "--accuracy", "file", "--quick"])
        .fails(3, "directory");
    place
        .run(&["model", "p.json", "--accuracy", "."])
        .fails(2, "--accuracy");
    place
        .run(&["model", "p.json", "--quick"])
        .fails(2, "--accuracy");
    place.run(&["model"]).fails(2, "PROFILE");
    assert_eq!(place.names(), ["file"]);
}

#[test]
fn profiles_that_cannot_be_used() {
    let place = place();
    place.run(&["model", "none.json"]).fails(3, "none.json");
    place.write("t.json", "not json");
    place
        .run(&["model", "t.json"])
        .fails(3, "not a device profile");
    place.write("f.json", r#"{"format": "something", "version": 1}"#);
    place.run(&["model", "f.json"]).fails(3, "isobath probe");
    place.write(
        "v.json",
        r#"{"format": "isobath-device-profile", "version": 7}"#,
    );
    place.run(&["model", "v.json"]).fails(3, "version 7");
    place
        .run(&["advise", "v.json", "w.toml"])
        .fails(3, "v.json");

    let mut empty = profile();
    empty["points"] = serde_json::json!([]);
    place.write("e.json", empty.to_string());
    place.run(&["model", "e.json"]).fails(3, "too few points");
    let mut wrong = profile();
    wrong["points"][0]["throughput_pages_per_s"] = (-1.0).into();
    place.write("n.json", wrong.to_string());
    place.run(&["model", "n.json"]).fails(3, "point 0");

    // Some models can be fitted on a few points; the others say what they lack.
    let mut few = profile();
    let reads: Vec<_> = few["points"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|p| p["read_share"] == 1.0)
        .take(2)
        .cloned()
        .collect();
    few["points"] = reads.into();
    place.write("few.json", few.to_string());
    let answer = place.run(&["model", "few.json"]).ok();
    assert!(
        answer.text().contains("more points for reads"),
        "{}",
        answer.text()
    );
    place
        .run(&["advise", "few.json", "w.toml"])
        .fails(3, "few.json");
    assert!(!place.path("r.html").exists());
}

/// What Isobath takes of this machine's CPU is measured by a command, and the advice says that it
/// uses it.
#[test]
fn advise_calibrates_and_uses_it() {
    let place = place();
    let answer = place
        .run(&["advise", "--calibrate", "costs.json", "--records", "100000"])
        .ok();
    assert!(
        answer.text().contains("written: costs.json")
            && answer.text().contains("page written beside its I/O"),
        "{}",
        answer.text()
    );
    let advise = ["advise", "p.json", "w.toml", "--json"];
    let sources = |more: &[&str]| {
        let json = place.run(&[&advise[..], more].concat()).ok().json();
        json[0]["advice"]["constants"].to_string()
    };
    let defaults = sources(&[]);
    assert!(defaults.contains("the reference machine") && !defaults.contains("on this machine"));
    let measured = sources(&["--calibration", "costs.json"]);
    assert!(
        measured.contains("100000 records on this machine"),
        "{measured}"
    );
    place.run(&["advise", "p.json"]).fails(2, "WORKLOAD");
    place
        .run(&["advise", "p.json", "w.toml", "--calibrate", "x"])
        .fails(2, "--calibrate");
    place
        .run(&["advise", "--calibrate", "x", "--html", "a.html"])
        .fails(2, "--html");
    // Before anything is measured for it.
    place
        .run(&["advise", "--calibrate", "no/such/x", "--records", "1000"])
        .fails(3, "no/such");
}

#[test]
fn advise_answers_for_every_example_and_writes_its_files() {
    let place = place();
    for name in ["read-mostly", "update-heavy", "ingest"] {
        let workload = docs(&format!("workloads/{name}.toml"));
        let workload = workload.to_str().unwrap();
        let json = place
            .run(&["advise", "p.json", workload, "--json"])
            .ok()
            .json();
        assert!(
            json[0]["advice"]["isobath"]["predicted"]["operations_per_s"]
                .as_f64()
                .unwrap()
                > 0.0
        );
    }
    for (option, path) in [
        ("--options-file", "./w.toml"),
        ("--options-file", "p.json"),
        ("--html", "w.toml"),
    ] {
        place
            .run(&["advise", "p.json", "w.toml", option, path])
            .fails(2, "would replace");
    }
    std::fs::create_dir(place.path("d")).unwrap();
    std::os::unix::fs::symlink(".", place.path("here")).unwrap();
    for other in ["both", "./both", "d/../both", "here/both"] {
        let one = ["--html", "both", "--options-file", other];
        place
            .run(&[&["advise", "p.json", "w.toml"][..], &one].concat())
            .fails(2, "would replace");
    }
    std::fs::remove_dir(place.path("d")).unwrap();
    std::fs::remove_file(place.path("here")).unwrap();
    place
        .run(&["model", "p.json", "--html", "p.json"])
        .fails(2, "would replace");
    let answer = place
        .run(&[
            "advise",
            "p.json",
            "w.toml",
            "--options-file",
            "OPTIONS",
            "--html",
            "a.html",
        ])
        .ok();
    for word in [
        "fits better",
        "operations/s",
        "depth_per_worker",
        "write amplification",
    ] {
        assert!(answer.text().contains(word), "{word}: {}", answer.text());
    }
    let widest = answer.text().lines().map(|line| line.chars().count());
    assert!(widest.max() <= Some(80), "{}", answer.text());
    let options = std::fs::read_to_string(place.path("OPTIONS")).unwrap();
    assert!(options.contains("[DBOptions]") && options.contains("options_file_version"));
    let page = std::fs::read_to_string(place.path("a.html")).unwrap();
    assert!(page.contains("fits better") && page.contains("[DBOptions]"));
    assert_eq!(place.names(), ["OPTIONS", "a.html", "p.json", "w.toml"]);
}

#[test]
fn nonsense_in_a_workload_is_named_by_line_and_field() {
    let place = place();
    let good = std::fs::read_to_string(place.path("w.toml")).unwrap();
    let line = |text: &str, word: &str| 1 + text.lines().position(|l| l.starts_with(word)).unwrap();
    let cases = [
        (
            "record_count = 64_000_000",
            "record_count = -5",
            "data.record_count",
        ),
        (
            "record_count = 64_000_000",
            "record_count = 1e300",
            "data.record_count",
        ),
        (
            "memory_bytes = 4_294_967_296",
            "memory_bytes = 1e300",
            "machine.memory_bytes",
        ),
        (
            "updates = 0.05",
            "updates = 0.01",
            "0.96 is the sum of the shares",
        ),
        ("clients = 128", "clients = 1.5", "operations.clients"),
        ("core_count = 2", "cores = 2", "cores"),
        (
            "capacity_bytes = 60_000_000_000",
            "capacity_bytes = 1e9",
            "drive.capacity_bytes",
        ),
    ];
    for (from, to, message) in cases {
        let bad = good.replace(from, to);
        assert_ne!(bad, good);
        place.write("bad.toml", &bad);
        let answer = place
            .run(&["advise", "p.json", "bad.toml"])
            .fails(3, message);
        assert!(answer.err.contains("bad.toml"), "{}", answer.err);
        if !message.contains("sum") {
            let word = to.split(' ').next().unwrap();
            let at = format!("line {}", line(&bad, word));
            assert!(answer.err.contains(&at), "{at}: {}", answer.err);
        }
    }
    place
        .run(&["advise", "p.json", "none.toml"])
        .fails(3, "none.toml");
}

#[test]
fn probe_says_what_it_would_do_and_does_nothing() {
    let place = Place::new();
    let answer = place.run(&["probe", ".", "--quick", "--estimate"]).ok();
    for word in ["test file", "20 points", "writes 1.0 GiB"] {
        assert!(answer.text().contains(word), "{word}: {}", answer.text());
    }
    let json = place
        .run(&["probe", ".", "--estimate", "--json"])
        .ok()
        .json();
    assert_eq!(json[0]["points"], 60);
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn probe_refuses_what_it_must_not_touch() {
    let place = Place::new();
    place.write("small", "x");
    place.run(&["probe", "small"]).fails(3, "at least");
    let sparse = std::fs::File::create(place.path("sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    place.run(&["probe", "sparse"]).fails(3, "sparse");
    place.run(&["probe", "/dev/null"]).fails(3, "neither");
    place
        .run(&["probe", ".", "--size", "1MiB"])
        .fails(2, "--size");
    place
        .run(&["probe", ".", "--size", "1000PiB"])
        .fails(3, "free and this needs");
    place
        .run(&["probe", "no/such/directory/file"])
        .fails(3, "no/such");
    place
        .run(&["probe", ".", "--max-depth", "2"])
        .fails(2, "--max-depth");
    place
        .run(&["probe", ".", "--slice", "0ms"])
        .fails(2, "--slice");
    place
        .run(&["probe", ".", "--seeded", "100000"])
        .fails(2, "--seeded");
    place
        .run(&["probe", ".", "--quick", "--paper"])
        .fails(2, "--paper");
    place.write("isobath-profile.json", "mine");
    place.run(&["probe", "."]).fails(2, "--resume");
    place
        .run(&["probe", ".", "--resume"])
        .fails(3, "not a device profile");
    assert_eq!(place.names(), ["isobath-profile.json", "small", "sparse"]);
}

/// A loop device with a mounted file system, until it is dropped.
struct MountedDevice {
    device: String,
    at: tempfile::TempDir,
}

impl MountedDevice {
    /// `None` without root, loop devices, or the programs.
    fn make() -> Option<MountedDevice> {
        let at = on_disk();
        let image = at.path().join("image");
        let file = std::fs::File::create(&image).unwrap();
        file.set_len(16 << 20).unwrap();
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(&image)
            .output()
            .ok()?;
        if !output.status.success() {
            return None;
        }
        let device = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        let mounted = MountedDevice { device, at };
        std::fs::create_dir(mounted.directory()).unwrap();
        let is_done = |command: &mut Command| command.status().is_ok_and(|done| done.success());
        let mut format = Command::new("mkfs.ext4");
        let mut mount = Command::new("mount");
        let is_mounted = is_done(format.arg("-q").arg(&mounted.device))
            && is_done(mount.arg(&mounted.device).arg(mounted.directory()));
        is_mounted.then_some(mounted)
    }

    fn directory(&self) -> PathBuf {
        self.at.path().join("mounted")
    }
}

impl Drop for MountedDevice {
    fn drop(&mut self) {
        // One that was not mounted has nothing to unmount.
        let _ = Command::new("umount").arg(self.directory()).output();
        let detached = Command::new("losetup").arg("-d").arg(&self.device).status();
        assert!(detached.unwrap().success() || std::thread::panicking());
    }
}

#[test]
fn probe_refuses_a_mounted_device_even_with_destroy() {
    let Some(mounted) = MountedDevice::make() else {
        skipped::skipped("no loop device can be mounted");
        return;
    };
    let device = &mounted.device;
    let place = Place::new();
    for destroy in [&[][..], &["--destroy"]] {
        let args = [&["probe", device.as_str(), "--quick"][..], destroy].concat();
        let answer = place.run(&args);
        assert_eq!(answer.code, 3, "{answer:?}");
        assert!(answer.err.contains(device), "{}", answer.err);
    }
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn a_probe_ends_in_a_profile_that_model_reads() {
    let dir = on_disk();
    let output = dir.path().join("p.json");
    let place = Place::new();
    let args = [
        "probe",
        dir.path().to_str().unwrap(),
        "--seeded",
        "4",
        "--size",
        "128MiB",
        "--slice",
        "20ms",
        "--repeats",
        "1",
        "--output",
        output.to_str().unwrap(),
    ];
    let answer = place.run(&args).ok();
    assert!(answer.text().contains("host cache"), "{}", answer.text());
    assert!(answer.err.contains("makes a test file"), "{}", answer.err);
    let names: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["p.json"]);
    let profile: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&output).unwrap()).unwrap();
    assert_eq!(profile["complete"], true);
    // A drive that changes its pace during a probe has a point measured once for each regime.
    let mut settings: Vec<_> = profile["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(setting)
        .collect();
    settings.sort();
    settings.dedup();
    assert_eq!(settings.len(), 4, "{profile}");
}

/// A point's measured setting, without its result.
fn setting(point: &serde_json::Value) -> String {
    let names = [
        "threads",
        "queue_depth",
        "random_share",
        "io_pages",
        "read_share",
    ];
    names.map(|name| point[name].to_string()).join(" ")
}

#[test]
fn an_interrupted_probe_leaves_a_usable_profile_and_no_file() {
    let dir = on_disk();
    let output = dir.path().join("p.json");
    let place = Place::new();
    let mut child = place
        .command()
        .args([
            "probe",
            dir.path().to_str().unwrap(),
            "--seeded",
            "60",
            "--size",
            "128MiB",
        ])
        .args([
            "--slice",
            "50ms",
            "--repeats",
            "1",
            "--quiet",
            "--output",
            output.to_str().unwrap(),
        ])
        .spawn()
        .unwrap();
    while !output.exists() {
        assert!(
            child.try_wait().unwrap().is_none(),
            "it ended before its first point"
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let pid = child.id().to_string();
    assert!(
        std::process::Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let names: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["p.json"]);
    let profile: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&output).unwrap()).unwrap();
    assert_eq!(profile["complete"], false);
    let points = profile["points"].as_array().unwrap().len();
    assert!((1..60).contains(&points), "{points}");
}
