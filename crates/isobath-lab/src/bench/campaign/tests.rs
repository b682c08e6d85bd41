//! Campaigns that go on, fail, and are cut.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::journal::{LATENCIES, RECORDS, RUNNING, TRIALS, append, read_lines};
use super::*;
use crate::Silent;
use crate::bench::{Calls, Workload, write_csv};
use crate::engine::EngineConfig;
use crate::write_limit;

pub(crate) fn case(side: usize, round: usize) -> Case {
    let engine = EngineConfig::new(EngineKind::Null, 1 << 20);
    let duration = Duration::from_millis(40);
    let plan = Plan {
        sample_every: Duration::from_millis(10),
        ..Plan::new(engine, Workload::lookup(), 1000, duration)
    };
    Case::new(plan, side, round)
}

/// A case that measures the drive alone, in the file that this answers.
fn drive_case(place: &Path) -> (Case, PathBuf) {
    let mut case = case(0, 0);
    case.plan.engine.kind = EngineKind::Drive;
    let store = place.join("store");
    case.plan.engine.path = Some(store.clone());
    (case, store)
}

#[test]
fn a_campaign_goes_on_after_an_interruption() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("campaign");
    let cases = [case(0, 0), case(1, 0), case(0, 1)];
    let mut first = Campaign::open(&directory).unwrap();
    for case in &cases[..2] {
        let Outcome::Ran(record) = first.run(case, &Silent).unwrap() else {
            panic!("the campaign is new");
        };
        assert!(!record.after_gap);
    }
    // No other process may run it now.
    let error = Campaign::open(&directory).unwrap_err().to_string();
    assert!(error.contains("another process"), "{error}");
    drop(first);
    // The process is killed while it writes the second record.
    let path = directory.join(RECORDS);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() - 30]).unwrap();

    let mut second = Campaign::open(&directory).unwrap();
    assert!(matches!(
        second.run(&cases[0], &Silent).unwrap(),
        Outcome::Known(_)
    ));
    let Outcome::Ran(torn) = second.run(&cases[1], &Silent).unwrap() else {
        panic!("a torn record counts as none");
    };
    let Outcome::Ran(last) = second.run(&cases[2], &Silent).unwrap() else {
        panic!("it was never run");
    };
    assert!(torn.after_gap && !last.after_gap);
    let records = Campaign::read(&directory).unwrap();
    assert_eq!(records.len(), 3);
    assert!(
        records
            .iter()
            .all(|r| r.operations_per_s > 0.0 && r.round < 2)
    );

    write_csv(&directory, &records).unwrap();
    let csv = fs::read_to_string(directory.join("records.csv")).unwrap();
    assert_eq!(csv.lines().count(), 4);
    let header: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let first: Vec<&str> = csv.lines().nth(1).unwrap().split(',').collect();
    let cell = |name| first[header.iter().position(|column| *column == name).unwrap()];
    assert_eq!((cell("latency_one_in"), cell("levels")), ("16", ""));
    let kinds = fs::read_to_string(directory.join("operations.csv")).unwrap();
    assert_eq!(kinds.lines().count(), 4);
    assert!(
        [",get,", ",lookup"]
            .iter()
            .all(|word| kinds.lines().nth(1).unwrap().contains(word)),
        "{kinds}"
    );
    let series = fs::read_to_string(directory.join("series.csv")).unwrap();
    assert!(series.lines().count() > 3, "{series}");
    let log = fs::read_to_string(directory.join(LATENCIES)).unwrap();
    // The torn record's run counts once.
    assert_eq!(log.matches("Tag=").count(), 3, "{log}");
    let page = crate::bench::report::html(&records, &[], &[]);
    assert!(
        page.contains("<svg") && page.contains("no drive is involved"),
        "{page}"
    );
    assert!(!page.contains("<script") && !page.contains("http"));
}

#[test]
fn a_torn_last_line_is_cut_off_by_who_goes_on_and_by_nobody_else() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("campaign");
    let mut campaign = Campaign::open(&directory).unwrap();
    for case in [case(0, 0), case(1, 0)] {
        campaign.run(&case, &Silent).unwrap();
    }
    drop(campaign);
    let path = directory.join(RECORDS);
    let whole = fs::read(&path).unwrap();
    let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    // Torn behind its last brace, within a character, and within a word.
    let mut in_character = whole[..first + 40].to_vec();
    in_character.push(0xc2);
    for torn in [
        &whole[..whole.len() - 1],
        &in_character,
        &whole[..first + 10],
    ] {
        fs::write(&path, torn).unwrap();
        assert_eq!(Campaign::read(&directory).unwrap().len(), 1);
        assert_eq!(fs::read(&path).unwrap(), torn);
        assert_eq!(Campaign::open(&directory).unwrap().known.len(), 1);
        assert_eq!(fs::read(&path).unwrap(), whole[..first]);
    }
    // In the middle nothing is torn: the file is another one.
    fs::write(&path, [b"{}\n", &whole[..]].concat()).unwrap();
    let error = Campaign::open(&directory).unwrap_err().to_string();
    assert!(error.contains("line 1 is no record"), "{error}");
    assert_eq!(fs::read(&path).unwrap().len(), whole.len() + 3);
}

#[test]
fn a_campaign_that_ended_is_free_though_a_forked_child_has_its_file_open() {
    let place = tempfile::tempdir().unwrap();
    let campaign = Campaign::open(place.path()).unwrap();
    let inherited = campaign.journal.as_ref().unwrap().lock.try_clone();
    assert!(Campaign::open(place.path()).is_err());
    drop(campaign);
    Campaign::open(place.path()).unwrap();
    drop(inherited.unwrap());
}

#[test]
fn what_a_killed_session_left_does_not_end_a_campaign() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("campaign");
    let (case, store) = drive_case(place.path());
    let limit = write_limit::file_beside(&store);
    let mut campaign = Campaign::open(&directory).unwrap();
    // A store that is no campaign's is refused, and stays.
    fs::write(&store, "mine").unwrap();
    assert!(campaign.run(&case, &Silent).is_err());
    assert_eq!(fs::read(&store).unwrap(), b"mine");
    // A session was killed while it ran.
    fs::write(&limit, "left").unwrap();
    // The last line is cut off, and names a file that is not the campaign's.
    let other = place.path().join("other");
    fs::write(&other, "mine").unwrap();
    let left = [&store, &limit, &other].map(|path| path.display().to_string());
    let left = left.join("\n");
    fs::write(directory.join(RUNNING), left).unwrap();
    assert!(matches!(
        campaign.run(&case, &Silent).unwrap(),
        Outcome::Ran(_)
    ));
    assert!(!store.exists() && !limit.exists());
    assert!(!directory.join(RUNNING).exists());
    assert_eq!(fs::read(&other).unwrap(), b"mine");
}

#[test]
fn kinds_of_operations_and_levels_stand_in_csv_and_report() {
    let place = tempfile::tempdir().unwrap();
    let mut campaign = Campaign::in_memory();
    let Outcome::Ran(mut record) = campaign.run(&case(0, 0), &Silent).unwrap() else {
        panic!("nothing was run before");
    };
    record.settings = vec![("levels_with_files".to_owned(), "3".to_owned())];
    record.calls = [("new-order", 45.25), ("payment", 43.5)]
        .map(|(name, per_s)| Calls {
            operation: name.to_owned(),
            operations_per_s: per_s,
            ..Calls::default()
        })
        .into();
    let records = [*record];
    write_csv(place.path(), &records).unwrap();
    let read = |name| fs::read_to_string(place.path().join(name)).unwrap();
    assert!(
        read("records.csv").contains(",3,"),
        "{}",
        read("records.csv")
    );
    let kinds = read("operations.csv");
    assert!(
        kinds.contains(",new-order,0,45.25") && kinds.contains(",payment,0,43.5"),
        "{kinds}"
    );
    let page = crate::bench::report::html(&records, &[], &[]);
    assert!(
        page.contains("new-order") && page.contains("45.2"),
        "{page}"
    );
}

#[test]
fn a_run_that_fails_is_written_down_until_it_succeeds() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("campaign");
    let (case, store) = drive_case(place.path());
    fs::write(&store, "in the way").unwrap();
    let mut campaign = Campaign::open(&directory).unwrap();
    for _ in 0..2 {
        campaign.run(&case, &Silent).unwrap_err();
    }
    let failed = campaign.failed();
    assert_eq!(failed.len(), 1);
    assert!(failed[0].error.contains("exists already"), "{failed:?}");
    assert_eq!(Campaign::read_failed(&directory).unwrap(), failed);
    let page = crate::bench::report::html(&[], &[], &failed);
    assert!(page.contains("Runs that failed") && page.contains("exists already"));
    fs::remove_file(&store).unwrap();
    campaign.run(&case, &Silent).unwrap();
    assert_eq!(campaign.failed(), []);
    assert_eq!(Campaign::read_failed(&directory).unwrap(), []);
}

#[test]
fn a_file_that_is_no_campaign_is_refused() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join(RECORDS), "one\ntwo\n").unwrap();
    let error = Campaign::open(place.path()).unwrap_err().to_string();
    assert!(error.contains("line 1 is no record"), "{error}");
    let nowhere = Campaign::read(&place.path().join("none")).unwrap_err();
    assert!(nowhere.to_string().contains("holds no campaign"));
}

#[test]
fn cases_that_differ_are_found_apart_and_equal_ones_again() {
    let region = |path: &str| Some(RunPlace::Region(path.into()));
    let change: [fn(&mut Case); 7] = [
        |_| (),
        |case| case.side = 1,
        |case| case.round = 1,
        |case| case.row = Some("another".to_owned()),
        |case| case.plan.records += 1,
        |case| case.plan.engine.threads += 1,
        |case| case.plan.seed += 1,
    ];
    let mut names = BTreeSet::new();
    for change in change {
        for place in [None, region("one"), region("two")] {
            let made = || {
                let mut case = case(0, 0);
                case.place.clone_from(&place);
                change(&mut case);
                case.name()
            };
            assert_eq!(made(), made());
            names.insert(made());
        }
    }
    assert_eq!(names.len(), 21);
}

#[test]
fn a_file_that_was_cut_anywhere_keeps_its_whole_lines_and_takes_more() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join(TRIALS);
    let trial = |number: u32| TrialLine {
        trial: format!("Größe-{number}"),
        operations_per_s: f64::from(number) * 1.5,
    };
    (0..3).for_each(|number| append(&path, &trial(number)).unwrap());
    let whole = fs::read(&path).unwrap();
    for cut in 0..=whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        // A line without its end is torn, also if nothing else is missing.
        let kept = whole[..cut].iter().filter(|byte| **byte == b'\n').count();
        let numbers = |trials: &[TrialLine]| -> Vec<String> {
            trials.iter().map(|trial| trial.trial.clone()).collect()
        };
        // To read a file changes nothing: another process may be writing to it.
        let read: Vec<TrialLine> = read_lines(&path).unwrap().0;
        assert_eq!(fs::read(&path).unwrap(), whole[..cut], "{cut}");
        let first = Campaign::open(place.path()).unwrap();
        assert_eq!(numbers(&first.trials), numbers(&read), "{cut}");
        assert_eq!(first.trials.len(), kept, "{cut}");
        drop(first);
        append(&path, &trial(9)).unwrap();
        let second = Campaign::open(place.path()).unwrap();
        assert_eq!(second.trials.len(), kept + 1, "{cut}");
        assert_eq!(numbers(&second.trials)[..kept], numbers(&read), "{cut}");
    }
}

#[test]
fn trials_are_run_once_and_again_where_they_differ() {
    let place = tempfile::tempdir().unwrap();
    let lines = || {
        let text = fs::read_to_string(place.path().join(TRIALS)).unwrap();
        text.lines().count()
    };
    let tuned = |trial_ms: u64, seed: u64| {
        let mut case = case(0, 0);
        let wanted = SearchPlan {
            trials: 3,
            duration: Duration::from_millis(trial_ms),
            seed,
        };
        let mut campaign = Campaign::open(place.path()).unwrap();
        campaign.tune(&mut case, &wanted, &Silent).unwrap();
        (case.plan.engine.threads, case.search.unwrap())
    };
    let first = tuned(30, 1);
    assert_eq!(lines(), 3);
    assert_eq!(tuned(30, 1), first);
    assert_eq!(lines(), 3);
    // Longer trials, and another seed, say nothing of these.
    tuned(40, 1);
    assert_eq!(lines(), 6);
    tuned(30, 2);
    assert_eq!(lines(), 9);
}
