//! quickstart and bench, small.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests read and write files as they like"
)]

#[path = "measure/campaigns.rs"]
mod campaigns;
mod support;

#[path = "../../../xtask/skipped.rs"]
mod skipped;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::Place;

const SMALL: &[&str] = &["--pool", "8MiB", "--duration", "1s"];

fn files(place: &Place) {
    for n in 0..300 {
        let content = format!("file {n} ").repeat(n * 3);
        place.write(&format!("data/d{}/f{n}", n % 3), content);
    }
    place.write("data/large", vec![7u8; 3 << 20]);
    std::os::unix::fs::symlink("large", place.path("data/link")).unwrap();
}

#[test]
fn quickstart_stores_verifies_measures_and_cleans_up() {
    let place = Place::new();
    files(&place);
    let args = [&["quickstart", "--from", "data", "--json"][..], SMALL].concat();
    let answer = place.run(&args).ok();
    let report = &answer.json()[0];
    assert_eq!(report["loaded"]["records"], 301);
    assert_eq!(report["loaded"]["skipped"]["links"], 1);
    assert_eq!(report["verified"]["files"], 301);
    assert_eq!(report["verified"]["bytes"], report["loaded"]["value_bytes"]);
    assert_eq!(report["prefix_records"], 100);
    let row = &report["lookups"]["record"];
    assert_eq!(row["load"]["records"], (8 << 20) * 10 / 128);
    assert!(row["operations_per_s"].as_f64().unwrap() > 100.0);
    assert!(row["cpu_us_per_operation"].as_f64().unwrap() > 0.0);
    // The disk space that was announced was enough.
    assert!(report["store_bytes"].as_u64() <= report["needs"]["disk_bytes"].as_u64());
    assert!(answer.err.contains("of disk space"), "{}", answer.err);
    assert_eq!(place.names(), ["data"]);
}

#[test]
fn quickstart_keeps_its_store_when_asked() {
    let place = Place::new();
    files(&place);
    let args = [
        &["quickstart", "--from", "data", "--store", "q.iso", "--keep"][..],
        SMALL,
    ]
    .concat();
    let text = place.run(&args).ok().text().to_owned();
    for part in [
        "files verified",
        "random lookups",
        "CPU per lookup",
        "Try next:",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let (_, commands) = text.split_once("Try next:").unwrap();
    let commands: Vec<&str> = commands.lines().filter(|l| l.starts_with("  ")).collect();
    assert_eq!(commands.len(), 3);
    for command in commands {
        let output = Command::new("sh")
            .args(["-c", command])
            .current_dir(place.path(""))
            .output()
            .unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
    }
    let big = place
        .run(&["get", "-s", "q.iso", "-t", "files", "large", "--raw"])
        .ok();
    assert!(big.out == vec![7u8; 3 << 20]);
    place.run(&args).fails(3, "exists already");
    assert!(place.path("q.iso").exists());
}

#[test]
fn quickstart_stops_and_cleans_up_when_interrupted() {
    let place = Place::new();
    files(&place);
    let child = place
        .command()
        .args([
            "quickstart",
            "--from",
            "data",
            "--pool",
            "16MiB",
            "--duration",
            "60s",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let store = place.path("isobath-quickstart.iso");
    let began = Instant::now();
    while !store.exists() {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "no store appeared"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(800));
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(began.elapsed() < Duration::from_secs(30));
    assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"));
    assert_eq!(place.names(), ["data"]);
}

#[test]
fn quickstart_from_nowhere() {
    let place = Place::new();
    place.write("file", "x");
    place
        .run(&["quickstart", "--from", "nowhere"])
        .fails(3, "cannot open nowhere");
    place
        .run(&["quickstart", "--from", "file"])
        .fails(3, "name a directory");
    place
        .run(&["quickstart", "--from", ".", "--pool", "1PiB"])
        .fails(3, "free some space");
    // A run that cannot begin is not announced.
    for (more, code, message) in [
        (
            ["--store", "none/q.iso"],
            3,
            "the directory none does not exist",
        ),
        (["--pool", "1KiB"], 2, "--pool"),
    ] {
        let told = place
            .run(&[&["quickstart", "--from", "."][..], &more].concat())
            .fails(code, message);
        assert!(!told.err.contains("Storing"), "{told:?}");
    }
    assert_eq!(place.names(), ["file"]);
}

#[test]
fn raw_measures_every_combination_and_removes_its_file() {
    let place = Place::new();
    let short = [
        "raw",
        "--bytes",
        "8MiB",
        "--duration",
        "500ms",
        "--warm-up",
        "10ms",
    ];
    let lists = [
        "--depth",
        "1,8",
        "--read",
        "100,50",
        "--backend",
        "pread,auto",
        "--json",
    ];
    let rows = place.run(&[&short[..], &lists].concat()).ok().json();
    assert_eq!(rows.len(), 8);
    for row in &rows {
        assert!(row["ios_per_s"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["depth"].is_u64() && row["kernel"].is_string());
        let writes = row["writes"].as_u64().unwrap();
        assert_eq!(writes > 0, row["read_percent"] == 50, "{row}");
    }
    let striped = [
        "--scratch",
        "a",
        "--scratch",
        "b",
        "--model",
        "all-to-all,dedicated,assigned",
        "--threads",
        "2",
        "--depth",
        "4",
    ];
    let table = place.run(&[&short[..], &striped].concat()).ok();
    for word in ["all-to-all", "dedicated:1", "assigned", "I/Os/s"] {
        assert!(table.text().contains(word), "{}", table.text());
    }
    place.run(&[&short[..], &["--memory"]].concat()).ok();
    place.write("there", vec![1; 1 << 20]);
    place
        .run(&[
            "raw",
            "--file",
            "there",
            "--duration",
            "100ms",
            "--depth",
            "4",
        ])
        .ok();
    assert_eq!(place.names(), ["there"]);
    assert!(std::fs::read(place.path("there")).unwrap() == vec![1; 1 << 20]);
}

#[test]
fn raw_refuses_what_makes_no_sense() {
    let place = Place::new();
    place.write("there", vec![1; 1 << 20]);
    let raw = |args: &[&str]| place.run(&[&["raw", "--duration", "100ms"][..], args].concat());
    raw(&["--read", "101", "--bytes", "8MiB"]).fails(2, "read_percent");
    raw(&["--depth", "0", "--bytes", "8MiB"]).fails(2, "depth");
    raw(&["--page", "1000", "--bytes", "8MiB"]).fails(2, "page_bytes");
    raw(&["--backend", "magic"]).fails(2, "magic");
    raw(&["--file", "there", "--read", "0"]).fails(2, "read_percent");
    raw(&["--file", "nowhere"]).fails(3, "nowhere");
    raw(&["--file", "."]).fails(3, "directory");
    raw(&["--scratch", "there"]).fails(3, "there");
    raw(&["--file", "there", "--memory"]).fails(2, "cannot be used with");
    assert_eq!(place.names(), ["there"]);
    assert!(std::fs::read(place.path("there")).unwrap() == vec![1; 1 << 20]);
}

const SHORT: &[&str] = &[
    "--duration",
    "1s",
    "--warm-up",
    "100ms",
    "--no-drive",
    "--json",
];

/// The record of a run.
fn bench(place: &Place, args: &[&str]) -> serde_json::Value {
    let all = [&["bench", "run"][..], args, SHORT].concat();
    place.run(&all).ok().json().remove(0)
}

#[test]
fn bench_answers_a_record_with_units() {
    let place = Place::new();
    let record = bench(&place, &["--bytes", "24MiB", "--pool", "8MiB"]);
    assert_eq!(record["load"]["records"], (24 << 20) / 128);
    assert_eq!(record["calls"][0]["operation"], "get");
    assert_eq!(record["config_hash"].as_str().unwrap().len(), 16);
    for field in ["operations_per_s", "latency_us_p99", "cpu_us_per_operation"] {
        assert!(record[field].as_f64().unwrap() > 0.0, "{field}: {record}");
    }
    assert!(record["device_reads_per_operation"].as_f64().unwrap() > 0.2);
    let loaded = place.run(&["bench", "run", "--load-only", "--bytes", "1MiB", "--json"]);
    assert_eq!(loaded.ok().json()[0]["records"], (1 << 20) / 128);
    assert_eq!(place.names(), [""; 0], "the benchmark removes its store");
}

#[test]
fn bench_runs_every_operation_and_verifies_answers() {
    let place = Place::new();
    let mix = "get:4,get-many:1,scan:1,update:2,insert:2";
    let args = ["--records", "50000", "--pool", "8MiB", "--op", mix];
    let calls = bench(&place, &args)["calls"].take();
    let calls = calls.as_array().unwrap();
    let names = calls.iter().map(|of| of["operation"].as_str().unwrap());
    let names: Vec<_> = names.collect();
    assert_eq!(names, ["get", "get-many", "scan", "update", "insert"]);
    let mut done = calls.iter().map(|of| of["operations"].as_u64().unwrap());
    assert!(done.all(|operations| operations > 0), "{calls:?}");
}

#[test]
fn bench_in_memory_and_from_threads() {
    let place = Place::new();
    for args in [
        &["--memory-device", "--bytes", "16MiB", "--pool", "8MiB"][..],
        &["--in-pool", "--bytes", "8MiB", "--op", "get-many"],
        &["--bytes", "8MiB", "--from", "threads", "--threads", "4"],
        &[
            "--bytes",
            "8MiB",
            "--rate",
            "500",
            "--from",
            "threads",
            "--threads",
            "4",
        ],
        &["--bytes", "8MiB", "--rate", "500"],
    ] {
        let rate = bench(&place, args)["operations_per_s"].as_f64().unwrap();
        if args.contains(&"--rate") {
            assert!((350.0..650.0).contains(&rate), "{rate}");
        } else {
            assert!(rate > 500.0, "{args:?}: {rate}");
        }
    }
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn bench_keeps_and_reuses_data() {
    let place = Place::new();
    let args = ["--path", "b.iso", "--bytes", "8MiB", "--keep"];
    assert!(bench(&place, &args)["load"].is_object());
    assert!(bench(&place, &args)["load"].is_null(), "no second load");
    place
        .run(&["bench", "run", "--path", "b.iso", "--bytes", "8MiB"])
        .fails(2, "exists already");
    assert!(place.path("b.iso").exists());
    // Other records than those that are there are noticed, not measured.
    let other = [
        "bench",
        "run",
        "--path",
        "b.iso",
        "--bytes",
        "9MiB",
        "--keep",
        "--no-drive",
        "--duration",
        "1s",
    ];
    place.run(&other).fails(1, "is missing");
}

#[test]
fn bench_refuses_what_makes_no_sense() {
    let place = Place::new();
    let bench = |args: &[&str]| place.run(&[&["bench", "run"][..], args].concat());
    bench(&["--op", "fly"]).fails(2, "no operation");
    bench(&["--records", "0"]).fails(2, "at least 1");
    bench(&["--rate", "-5"]).fails(2, "");
    bench(&["--rate", "0"]).fails(2, "above 0");
    bench(&["--duration", "soon"]).fails(2, "soon");
    bench(&["--bytes", "1EiB"]).fails(3, "free some space");
    bench(&["--tasks", "0"]).fails(2, "would be zero");
    if !cfg!(feature = "rocksdb") {
        bench(&["--engine", "rocksdb"]).fails(2, "--features rocksdb");
    }
    assert_eq!(place.names(), [""; 0]);
}

#[cfg(feature = "rocksdb")]
#[test]
fn rocksdb_runs_every_operation() {
    let place = Place::new();
    let mix = "get:4,get-many:1,scan:1,update:2,insert:2";
    let record = bench(
        &place,
        &[
            "--engine",
            "rocksdb",
            "--records",
            "50000",
            "--threads",
            "4",
            "--op",
            mix,
        ],
    );
    let engine = record["setting"]["engine"].as_str().unwrap();
    assert!(engine.starts_with("rocksdb "), "{engine}");
    let calls = record["calls"].as_array().unwrap();
    assert_eq!(calls.len(), 5);
    let mut done = calls.iter().map(|of| of["operations"].as_u64().unwrap());
    assert!(done.all(|operations| operations > 0), "{calls:?}");
    place
        .run(&["bench", "run", "--engine", "rocksdb", "--memory-device"])
        .fails(2, "no memory device");
}

const TINY: &[&str] = &[
    "--records",
    "3000",
    "--pool",
    "8MiB",
    "--duration",
    "200ms",
    "--no-drive",
];

#[test]
fn workloads_have_names_and_run_with_verdicts() {
    let place = Place::new();
    let names = place.run(&["bench", "workloads", "--json"]).ok().json();
    assert!(names.len() >= 18);
    let args = [
        &["bench", "run", "--workload", "ycsb-f", "--json"][..],
        TINY,
    ]
    .concat();
    let record = &place.run(&args).ok().json()[0];
    assert_eq!(record["setting"]["workload"], "ycsb-f");
    assert!(record["operations_per_s"].as_f64().unwrap() > 0.0);
    assert!(record["harness_ns_per_operation"].as_f64().unwrap() > 0.0);
    assert!(record["settings"].as_array().unwrap().len() > 5);
    let args = [&["bench", "run", "--workload", "ycsb-f"][..], TINY].concat();
    let text = place.run(&args).ok();
    let flat = text.text().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("no headline number"), "{flat}");
    assert!(flat.contains("unknown here: "), "{flat}");
    assert_eq!(place.names(), [""; 0]);
    place
        .run(&["bench", "run", "--workload", "fly"])
        .fails(2, "is no workload");
    place
        .run(&["bench", "run", "--engine", "null", "--simulated", "1GiB"])
        .fails(2, "only Isobath");
    place
        .run(&["bench", "run", "--engine", "null", "--trace", "t"])
        .fails(2, "no run is of Isobath");
}

#[test]
fn transactions_run_and_keep_their_conditions() {
    let place = Place::new();
    let args = [
        "bench",
        "run",
        "--workload",
        "tpcc-small",
        "--warehouses",
        "2",
        "--pool",
        "16MiB",
        "--duration",
        "500ms",
        "--no-drive",
        "--trace",
        "pages.trace",
    ];
    let record = &place.run(&[&args[..], &["--json"]].concat()).ok().json()[0];
    assert_eq!(record["calls"].as_array().unwrap().len(), 5);
    assert_eq!(record["tpcc"]["warehouses_checked"], 2);
    assert_eq!(record["tpcc"]["violations"].as_array().unwrap().len(), 0);
    assert!(record["wa_a"].as_f64().unwrap() >= 0.0);
    assert!(place.path("pages.trace").exists());
    let least = place.run(&[&args[..11], &["--isolation", "least"]].concat());
    let least = least.ok().text().to_owned();
    assert!(least.contains("TPC-C-derived, not TPC-C"));
    assert!(
        least.lines().all(|line| line.chars().count() <= 80),
        "{least}"
    );
    place
        .run(&[
            "bench",
            "run",
            "--engine",
            "null",
            "--workload",
            "tpcc-small",
        ])
        .fails(2, "keeps nothing");
}
