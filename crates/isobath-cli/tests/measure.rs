//! quickstart and bench, small.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

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
    assert_eq!(report["lookups"]["load"]["records"], (8 << 20) * 10 / 128);
    let row = &report["lookups"]["rows"][0];
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
    // What cannot begin is not announced.
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
        "100ms",
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

fn bench(place: &Place, args: &[&str]) -> Vec<serde_json::Value> {
    let all = [&["bench", "lookup"][..], args, SHORT].concat();
    place.run(&all).ok().json()
}

#[test]
fn bench_answers_rows_with_units() {
    let place = Place::new();
    let rows = bench(&place, &["--bytes", "24MiB", "--pool", "8MiB"]);
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0]["records"], (24 << 20) / 128);
    let row = &rows[1];
    assert_eq!(row["operation"], "get");
    assert_eq!(row["config_hash"].as_str().unwrap().len(), 16);
    for field in ["operations_per_s", "latency_us_p99", "cpu_us_per_operation"] {
        assert!(row[field].as_f64().unwrap() > 0.0, "{field}: {row}");
    }
    assert!(row["device_reads_per_operation"].as_f64().unwrap() > 0.2);
    assert_eq!(place.names(), [""; 0], "the benchmark removes its store");
}

#[test]
fn bench_runs_every_operation_and_verifies_answers() {
    let place = Place::new();
    let mix = "get:4,get-many:1,scan:1,update:2,insert:2";
    let rows = bench(
        &place,
        &["--records", "50000", "--pool", "8MiB", "--op", mix],
    );
    let names: Vec<_> = rows[1..]
        .iter()
        .map(|r| r["operation"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["get", "get-many", "scan", "update", "insert"]);
    assert!(
        rows[1..]
            .iter()
            .all(|r| r["operations"].as_u64().unwrap() > 0)
    );
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
        let rows = bench(&place, args);
        let rate = rows[1]["operations_per_s"].as_f64().unwrap();
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
    assert_eq!(bench(&place, &args).len(), 2);
    assert_eq!(bench(&place, &args).len(), 1, "no second load");
    place
        .run(&["bench", "lookup", "--path", "b.iso", "--bytes", "8MiB"])
        .fails(2, "exists already");
    assert!(place.path("b.iso").exists());
    // Other records than those that are there are noticed, not measured.
    let other = [
        "bench",
        "lookup",
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
    let bench = |args: &[&str]| place.run(&[&["bench", "lookup"][..], args].concat());
    bench(&["--op", "fly"]).fails(2, "no operation");
    bench(&["--records", "0"]).fails(2, "at least 1");
    bench(&["--rate", "-5"]).fails(2, "");
    bench(&["--rate", "0"]).fails(2, "above 0");
    bench(&["--duration", "soon"]).fails(2, "soon");
    bench(&["--bytes", "1EiB"]).fails(3, "free some space");
    bench(&["--tasks", "0"]).fails(2, "at least 1");
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
    let rows = bench(
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
    assert_eq!(rows.len(), 6);
    assert!(rows[1]["engine"].as_str().unwrap().starts_with("rocksdb "));
    assert!(
        rows[1..]
            .iter()
            .all(|r| r["operations"].as_u64().unwrap() > 0)
    );
    place
        .run(&["bench", "lookup", "--engine", "rocksdb", "--memory-device"])
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
    assert_eq!(record["workload"], "ycsb-f");
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
    assert_eq!(record["operations_by_type"].as_array().unwrap().len(), 5);
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

#[test]
fn comparisons_interleave_and_campaigns_are_gone_on_with() {
    let place = Place::new();
    let args = [
        &["bench", "compare", "null", "null", "--json", "--out", "c"][..],
        TINY,
    ]
    .concat();
    let first = place.run(&args).ok().json();
    assert_eq!(first.len(), 11);
    let ratio = &first[10];
    assert_eq!(ratio["repeats_count"], 5);
    assert!(ratio["low"].as_f64() <= ratio["ratio"].as_f64());
    assert!(ratio["ratio"].as_f64() <= ratio["high"].as_f64());
    // Nothing is run twice: the second session has the numbers of the first.
    assert_eq!(place.run(&args).ok().json(), first);
    let answer = place
        .run(&["bench", "report", "c", "--html", "r.html"])
        .ok();
    assert!(answer.text().contains("10 runs"), "{}", answer.text());
    let page = std::fs::read_to_string(place.path("r.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("violated"), "{page}");
    place
        .run(&["bench", "report", "nowhere"])
        .fails(2, "holds no campaign");
}

/// Both engines have the same number of trials, and those of an earlier session are not run again.
#[test]
fn settings_are_searched_with_equal_effort() {
    let place = Place::new();
    let words = "bench compare isobath null --search 3 --search-time 40ms --records 2000 --duration 60ms --no-drive \
        --repeats 1 --out c";
    let args: Vec<&str> = words.split_whitespace().collect();
    let all = place.run(&[&args[..], &["--json"]].concat()).ok().json();
    for record in &all[..2] {
        let search = &record["search"];
        let trials = search["trials"].as_array().unwrap();
        assert_eq!(trials.len(), 3);
        assert_eq!(trials[0]["settings"].as_array().unwrap().len(), 0);
        let best = usize::try_from(search["best"].as_u64().unwrap()).unwrap();
        let rate = |trial: &serde_json::Value| trial["operations_per_s"].as_f64().unwrap();
        assert!(
            trials
                .iter()
                .all(|trial| rate(trial) <= rate(&trials[best]))
        );
        // What won is what was measured.
        let settings = trials[best]["settings"].as_array().unwrap();
        for setting in settings
            .iter()
            .filter(|setting| setting[0] == "tasks_per_worker")
        {
            let is_set = |s: &&serde_json::Value| s[0] == "tasks_per_worker";
            let measured = record["settings"]
                .as_array()
                .unwrap()
                .iter()
                .find(is_set)
                .unwrap();
            let measured: f64 = measured[1].as_str().unwrap().parse().unwrap();
            assert_eq!(Some(measured), setting[1].as_f64());
        }
    }
    let trials = std::fs::read_to_string(place.path("c/trials.jsonl")).unwrap();
    assert_eq!(trials.lines().count(), 6);
    let text = place.run(&args).ok();
    assert!(text.text().contains("as asked") && text.text().contains("fastest"));
    assert_eq!(
        std::fs::read_to_string(place.path("c/trials.jsonl")).unwrap(),
        trials
    );
    place
        .run(&[
            "bench",
            "run",
            "--search",
            "2",
            "--rate",
            "100",
            "--no-drive",
        ])
        .fails(2, "no fixed rate");
}

/// Transactions have a second pair of rows, with the least isolation; single operations of these engines are the same with both.
#[test]
fn a_comparison_has_second_rows_with_the_least_isolation() {
    let place = Place::new();
    let words = "bench compare isobath isobath --workload tpcc-small --warehouses 1 --pool 16MiB --duration 400ms --no-drive \
        --repeats 1";
    let args: Vec<&str> = words.split_whitespace().collect();
    let all = place.run(&[&args[..], &["--json"]].concat()).ok().json();
    let mut isolations: Vec<_> = all[..4]
        .iter()
        .map(|record| record["isolation"].as_str().unwrap())
        .collect();
    isolations.sort_unstable();
    assert_eq!(isolations, ["least", "least", "snapshot", "snapshot"]);
    let pairs: Vec<_> = all[4..].iter().map(|pair| &pair["isolation"]).collect();
    assert_eq!(pairs, ["snapshot", "least"]);
    // Equal engines on both sides: each ratio is that of the two rows with its isolation, one way round or the other.
    for pair in &all[4..] {
        let of = all[..4]
            .iter()
            .filter(|r| r["isolation"] == pair["isolation"]);
        let rates: Vec<f64> = of
            .map(|r| r["operations_per_s"].as_f64().unwrap())
            .collect();
        let ratio = pair["ratio"].as_f64().unwrap();
        let is = |wanted: f64| (ratio / wanted - 1.0).abs() < 1e-6;
        assert!(
            is(rates[0] / rates[1]) || is(rates[1] / rates[0]),
            "{ratio} {rates:?}"
        );
    }
    let text = place.run(&args).ok();
    let flat = text.text().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        flat.contains("isobath / isobath, each with its least isolation: "),
        "{flat}"
    );
    assert!(flat.contains("least isolation: pool_bytes"), "{flat}");
    let without = [&args[..], &["--json", "--no-least"]].concat();
    assert_eq!(place.run(&without).ok().json().len(), 3);
    let single = words.replace("tpcc-small --warehouses 1", "update --records 500");
    let single: Vec<&str> = single.split_whitespace().chain(["--json"]).collect();
    assert_eq!(place.run(&single).ok().json().len(), 3);
}

#[test]
fn a_campaign_of_named_rows_writes_a_report_and_goes_on() {
    let place = Place::new();
    let listed = place.run(&["bench", "campaign", "--list"]).ok();
    assert!(listed.text().contains("ycsb-f-out"), "{}", listed.text());
    let words = "bench campaign --out c --engines null,isobath --rows lookup,update-128-ssd-trimmed --bytes 24MiB \
        --duration 100ms --warm-up 0s --no-drive";
    let args: Vec<&str> = words.split_whitespace().collect();
    let rows = place.run(&[&args[..], &["--json"]].concat()).ok().json();
    let names: Vec<_> = rows
        .iter()
        .map(|row| row["row"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "lookup-in",
            "lookup-out",
            "lookup-zipf-out",
            "update-128-ssd-trimmed"
        ]
    );
    for row in &rows[..3] {
        let engines = row["engines"].as_array().unwrap();
        assert!(
            engines[0]["engine"]
                .as_str()
                .unwrap()
                .starts_with("isobath ")
        );
        assert_eq!(engines[1]["engine"], "null");
        let rate = |at: usize| engines[at]["operations_per_s"].as_f64().unwrap();
        let ratio = engines[1]["first_over_this"]["ratio"].as_f64().unwrap();
        assert!((ratio - rate(0) / rate(1)).abs() < 1e-6 * ratio);
    }
    assert_eq!(rows[3]["engines"].as_array().unwrap().len(), 1);
    // Below 1 where the drive's cache holds what so short a run has written.
    assert!(rows[3]["engines"][0]["wa_d"].as_f64().unwrap() > 0.0);
    let records = std::fs::read_to_string(place.path("c/records.jsonl")).unwrap();
    assert_eq!(records.lines().count(), 7);
    let csv = std::fs::read_to_string(place.path("c/records.csv")).unwrap();
    assert!(
        csv.starts_with("row,") && csv.contains("\nlookup-in,"),
        "{csv}"
    );
    let page = std::fs::read_to_string(place.path("c/report.html")).unwrap();
    assert!(page.contains("<h2>Rows</h2>") && page.contains("<h2>lookup-zipf-out</h2>"));
    // The last run was lost: the second session runs that one alone.
    let kept: String = records
        .lines()
        .take(6)
        .map(|line| line.to_owned() + "\n")
        .collect();
    std::fs::write(place.path("c/records.jsonl"), &kept).unwrap();
    let text = place.run(&args).ok();
    let again = std::fs::read_to_string(place.path("c/records.jsonl")).unwrap();
    assert!(again.starts_with(&kept) && again.lines().count() == 7);
    assert!(
        text.text().contains("fewer than 5 repeats"),
        "{}",
        text.text()
    );
    assert!(!place.path("c/isobath-bench.iso").exists());
    if !cfg!(feature = "wiredtiger") {
        place
            .run(&["bench", "campaign", "--out", "d", "--engines", "wiredtiger"])
            .fails(2, "this build has no WiredTiger");
    }
}

#[test]
fn rows_that_write_stand_beside_the_drives_limit_of_writes() {
    let place = Place::new();
    let run = |workload: &str, more: &[&str]| {
        let words = format!(
            "bench run --workload {workload} --records 3000 --pool 8MiB --duration 200ms --depth 8"
        );
        let args: Vec<&str> = words.split(' ').chain(more.iter().copied()).collect();
        place.run(&args).ok()
    };
    let record = &run("update", &["--json", "--out", "c"]).json()[0];
    for at in 0..2 {
        let limit = &record["drive_writes"][at];
        for name in [
            "random_writes_per_s",
            "random_flushed_writes_per_s",
            "sequential_mb_per_s",
            "sequential_flushed_mb_per_s",
        ] {
            assert!(limit[name].as_f64().unwrap() > 0.0, "{name} in {limit}");
        }
    }
    let csv = std::fs::read_to_string(place.path("c/records.csv")).unwrap();
    assert!(csv.contains(",drive_random_writes_per_s_before,"), "{csv}");
    assert_eq!(csv.lines().next().unwrap().split(',').count(), 43);
    place
        .run(&["bench", "report", "c", "--html", "r.html"])
        .ok();
    let page = std::fs::read_to_string(place.path("r.html")).unwrap();
    assert!(page.contains("The drive's own limit"), "{page}");
    let reads = &run("lookup", &["--json"]).json()[0];
    assert!(reads["drive_writes"].is_null());
    let text = run("update", &[]);
    let flat = text.text().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        flat.contains("the drive's own limit, before / after"),
        "{flat}"
    );
    assert_eq!(place.names(), ["c", "r.html"]);
}

#[test]
fn rows_have_several_sizes_and_one_rate_for_all_engines() {
    let place = Place::new();
    let words = "bench campaign --out c --engines null,isobath --rows lookup-in --bytes 4MiB --duration 100ms --warm-up 0s \
        --no-drive --sizes 0.25,0.5,1 --half-rate";
    let args: Vec<&str> = words.split_whitespace().collect();
    let rows = place.run(&[&args[..], &["--json"]].concat()).ok().json();
    assert_eq!(rows.len(), 2);
    assert_eq!(
        (&rows[0]["row"], &rows[1]["row"]),
        (&"lookup-in".into(), &"lookup-in, half rate".into())
    );
    assert_eq!(
        (&rows[0]["sizes_count"], &rows[1]["sizes_count"]),
        (&3.into(), &1.into())
    );
    let violated = |row: &serde_json::Value| row["violated"].to_string();
    assert!(!violated(&rows[0]).contains("dataset-size"), "{}", rows[0]);
    assert!(violated(&rows[1]).contains("dataset-size"), "{}", rows[1]);
    assert!(rows[0]["rate_per_s"].is_null() && rows[1]["rate_per_s"].as_f64() > Some(0.0));
    for engine in rows[1]["engines"].as_array().unwrap() {
        let us = |name: &str| engine[name].as_f64().unwrap();
        assert!(us("latency_us_p99") <= us("latency_us_p999"));
        assert!(us("latency_us_p999") <= us("latency_us_max"));
    }
    // The same command again finds the same rates, so nothing is run again.
    let records = std::fs::read_to_string(place.path("c/records.jsonl")).unwrap();
    assert_eq!(records.lines().count(), 8);
    let text = place.run(&args).ok();
    let flat = text.text().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        flat.contains("p99.9") && flat.contains("half of the slowest"),
        "{flat}"
    );
    let again = std::fs::read_to_string(place.path("c/records.jsonl")).unwrap();
    assert_eq!(again, records);
    let wrong = words.replace("0.25,0.5,1", "2");
    let wrong: Vec<&str> = wrong.split_whitespace().collect();
    place.run(&wrong).fails(2, "at most 1");

    let args = [
        &[
            "bench",
            "compare",
            "null",
            "isobath",
            "--json",
            "--half-rate",
        ][..],
        &["--repeats", "1", "--workload", "lookup"],
        TINY,
    ]
    .concat();
    let all = place.run(&args).ok().json();
    assert_eq!(all.len(), 6);
    let rates = |at: usize| &all[at]["rate_per_s"];
    assert!(rates(0).is_null() && rates(1).is_null());
    assert!(rates(2).as_f64() > Some(0.0));
    assert!(rates(2) == rates(3) && rates(2) == rates(4));
    // What the drive alone does at that rate stands beside them, though it was not asked for.
    let named = |at: usize| all[at]["engine"] == "drive";
    assert_eq!((0..5).filter(|at| named(*at)).count(), 1);
    assert!((2..5).any(named));
}

/// Each of the seven is committed by runs, and each is caught alone.
#[test]
fn the_benchmark_catches_itself_seven_times() {
    let place = Place::new();
    let caught = place.run(&["bench", "self-test", "--json"]).ok().json();
    assert_eq!(caught.len(), 7);
    for one in &caught {
        assert_eq!(one["is_caught"], true, "{one}");
    }
    // A limit below what a run takes to become steady leaves no control to compare with.
    let text = place.run(&["bench", "self-test", "--longest", "200ms"]);
    text.fails(1, "");
}

#[test]
fn a_sweep_varies_clients_and_fill_factors() {
    let place = Place::new();
    let words = "bench sweep --engines isobath,null --workload lookup --bytes 4MiB --pool 8MiB --sizes 1 --clients 1,2 \
        --fill-factors 0.5,0.7 --workers 1 --duration 100ms --no-drive --json --out s";
    let args: Vec<&str> = words.split_whitespace().collect();
    let rows = place.run(&args).ok().json();
    let mut seen: Vec<(String, u64, String)> = rows
        .iter()
        .map(|row| {
            (
                row["engine"].as_str().unwrap()[..4].to_owned(),
                row["clients_count"].as_u64().unwrap(),
                row["fill_factor"].to_string(),
            )
        })
        .collect();
    seen.sort();
    let threads = std::thread::available_parallelism().unwrap().get() as u64;
    let one = |engine: &str, clients, fill: &str| (engine.to_owned(), clients, fill.to_owned());
    assert_eq!(
        seen,
        [
            one("isob", 1, "0.5"),
            one("isob", 1, "0.7"),
            one("isob", 2, "0.5"),
            one("isob", 2, "0.7"),
            one("null", threads, "null"),
            one("null", 2 * threads, "null"),
        ]
    );
    place
        .run(&["bench", "report", "s", "--html", "r.html"])
        .ok();
    let page = std::fs::read_to_string(place.path("r.html")).unwrap();
    for curve in ["over clients at the same time", "over the fill factor"] {
        assert!(page.contains(curve), "{curve}");
    }
    assert!(!page.contains("over the dataset's bytes"));
    let words = "bench sweep --workload update --simulated 48MiB --sizes 0.2,0.4 --over-provisioning 0.2,0.3 --profiles tlc \
        --duration 300ms --workers 1 --tasks 4 --pool 8MiB --log-off --out o --quiet";
    let args: Vec<&str> = words.split_whitespace().collect();
    place.run(&args).ok();
    place
        .run(&["bench", "report", "o", "--html", "o.html"])
        .ok();
    let page = std::fs::read_to_string(place.path("o.html")).unwrap();
    let maps: Vec<&str> = page.split("Drives needed: ").skip(1).collect();
    assert_eq!(maps.len(), 1);
    assert!(
        maps[0].contains("20% over-provisioned / isobath") && maps[0].contains("30% over"),
        "{}",
        maps[0]
    );
}

/// Every run has the same blocks and a new file system in them, and leaves nothing mounted.
#[test]
fn runs_in_one_region() {
    let place = Place::new();
    let words = |region: &'static str| {
        let rest = "--workload update --records 2000 --duration 300ms --no-drive --repeats 1";
        let mut args = vec!["bench", "compare", "isobath", "isobath"];
        args.extend(rest.split(' '));
        args.extend(["--region", region, "--region-bytes", "384MiB"]);
        args
    };
    std::fs::write(place.path("data"), vec![7; 100 << 20]).unwrap();
    let refused = place.run(&words("data"));
    if !refused.err.contains("no region") {
        // Not root, or no loop devices.
        refused.fails(2, "a region needs");
        return;
    }
    assert!(std::fs::read(place.path("data")).unwrap() == vec![7; 100 << 20]);
    let records = place
        .run(&[&words("region")[..], &["--json"]].concat())
        .ok()
        .json();
    assert_eq!(records.len(), 3);
    for record in &records[..2] {
        assert_eq!(record["capacity_bytes"], 384 << 20);
        assert!(
            record["drive"]
                .as_str()
                .unwrap()
                .starts_with("one region; ")
        );
        assert!(record["capacities_written"].as_f64().unwrap() > 0.0);
    }
    assert!(!place.path("region.mounted").exists());
    // It is used again as it is, with what the last run has left in it.
    place.run(&words("region")).ok();
}
