use serde_json::json;

use super::*;
use crate::Silent;
use crate::report::check;

#[test]
fn every_figure_and_table_of_the_issue_is_there() {
    let wanted = [
        (
            "000",
            "figure1 figure2 table2 figure3 figure4 table3 table4 figure5 table5 figure6",
        ),
        (
            "001",
            "figure1 figure2 figure3 figure4 figure5 figure6 figure11 figure12 figure13 figure14 figure15 figure16 figure17",
        ),
        (
            "002",
            "figure2 figure3 figure4 figure5 figure6 figure7 figure8 figure9 figure10 figure11 figure12",
        ),
        ("003", "table1 table2 figure3 figure4 figure5 figure6"),
        (
            "004",
            "figure2 figure5 figure6 figure7 figure8 figure9 figure10 figure11 table1",
        ),
    ];
    let papers = papers();
    assert_eq!(papers.len(), wanted.len());
    for (paper, (id, names)) in papers.iter().zip(wanted) {
        let found: Vec<&str> = paper.experiments.iter().map(|e| e.name.as_str()).collect();
        assert_eq!((paper.id.as_str(), found.join(" ")), (id, names.to_owned()));
    }
}

/// What is wrong with the lines of an experiment.
fn wrong_lines(experiment: &Experiment) -> Vec<String> {
    let mut wrong = Vec::new();
    let has_chart = |at: &str| at.parse().is_ok_and(|at| experiment.chart(at).is_some());
    for line in &experiment.points {
        let parts: Vec<&str> = line.split(" | ").collect();
        if !has_chart(parts[0]) || !(4..=5).contains(&parts.len()) {
            wrong.push(line.clone());
        }
    }
    for line in &experiment.printed {
        let parts: Vec<&str> = line.split(" | ").collect();
        let all = parts.get(2).map_or(0, |points| points.split(' ').count());
        let one = Experiment {
            printed: vec![line.clone()],
            ..experiment.clone()
        };
        let at = parts[0].parse().unwrap_or(usize::MAX);
        if !has_chart(parts[0]) || all == 0 || one.printed_in(at).len() != all {
            wrong.push(line.clone());
        }
    }
    let is_judged = |line: &&String| claims::judge(line, experiment, &[]).is_none();
    wrong.extend(experiment.claims.iter().filter(is_judged).cloned());
    for size in PaperSize::value_variants() {
        for row in experiment.rows(*size) {
            let text = row.commands.join(" ") + &row.series + &row.note;
            if text.replace(WORK, "").contains('{') || !row.x.is_finite() {
                wrong.push(format!("{row:?}"));
            }
        }
    }
    wrong
}

#[test]
fn every_line_is_understood() {
    for paper in papers() {
        for experiment in &paper.experiments {
            let name = format!("{} {}", paper.id, experiment.name);
            assert_eq!(wrong_lines(experiment), Vec::<String>::new(), "{name}");
            assert!(
                !experiment.title.is_empty() && !experiment.needs.is_empty(),
                "{name}"
            );
            let has_rows = !experiment.rows(PaperSize::Small).is_empty();
            assert_eq!(
                has_rows,
                !experiment.is_missing() && !experiment.time[2].is_empty(),
                "{name}"
            );
        }
    }
    let slips = Experiment {
        rows: vec!["a | x | run {no}".to_owned()],
        charts: vec!["t | x | y".to_owned()],
        points: vec!["1 | row | row | /y".to_owned()],
        printed: vec!["0 | a | 1:2 3".to_owned()],
        claims: vec![
            "0 | a < 1 b | text".to_owned(),
            "1 | a <= 1 b | text".to_owned(),
        ],
        ..Experiment::default()
    };
    assert_eq!(
        wrong_lines(&slips).len(),
        4 + PaperSize::value_variants().len()
    );
}

/// Two series over x, of which one row fails, and one cannot run.
fn paper() -> Paper {
    let text = r#"
        id = "9"
        title = "A <paper>"
        [[experiment]]
        name = "figure1"
        title = "costs"
        needs = "nothing"
        time = ["1 s", "1 s", "1 s"]
        lists = { x = ["1 2", "1", "1"] }
        texts = { how = "--slow" }
        rows = ["a | {x} | a {x} {how}", "b | {x} | b {x}", "c | 1 | fail", "d | 1 | lacks: no d"]
        charts = ["t | x | y"]
        points = ["0 | row | row | /y"]
        printed = ["0 | a | 1:10 2:20"]
        claims = ["0 | b <= 1 a | b is cheaper", "0 | a <= 1 * | a is cheapest", "0 | a x 1.5 to 9 | a grows",
            "0 | near 0.1 | as printed", "0 | e <= 1 a | no such series"]
    "#;
    toml::from_str(text).unwrap()
}

/// Answers `a X` with 10 X, `b X` with X.
fn answer(words: &[String]) -> Result<Vec<Value>, LabError> {
    let x: f64 = words.get(1).map_or(0.0, |x| x.parse().unwrap());
    match words[0].as_str() {
        "a" => Ok(vec![json!({"y": 10.0 * x})]),
        "b" => Ok(vec![json!({"y": x})]),
        _ => Err(LabError::Request("cannot".to_owned())),
    }
}

#[test]
fn rows_are_judged_and_finished_ones_are_not_run_again() {
    let place = tempfile::tempdir().unwrap();
    let paper = paper();
    let mut ran = Vec::new();
    let mut run = |words: &[String]| {
        ran.push(words.join(" "));
        answer(words)
    };
    let outcomes = paper
        .run(PaperSize::Small, place.path(), &mut run, &Silent)
        .unwrap();
    let outcome = &outcomes[0];
    assert_eq!((outcome.ran_count, outcome.measured_count), (5, 4));
    assert_eq!(outcome.lacking, ["c at 1: cannot", "d at 1: no d"]);
    let found = outcome
        .verdicts
        .iter()
        .map(|v| (v.comparisons_count, v.fails_at.len()));
    assert_eq!(
        found.collect::<Vec<_>>(),
        [(2, 0), (2, 2), (1, 0), (2, 0), (0, 0)]
    );
    assert_eq!(
        outcome.sentence,
        "3 of 4 statements hold; not “a is cheapest”; statements not judged: 1; rows lacking: 2."
    );
    let again = paper
        .run(PaperSize::Small, place.path(), &mut run, &Silent)
        .unwrap();
    assert_eq!((again[0].ran_count, again[0].measured_count), (1, 4));
    let wanted = ["a 1 --slow", "a 2 --slow", "b 1", "b 2", "fail", "fail"];
    assert_eq!(ran, wanted, "what failed is tried again, and nothing else");
    let page = fs::read_to_string(place.path().join("9-figure1-small.html")).unwrap();
    let page = check::Page::of(&page);
    assert_eq!(page.texts("figcaption"), ["t"]);
    let holds: Vec<&str> = page.rows().iter().map(|row| row[2].as_str()).collect();
    assert!(
        holds.contains(&"holds") && holds.contains(&"not judged by these rows"),
        "{holds:?}"
    );
    assert!(
        page.rows()
            .iter()
            .any(|row| row[..] == ["t", "a", "2", "20.0000", "20"])
    );
    assert!(page.tooltips().contains(&"a, the paper's: 20"));
}

#[test]
fn an_interruption_keeps_what_is_done() {
    let place = tempfile::tempdir().unwrap();
    let mut left = 2;
    let mut run = |words: &[String]| {
        left -= 1;
        if left < 0 {
            Err(LabError::Interrupted)
        } else {
            answer(words)
        }
    };
    let ended = paper().run(PaperSize::Small, place.path(), &mut run, &Silent);
    assert!(matches!(ended, Err(LabError::Interrupted)));
    assert!(place.path().join("9-figure1-small.html").exists());
    assert!(!place.path().join("work").exists());
    let mut run = |words: &[String]| answer(words);
    let outcomes = paper()
        .run(PaperSize::Small, place.path(), &mut run, &Silent)
        .unwrap();
    assert_eq!(outcomes[0].ran_count, 3);
}

#[test]
fn terms_are_taken_from_documents_elements_and_rows() {
    let row = Row {
        series: "s".to_owned(),
        x: 7.0,
        commands: Vec::new(),
        note: String::new(),
        lacks: None,
    };
    let documents = [json!({"kind": "k", "all": 8, "of": [{"n": 1, "t": 2}, {"n": 5, "t": 4}]})];
    let points = |line| -> Vec<(String, f64, f64)> {
        let points = table::points(line, &row, &documents).into_iter();
        points
            .map(|point| (point.series, point.x, point.y))
            .collect()
    };
    let of = |series: &str, x, y| (series.to_owned(), x, y);
    assert_eq!(points("0 | row | row | /all / 2 + 1"), [of("s", 7.0, 5.0)]);
    assert_eq!(
        points("0 | /kind | 1 | Δ/n / Δ/t | in /of"),
        [of("k", 1.0, 0.5), of("k", 1.0, 2.0)]
    );
    assert_eq!(
        points("0 | name | /t | /n / ^/n | in /of /t=4"),
        [of("name", 4.0, 5.0)]
    );
    assert_eq!(points("0 | name | /t | /n | in /of row=other"), []);
    assert_eq!(points("0 | name | 1 | /absent"), []);
    let line = table::fit(
        "/x",
        "/y",
        &row,
        &[json!({"x": 1, "y": 5}), json!({"x": 2, "y": 8})],
    );
    assert_eq!(
        (line["slope"].as_f64(), line["intercept"].as_f64()),
        (Some(3.0), Some(2.0))
    );
}

/// Two threads cost less than one, and a scan more than the query that it begins with.
#[test]
fn equations_predict_a_row() {
    let of = |words: &str| table::predicted(words);
    let us = |document: &Value, what: &str| document[what].as_f64().unwrap();
    let (slow, fast) = (
        of("2 147000 3.53 310000 2.79"),
        of("2 40700 1.71 254000 3.01"),
    );
    for what in ["query_us", "scan_us", "insert_us"] {
        assert!(us(&fast, what) < us(&slow, what), "{what}: {fast} {slow}");
    }
    assert!(us(&slow, "query_us") < us(&slow, "scan_us"));
    assert_eq!(of("2 147000"), Value::Null);
}

#[test]
fn names_are_found_as_people_write_them() {
    for name in ["figure5", "Figure 5", "Fig. 5", "fig5", "5"] {
        let paper = Paper::named("003", Some(name)).unwrap();
        assert_eq!(paper.experiments[0].name, "figure5", "{name}");
        assert_eq!(paper.page_name(PaperSize::Full), "003-figure5-full.html");
    }
    assert_eq!(
        Paper::named("000", Some("Table 2"))
            .unwrap()
            .experiments
            .len(),
        1
    );
    let wrong = Paper::named("003", Some("figure9"))
        .unwrap_err()
        .to_string();
    assert!(
        wrong.contains("`figure9`; there are table1, table2, figure3"),
        "{wrong}"
    );
    let wrong = Paper::named("3", None).unwrap_err().to_string();
    assert!(
        wrong.contains("`3`; there are 000, 001, 002, 003, 004, all"),
        "{wrong}"
    );
}
