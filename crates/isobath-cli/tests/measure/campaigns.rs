//! Comparisons, campaigns, sweeps and the benchmark's tests of itself, small.

use super::*;

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
        .run(&["bench", "report", "c", "--html", "r.html", "--charts", "s"])
        .ok();
    let charts = std::fs::read_dir(place.path("s")).unwrap();
    for chart in charts.map(|chart| chart.unwrap().path()) {
        let svg = std::fs::read_to_string(&chart).unwrap();
        assert!(svg.starts_with("<svg xmlns"), "{}", chart.display());
    }
    for name in ["lookup-throughput.svg", "lookup-latency.svg"] {
        assert!(place.path("s").join(name).exists(), "{name}");
    }
    assert!(answer.text().contains("10 runs"), "{}", answer.text());
    let page = std::fs::read_to_string(place.path("r.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("violated"), "{page}");
    place
        .run(&["bench", "report", "nowhere"])
        .fails(2, "holds no campaign");
}

#[test]
fn a_cost_is_that_of_one_row_at_full_load() {
    let place = Place::new();
    let words = "bench campaign --out m --engines isobath --rows lookup-in,scan-in --bytes 1MiB --duration 50ms --warm-up 0s --no-drive --half-rate";
    place
        .run(&words.split_whitespace().collect::<Vec<_>>())
        .ok();
    let cost = |words: &str| place.run(&words.split_whitespace().collect::<Vec<_>>());
    // So short runs of one size say nothing of how many drives are needed.
    let answer =
        cost("bench cost m --data 1TB --rate 1000").fails(2, "every row commits a pitfall");
    let text = answer.text();
    assert!(
        text.contains(" lookup-in ") && text.contains(" scan-in "),
        "{text}"
    );
    assert_eq!(text.matches("isobath").count(), 2, "{text}");
    let said = text.matches("not known: short run, dataset size").count();
    assert_eq!(said, 2, "{text}");
    assert!(!text.contains("null"), "{text}");
    for wrong in [
        "--data 0 --rate 1",
        "--data 1TB --rate 0",
        "--data 1TB --rate inf",
    ] {
        cost(&format!("bench cost m {wrong}")).fails(2, "above 0");
    }
    place
        .run(&["bench", "compare", "null", "null", "--repeats", "0"])
        .fails(2, "--repeats");
}

/// Five pairs with equal rates are no difference, whichever engine is compared with itself.
#[test]
fn an_engine_is_not_told_from_itself() {
    let place = Place::new();
    let words = "bench compare isobath isobath --records 500 --duration 30ms --no-drive --workers 1 --tasks 2 --out c";
    let args: Vec<&str> = words.split_whitespace().collect();
    // A machine that stands still for as long as a run takes leaves it without an operation. Any
    // other failure is one.
    let first = place.run(&args);
    if first.code != 0 {
        first.fails(2, NO_OPERATION);
    }
    // Measured times are replaced, since a time is no assertion; the same command takes it from
    // the records.
    let path = place.path("c/records.jsonl");
    let set = |of: &dyn Fn(u64) -> f64| {
        let text = std::fs::read_to_string(&path).unwrap();
        let line = |line: &str| {
            let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
            let round = line["record"]["round"].as_u64().unwrap();
            let side = u64::from(line["case"].as_str().unwrap().contains("-1-"));
            line["record"]["operations_per_s"] = of(round * 2 + side).into();
            line.to_string()
        };
        let lines: Vec<String> = text.lines().map(line).collect();
        std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    };
    let compared = || {
        let all = place.run(&[&args[..], &["--json"]].concat()).ok().json();
        assert_eq!(all.len(), 11);
        all[10].clone()
    };
    // Rounds differ, the two sides of a round do not.
    set(&|at| 1000.0 + (at / 2) as f64 * 100.0);
    let ratio = compared();
    for end in ["ratio", "low", "high"] {
        assert!((ratio[end].as_f64().unwrap() - 1.0).abs() < 1e-9, "{ratio}");
    }
    assert_eq!(
        (ratio["says"].as_str(), ratio["repeats_count"].as_u64()),
        (Some("undecided"), Some(5))
    );
    let text = place
        .run(&args)
        .ok()
        .text()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let said = "isobath / isobath: 1.000 (95%: 1.000 to 1.000, 5 repeats); no difference can be told: the interval includes 1";
    assert!(text.contains(said), "{text}");
    // Sides that differ by as much in every round are told apart.
    set(&|at| 1000.0 + (at % 2) as f64 * 100.0);
    let ratio = compared();
    assert_eq!(ratio["says"], "below", "{ratio}");
    // Without an operation there is no ratio, and no corruption either.
    set(&|at| at as f64);
    place.run(&args).fails(2, NO_OPERATION);
}

const NO_OPERATION: &str = "a run ended without a single operation, so there is nothing to compare; give a longer --duration";

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
        // The winner is the one that was measured.
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

/// Transactions have a second pair of rows, with the least isolation; single operations of these
/// engines are the same with both.
#[test]
fn a_comparison_has_second_rows_with_the_least_isolation() {
    let place = Place::new();
    let words = "bench compare isobath isobath --workload tpcc-small --warehouses 1 --pool 16MiB --duration 400ms --no-drive \
        --repeats 1";
    let args: Vec<&str> = words.split_whitespace().collect();
    let all = place.run(&[&args[..], &["--json"]].concat()).ok().json();
    fn isolation(record: &serde_json::Value) -> &serde_json::Value {
        &record["setting"]["tuning"]["isolation"]
    }
    let mut isolations: Vec<_> = all[..4]
        .iter()
        .map(|record| isolation(record).as_str().unwrap())
        .collect();
    isolations.sort_unstable();
    assert_eq!(isolations, ["least", "least", "snapshot", "snapshot"]);
    let pairs: Vec<_> = all[4..].iter().map(|pair| &pair["isolation"]).collect();
    assert_eq!(pairs, ["snapshot", "least"]);
    // Equal engines on both sides: each ratio is that of the two rows with its isolation, one way
    // round or the other.
    for pair in &all[4..] {
        let of = all[..4]
            .iter()
            .filter(|r| *isolation(r) == pair["isolation"]);
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
    // Below 1 if the drive's cache holds what so short a run has written.
    assert!(rows[3]["engines"][0]["wa_d"].as_f64().unwrap() > 0.0);
    let records = std::fs::read_to_string(place.path("c/records.jsonl")).unwrap();
    assert_eq!(records.lines().count(), 7);
    let csv = std::fs::read_to_string(place.path("c/records.csv")).unwrap();
    assert!(
        csv.contains(",row,") && csv.contains(",lookup-in,"),
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
    assert!(
        csv.contains(",drive_writes_before_random_writes_per_s,"),
        "{csv}"
    );
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
    let rates = |at: usize| &all[at]["setting"]["rate_per_s"];
    assert!(rates(0).is_null() && rates(1).is_null());
    assert!(rates(2).as_f64() > Some(0.0));
    assert!(rates(2) == rates(3) && rates(2) == rates(4));
    // The drive's own row at that rate stands with them, though it was not asked for.
    let named = |at: usize| all[at]["setting"]["kind"] == "drive";
    assert_eq!((0..5).filter(|at| named(*at)).count(), 1);
    assert!((2..5).any(named));
}

/// Each fault is committed by runs, and each is caught alone.
#[test]
fn the_benchmark_catches_itself() {
    let place = Place::new();
    let caught = place.run(&["bench", "self-test", "--json"]).ok().json();
    assert!(caught.len() >= 13, "{}", caught.len());
    for one in &caught {
        assert_eq!(one["is_caught"], true, "{one}");
    }
    // A limit below what a run takes to become steady leaves no control to compare with.
    let text = place.run(&["bench", "self-test", "--longest", "200ms"]);
    text.fails(1, "");
}

/// A workload file says how many clients there are, and how much memory; the command line comes
/// before it.
#[test]
fn a_workload_file_has_clients_and_memory() {
    let place = Place::new();
    let file = "[data]\nrecord_count = 400\nkey_bytes = 24\nvalue_bytes = 1000\n\
        [operations]\npoint_reads = 0.5\nupdates = 0.5\nclients = 6\n\
        [machine]\nmemory_bytes = 134_217_728\ncore_count = 2\n";
    place.write("w.toml", file);
    let run = |more: &str| {
        let words = format!("bench run --workload w.toml --no-drive --duration 50ms --json {more}");
        let args: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        place.run(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let record = &run("").ok().json()[0];
    assert_eq!(record["clients_count"], 6);
    assert_eq!(record["setting"]["pool_bytes"], 128 << 20);
    assert!(
        record["setting"]["space"]["buffered_ms"].is_null(),
        "synced, as such files are"
    );
    let record = &run("--tasks 4 --workers 1 --pool 9MiB --durability none")
        .ok()
        .json()[0];
    assert_eq!(record["clients_count"], 4);
    assert_eq!(record["setting"]["pool_bytes"], 9 << 20);
    run("--workers 4").fails(2, "cannot share the 6 clients");
    assert_eq!(run("--engine null").ok().json()[0]["clients_count"], 6);
    // Values of as many clients would not fit into memory: what would is said, and nothing is
    // loaded.
    let large = file.replace("value_bytes = 1000", "value_bytes = 1_073_741_824");
    place.write("w.toml", large.replace("clients = 6", "clients = 4096"));
    run("--engine null").fails(2, "at most fit");
}

/// Two operations show nothing, however little they change.
#[test]
fn a_rate_of_one_is_not_steady() {
    let place = Place::new();
    let words = "bench run --engine null --workload lookup --records 1000 --rate 1 --duration 1600ms --no-drive";
    let args: Vec<&str> = words.split_whitespace().collect();
    let text = place.run(&args).ok();
    let flat = text.text().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("short run violated"), "{flat}");
}

/// What refuses every run is the answer, once, with its own exit code.
#[test]
fn a_sweep_that_is_refused_says_why() {
    let place = Place::new();
    place.write("there", "");
    let words = "bench sweep --path there --workload lookup --bytes 1MiB --pool 8MiB --sizes 1 --clients 1,2 --workers 1 \
        --duration 50ms --no-drive --quiet";
    let args: Vec<&str> = words.split_whitespace().collect();
    let refused = place.run(&args).fails(2, "there exists already; ");
    assert_eq!(
        refused.err.matches("exists already").count(),
        1,
        "{refused:?}"
    );
    assert!(!refused.err.contains("verification"), "{refused:?}");
}

#[test]
fn a_sweep_varies_clients_and_fill_factors() {
    let place = Place::new();
    let words = "bench sweep --engines isobath,null --workload lookup --bytes 4MiB --pool 8MiB --sizes 1 --clients 1,2 \
        --fill-factors 0.5,0.7 --segment 128KiB --workers 1 --duration 100ms --no-drive --json --out s";
    let args: Vec<&str> = words.split_whitespace().collect();
    let rows = place.run(&args).ok().json();
    for row in rows.iter().filter(|row| row["setting"]["kind"] != "null") {
        let settings = row["settings"].to_string();
        assert!(
            settings.contains(r#"["segment_bytes","131072"]"#),
            "{settings}"
        );
    }
    let mut seen: Vec<(String, u64, String)> = rows
        .iter()
        .map(|row| {
            (
                row["setting"]["kind"].as_str().unwrap()[..4].to_owned(),
                row["clients_count"].as_u64().unwrap(),
                row["setting"]["space"]["fill_factor"].to_string(),
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
    // Two sizes and so short a time say nothing of how many drives are needed.
    assert!(page.contains("No headline number") && !page.contains("Drives needed"));
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
        crate::skipped::skipped("a region needs the superuser and loop devices");
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
        let medium = &record["setting"]["medium"];
        assert_eq!(medium["region_bytes"], 384 << 20);
        assert_eq!(medium["kind"], "drive");
        assert!(record["capacities_written"].as_f64().unwrap() > 0.0);
    }
    assert!(!place.path("region.mounted").exists());
    // A run that is killed leaves a file system mounted, which the next one unmounts; no run
    // unmounts that of a running one.
    let mut killed = place
        .command()
        .args(words("region"))
        .args(["--warm-up", "60s"])
        .spawn()
        .unwrap();
    let mounted = place.path("region.mounted");
    while std::fs::read_dir(&mounted).map_or(0, Iterator::count) < 2 {
        assert!(killed.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let beside = place.run(&words("region"));
    killed.kill().unwrap();
    killed.wait().unwrap();
    beside.fails(3, "another run has this region");
    assert!(mounted.exists());
    // The region is used again as it is, with what the last run has left in it.
    place.run(&words("region")).ok();
    assert!(!mounted.exists());
}
