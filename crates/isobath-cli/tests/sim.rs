//! sim clean, sim analysis, sim overlay, and the paper about cleaning.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests read and write files as they like"
)]

mod support;

use support::Place;

/// A device that is simulated in milliseconds.
const SMALL: [&str; 9] = [
    "sim",
    "clean",
    "--device",
    "64MiB",
    "--segment",
    "256KiB",
    "--writes",
    "3",
    "--threads=2",
];

/// The limits of the fluid bound; the first words of the sentences.
const BOUND_LIMITS: &str = "The bound holds for updates that are independent of each other";
const OWN_BATCHES: &str = "Each policy cleans a batch of its own choice";

/// A text without its line breaks.
fn words_of(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn small<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SMALL, more].concat()
}

#[test]
fn a_sweep_prints_a_table_and_writes_csv_and_html() {
    let place = Place::new();
    let answer = place
        .run(&small(&[
            "--policy",
            "greedy,mdc",
            "--workload",
            "uniform,hot-cold:0.9",
            "--fill",
            "0.6..0.8:0.1",
            "--csv",
            "rows.csv",
            "--html",
            "report.html",
        ]))
        .ok();
    for word in [
        "Wamp steady",
        "bound",
        "hot-cold:0.9",
        "mdc",
        "written: rows.csv",
    ] {
        assert!(answer.text().contains(word), "{word}: {}", answer.text());
    }
    let said = words_of(answer.text());
    assert!(said.contains(BOUND_LIMITS), "{said}");
    assert!(said.contains(OWN_BATCHES), "{said}");
    let csv = std::fs::read_to_string(place.path("rows.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 2 * 2 * 3);
    let html = std::fs::read_to_string(place.path("report.html")).unwrap();
    for word in ["Table 1", "Table 2", "<svg", "Fig. 5", "hot-cold:0.9"] {
        assert!(html.contains(word), "{word}");
    }
}

#[test]
fn json_rows_carry_the_distribution_and_the_series() {
    let place = Place::new();
    let rows = place
        .run(&small(&[
            "--json",
            "--policy",
            "mdc",
            "--workload",
            "zipf:0.99",
            "--sort-buffer",
            "0,4",
            "--duplicates",
            "absorbed",
            "--page-sizes",
            "spread",
        ]))
        .ok()
        .json();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[1]["sort_buffer_segments"], 4);
    assert_eq!(rows[1]["duplicates_absorbed"], true);
    assert!(rows[0]["wamp_series_ratio"].as_array().unwrap().len() >= 100);
    assert_eq!(
        rows[0]["emptiness_histogram_count"]
            .as_array()
            .unwrap()
            .len(),
        101
    );
    assert!(rows[0]["wamp_steady_ratio"].as_f64().unwrap() > 0.0);
    let writes = |row: &serde_json::Value| row["page_writes_per_update_steady"].as_f64().unwrap();
    assert!(
        writes(&rows[1]) < writes(&rows[0]),
        "absorbing saves writes"
    );
}

#[test]
fn every_policy_and_every_law_runs() {
    let place = Place::new();
    let laws = "uniform,hot-cold:0.8,hot-cold:0.9:0.2,zipf:1.35";
    let rows = place
        .run(&small(&["--json", "--policy", "all", "--workload", laws]))
        .ok()
        .json();
    assert_eq!(rows.len(), 10 * 4);
    let moving = "shifting:0.8:0.2:5,sliding:0.8:0.2:10,zipf-moving:0.99:20";
    let rows = place
        .run(&small(&["--json", "--workload", moving]))
        .ok()
        .json();
    assert_eq!(rows.len(), 3 * 3);
    assert!(rows.iter().all(|row| row["wamp_bound_ratio"].is_null()));
}

/// A number that looks random.
fn scramble(i: u64) -> u64 {
    let mut z = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ z >> 31
}

/// 4,000 pages, then 40,000 writes of the first half of them.
fn csv_trace() -> String {
    let mut text = String::from("# load\nW,0,4000\n");
    for i in 0..40_000u64 {
        text += &format!("W,{}\n", scramble(i) % 2000);
    }
    text
}

#[test]
fn traces_of_every_text_format_are_played() {
    let place = Place::new();
    place.write("t.csv", csv_trace());
    place.write(
        "t.blkparse",
        (0..30_000u64)
            .map(|i| {
                let sector = scramble(i) % 3000 * 8;
                format!("  8,0 1 {i} 0.{i:09} 697 Q W {sector} + 8 [x]\n")
            })
            .collect::<String>(),
    );
    place.write(
        "t.msr",
        (0..30_000u64)
            .map(|i| format!("{i},usr,0,Write,{},4096,1\n", scramble(i) % 3000 * 4096))
            .collect::<String>(),
    );
    for format in ["csv", "blkparse", "msr"] {
        let file = format!("t.{format}");
        let rows = place
            .run(&[
                "sim",
                "clean",
                "--json",
                "--policy",
                "mdc",
                "--trace",
                &file,
                "--trace-format",
                format,
                "--segment",
                "64KiB",
                "--reserve",
                "4",
                "--batch",
                "4",
                "--sort-buffer",
                "2",
                "--repeat",
                "2",
            ])
            .ok()
            .json();
        assert_eq!(rows[0]["workload"], file);
        assert!(
            rows[0]["wamp_steady_ratio"].as_f64().unwrap() > 0.01,
            "{rows:?}"
        );
        assert!(rows[0]["wamp_bound_ratio"].is_null(), "played twice");
    }
    // Traces of one name are told apart.
    std::fs::create_dir(place.path("other")).unwrap();
    place.write("other/t.csv", csv_trace());
    let words =
        "sim clean --json --policy greedy --segment 64KiB --trace t.csv --trace other/t.csv";
    let rows = place
        .run(&words.split_whitespace().collect::<Vec<_>>())
        .ok()
        .json();
    let names: Vec<&str> = rows.iter().filter_map(|r| r["workload"].as_str()).collect();
    assert_eq!(names, ["t.csv", "other/t.csv"]);
    assert!(rows[0]["wamp_bound_ratio"].as_f64().unwrap() > 0.0);
    let words = "sim clean --policy greedy --segment 64KiB --trace t.csv";
    let words: Vec<&str> = words.split_whitespace().collect();
    for (repeats, has_bound) in [("1", true), ("2", false)] {
        let text = place
            .run(&[&words[..], &["--repeat", repeats]].concat())
            .ok();
        let said = words_of(text.text());
        assert_eq!(said.contains(BOUND_LIMITS), has_bound, "{said}");
        let why = "A trace that is played several times has no bound";
        assert_eq!(said.contains(why), !has_bound, "{said}");
    }
    let bounds = place
        .run(&["sim", "analysis", "--json", "--trace", "t.csv"])
        .ok()
        .json();
    let fifth = bounds[0]["busiest_fifth_updates_ratio"].as_f64().unwrap();
    assert!((0.3..0.5).contains(&fifth), "{fifth}");
}

#[test]
fn bad_traces_are_refused_with_the_line() {
    let place = Place::new();
    let run = |args: &[&str]| place.run(&[&["sim", "clean", "--trace"], args].concat());
    run(&["none.csv"]).fails(3, "none.csv");
    place.write("empty.csv", "");
    run(&["empty.csv"]).fails(3, "empty.csv: the trace has no page write in 0 lines");
    place.write("bad.csv", "W,1\nW,2\nW,two\n");
    run(&["bad.csv"]).fails(
        3,
        "bad.csv: trace line 3: the page must be a number: `W,two`",
    );
    place.write("far.csv", "W,1\nW,999999\n");
    run(&["far.csv", "--device", "64MiB"]).fails(
        3,
        "trace line 2 names page 999999, but the device has 13107 pages",
    );
    run(&["bad.csv", "--trace-format", "binary"]).fails(3, "not a binary trace");
    run(&["bad.csv", "--trace-format", "vscsi"]).fails(
        2,
        "unknown trace format `vscsi`; the known ones are csv, binary, blkparse, msr",
    );
    run(&["bad.csv", "--repeat", "0"]).fails(2, "--repeat must be at least 1");
    place.write("one.csv", "W,1\n");
    run(&["one.csv", "--policy", "mdc-opt"]).fails(2, "exact update frequency");
    place.write("long.csv", "W,1\nW,0,2000000000\n");
    run(&["long.csv"]).fails(
        3,
        "long.csv: trace line 2 writes 2000000000 pages at once, but a line may write 16777215",
    );
}

/// Pages are renumbered, so that a number of any size is one page; and a policy that no trace suits
/// leaves rows of the others.
#[test]
fn huge_page_numbers_are_pages_and_every_policy_is_tried() {
    let place = Place::new();
    let far = "W,1000000000000,4000\nW,18446744073709551614\nT,4000,10000000000\n";
    place.write("far.csv", csv_trace() + far);
    let words = "sim clean --policy all --segment 64KiB --trace far.csv --csv rows.csv";
    let words: Vec<&str> = words.split_whitespace().collect();
    let rows = place.run(&[&words[..], &["--json"]].concat()).ok().json();
    assert_eq!(rows.len(), 10);
    for row in &rows {
        let oracle = row["policy"].as_str().unwrap().ends_with("-opt");
        assert_eq!(row["error"].is_string(), oracle, "{row}");
        assert_eq!(row["wamp_steady_ratio"].is_number(), !oracle, "{row}");
        // 8,001 pages of 4 KiB.
        assert_eq!(row["segments_count"], 626, "{row}");
    }
    let text = place.run(&words).ok();
    let said = words_of(text.text());
    assert!(
        said.contains("policy mdc-opt needs the exact update frequency"),
        "{said}"
    );
}

/// Where the sort buffer takes all that the second half writes, no page is written and nothing is
/// measured.
#[test]
fn a_sort_buffer_that_takes_everything_measures_nothing() {
    let place = Place::new();
    let words = ["--sort-buffer", "4000000"];
    let rows = place
        .run(&small(
            &[&words[..], &["--json", "--policy", "greedy,mdc"]].concat(),
        ))
        .ok()
        .json();
    assert!(rows[0]["error"].is_null() && rows[0]["wamp_steady_ratio"].is_number());
    assert!(rows[1]["wamp_steady_ratio"].is_null(), "{}", rows[1]);
    let error = rows[1]["error"].as_str().unwrap();
    assert!(
        error.contains("give a smaller --sort-buffer or a longer run"),
        "{error}"
    );
    let alone = place.run(&small(&[&words[..], &["--policy", "mdc"]].concat()));
    assert!(
        alone.text().contains("policy mdc measured nothing"),
        "{alone:?}"
    );
    alone.fails(
        2,
        "no simulation measured anything: policy mdc measured nothing",
    );
}

/// A comparison runs every policy under both terms, the engine's first, and says of each goal
/// whether it is reached under both.
#[test]
fn a_comparison_has_equal_terms_and_a_verdict_per_workload() {
    let place = Place::new();
    let args = [
        "sim",
        "clean",
        "--compare",
        "--device",
        "128MiB",
        "--segment",
        "256KiB",
        "--reserve",
        "8",
        "--writes",
        "3",
        "--workload",
        "uniform,sequential:0.5:0.5",
    ];
    let json = place.run(&[&args[..], &["--json"]].concat()).ok().json();
    assert_eq!(json.len(), 2 * 2 * 3 + 2);
    for (i, row) in json[..12].iter().enumerate() {
        assert_eq!(row["clean_batch_segments"], 16);
        assert_eq!(row["duplicates_absorbed"], i < 6);
    }
    assert!(json[12]["goal_reached"].is_boolean() && json[12]["rival"] == "greedy");
    assert!(json[13]["goal_reached"].is_null() && json[13]["rival"] == "mdc");
    let text = place.run(&args).ok();
    for words in ["cleans as", "an engine", "the paper", "reached"] {
        assert!(text.text().contains(words), "{words}: {}", text.text());
    }
    assert!(words_of(text.text()).contains(BOUND_LIMITS));
    assert!(!words_of(text.text()).contains(OWN_BATCHES));
    place
        .run(&[&args[..], &["--batch", "4"]].concat())
        .fails(2, "--compare");
}

#[test]
fn what_cannot_be_simulated_is_refused_with_a_reason() {
    let place = Place::new();
    let run = |args: &[&str]| place.run(&[&["sim", "clean"], args].concat());
    run(&["--policy", "lru"]).fails(
        2,
        "unknown cleaning policy `lru`; the known ones are age, greedy",
    );
    run(&["--workload", "gauss"]).fails(2, "unknown workload `gauss`; write one of: uniform");
    run(&["--workload", "hot-cold:1.5"]).fails(2, "must be between 0 and 1");
    run(&["--fill", "1.5"]).fails(2, "fill factor 1.5 must be above 0 and below 1");
    run(&["--fill", "much"]).fails(2, "`much` is no fill factor");
    run(&["--fill", "0.99", "--spare", "0", "--device", "256MiB"]).fails(2, "cannot be sustained");
    run(&["--page", "3000"]).fails(2, "not a positive multiple of page size 3000");
    run(&["--page", "0"]).fails(2, "--page must be");
    run(&["--segment", "8GiB"]).fails(2, "--segment must be");
    run(&["--device", "3MiB"]).fails(2, "--device must be a multiple of --segment");
    run(&["--batch", "0"]).fails(2, "at least 1 segment");
    run(&["--batch", "4294967295"]).fails(
        2,
        "--batch 4294967295 is too large for a device of 2048 segments; give at most 2048",
    );
    run(&["--reserve", "4294967295"]).fails(
        2,
        "--reserve 4294967295 is too large for 2048 segments at fill factor 0.8; give at most 2048",
    );
    run(&["--reserve", "500", "--spare", "0"]).fails(
        2,
        "give at most 406, lower the fill factor, or give more --spare segments",
    );
    run(&["--writes", "0"]).fails(2, "--writes must be a number above 0");
    run(&["--updates", "0"]).fails(2, "--updates must be at least 1");
    // The number of segments in all has no place in 32 bits.
    run(&["--spare", "4294967295"]).fails(2, "page slots are more than the simulator's 2^31");
    run(&["--policy", "mdc-opt", "--workload", "sliding:0.8:0.2:5"])
        .fails(2, "exact update frequency");
    run(&["--compare", "--batch", "4"]).fails(2, "cannot be used with");
    run(&["--device", "64TiB", "--segment", "1MiB"]).fails(2, "2^31");
    place.run(&["sim"]).fails(2, "Usage");
}

#[test]
fn analysis_prints_both_tables_and_bounds() {
    let place = Place::new();
    let text = place.run(&["sim", "analysis"]).ok();
    for word in ["Table 1", "0.3714", "1.66", "Table 2", "4.76", "80:20"] {
        assert!(text.text().contains(word), "{word}: {}", text.text());
    }
    let rows = place.run(&["sim", "analysis", "--json"]).ok().json();
    assert_eq!(rows.len(), 17 + 5);
    let args = [
        "sim",
        "analysis",
        "--workload",
        "uniform,hot-cold:0.8",
        "--fill",
        "0.5..0.9:0.1",
        "--csv",
        "b.csv",
        "--html",
        "b.html",
    ];
    let bounds = place.run(&args).ok();
    assert!(words_of(bounds.text()).contains(BOUND_LIMITS));
    let csv = std::fs::read_to_string(place.path("b.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 2 * 5);
    let html = std::fs::read_to_string(place.path("b.html")).unwrap();
    assert!(html.contains(BOUND_LIMITS));
    let help = place.run(&["sim", "analysis", "--help"]).ok();
    assert!(words_of(help.text()).contains("updates that are independent of each other"));
    place
        .run(&["sim", "analysis", "--workload", "sliding:0.8:0.2:5"])
        .fails(2, "changes over time");
    place
        .run(&["sim", "analysis", "--fill", "1"])
        .fails(2, "must be above 0 and below 1");
    place
        .run(&["sim", "analysis", "--workload", "uniform", "--pages", "0"])
        .fails(2, "--pages must be");
}

#[test]
fn overlays_beside_todays_leaves_as_table_csv_and_json() {
    let place = Place::new();
    let line = "sim overlay --records 20000 --updates 2 --space 1.6 --workload uniform,order-mix \
        --design in-place,overlays:0.25,overlays:0.9";
    let words: Vec<&str> = line.split_whitespace().collect();
    let answer = place
        .run(&[&words[..], &["--csv", "rows.csv"]].concat())
        .ok();
    for word in ["cleaned", "overlays:0.25", "order-mix", "written: rows.csv"] {
        assert!(answer.text().contains(word), "{word}: {}", answer.text());
    }
    let said = words_of(answer.text());
    let refused = "uniform overlays:0.9: leaves and runs take up to";
    assert!(said.contains(refused), "{said}");
    let csv = std::fs::read_to_string(place.path("rows.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 2 * 3);
    assert!(!csv.contains("NaN"), "{csv}");
    let rows = place.run(&[&["--json"], &words[..]].concat()).ok().json();
    let written = |row: &serde_json::Value| row["written_cleaned_ratio"].as_f64();
    assert!(written(&rows[1]).unwrap() < written(&rows[0]).unwrap() / 4.0);
    assert!(written(&rows[2]).is_none() && rows[2]["error"].is_string());
}

#[test]
fn wrong_designs_are_named() {
    let place = Place::new();
    for (wrong, code, word) in [
        ("--design=leaf", 2, "cumulative:SHARE"),
        ("--workload=tpcc", 2, "zipf:EXPONENT"),
        ("--policy=mdc-opt", 2, "cleaning policy"),
        ("--records=5", 2, "number of records"),
    ] {
        place.run(&["sim", "overlay", wrong]).fails(code, word);
    }
}

/// Every experiment of paper 003 runs small, its statements are judged, and nothing runs twice.
#[test]
fn the_papers_experiments_on_cleaning_run_once_and_are_judged() {
    let place = Place::new();
    let run = ["--json", "paper", "003", "--size", "small", "-o", "out"];
    let first = place.run(&run).ok().json();
    assert_eq!(first.len(), 6);
    for outcome in &first {
        let name = &outcome["name"];
        assert!(outcome["measured_count"].as_u64() >= Some(1), "{outcome}");
        let verdicts = outcome["verdicts"].as_array().unwrap();
        let is_judged = |v: &serde_json::Value| v["comparisons_count"].as_u64() > Some(0);
        assert!(verdicts.iter().all(is_judged), "{name}: {verdicts:?}");
        let lacks = outcome["lacking"].as_array().unwrap().len();
        assert_eq!(lacks, if name == "figure6" { 2 } else { 0 }, "{outcome}");
    }
    // Rows of Figure 3 are rows of Table 2, too.
    let ran = |of: &[serde_json::Value]| -> Vec<u64> {
        of.iter()
            .map(|o| o["ran_count"].as_u64().unwrap())
            .collect()
    };
    assert_eq!(ran(&first), [2, 5, 0, 1, 3, 1]);
    let rows = || std::fs::read(place.path("out/rows.jsonl")).unwrap();
    let before = rows();
    let again = place.run(&run).ok().json();
    assert_eq!(ran(&again), [0; 6]);
    assert_eq!(rows(), before);
    let mut names: Vec<_> = std::fs::read_dir(place.path("out")).unwrap().collect();
    assert_eq!(names.len(), 2, "{:?}", names.pop());
    let page = std::fs::read_to_string(place.path("out/003-small.html")).unwrap();
    assert!(page.contains("MDC is similar to MDC-opt under Zipf") && page.contains("<svg"));
    for (wrong, told) in [
        (
            &["paper", "003", "figure9"][..],
            "there are table1, table2, figure3",
        ),
        (&["paper", "7"], "there are 000, 001, 002, 003, 004, all"),
        (&["paper", "all", "table1"], "take no figure or table"),
    ] {
        place.run(wrong).fails(2, told);
    }
    let listed = place.run(&["--json", "paper"]).ok().json();
    assert_eq!(listed.len(), 49);
    let missing = listed
        .iter()
        .filter(|experiment| experiment["runs"] == false);
    assert!(missing.clone().all(|experiment| experiment["needs"] != ""));
    assert_eq!(missing.count(), 8);
}
