//! A log whose last records do not count.

use super::*;
use crate::canary::Canary;

/// The log is cut off before one of its records and goes on there: whether only what lies before
/// and the news are read.
fn ends_where_it_was_cut(seed: u64, choose: impl Fn(&History) -> u64) -> bool {
    let history = history(seed, 3, 9_000, 0);
    (0..3).for_each(|flush| history.write(flush));
    let at = choose(&history);
    let (found, whole) = history.read().unwrap();
    assert_eq!(found, history.written);
    let end = LogEnd {
        lsn: Lsn(at),
        is_cut: true,
        ..whole
    };
    let epoch = next_epoch(end.open_epoch);
    let next = seal_tail(&history.volume, &history.area, &STORE, end, epoch).unwrap();
    assert_eq!(next, end.goes_on_at());
    assert!(next.0 > at && next.0.is_multiple_of(BLOCK));
    let mut expected = history.below(at);
    let mut is_right = history.read().is_ok_and(|(found, _)| found == expected);
    // Another crash leaves only the second of two flushes.
    let mut rng = Rng::new(seed);
    let log = Log::on(config(&history.area, history.start, next.0, epoch));
    let flushes = [(); 2].map(|()| {
        let news = fill(&log, &mut rng, 9_000);
        log.request_flush_of_all();
        let Claim::Flush(flush) = log.claim(1) else {
            unreachable!("there is something to flush");
        };
        (flush, news)
    });
    write(&log, &history.volume, flushes[1].0);
    is_right &= history.read().is_ok_and(|(found, _)| found == expected);
    write(&log, &history.volume, flushes[0].0);
    expected.extend(flushes.into_iter().flat_map(|(_, news)| news));
    let is_whole =
        |(found, end): (Vec<Written>, LogEnd)| found == expected && end.lsn == log.next();
    is_right && history.read().is_ok_and(is_whole)
}

/// The start of a flush, and so of a block.
fn first_of_second_flush(history: &History) -> u64 {
    let start = history.flushes[1].0.start;
    let first = history.written.iter().find(|record| record.lsn >= start);
    first.unwrap().lsn
}

fn any(history: &History) -> u64 {
    let choice = history.written.len() * 2 / 3;
    history.written[choice].lsn
}

#[test]
fn what_lies_behind_a_cut_is_never_read_again() {
    for seed in 1..=30 {
        let at_block = ends_where_it_was_cut(seed, first_of_second_flush);
        assert!(at_block && ends_where_it_was_cut(seed, any), "{seed}");
    }
    Canary::LeaveCutTail.switch_on();
    assert!(!ends_where_it_was_cut(1, first_of_second_flush));
    assert!(!ends_where_it_was_cut(1, any));
}

#[test]
fn records_know_up_to_where_the_log_was_durable() {
    let history = history(7, 3, 9_000, 3);
    (0..3).for_each(|flush| history.write(flush));
    let mut reader = Reader::new(
        &history.volume,
        &history.area,
        &STORE,
        Lsn(history.start),
        3,
    );
    let second = Lsn(history.flushes[1].0.start);
    reader = reader.until(second);
    while reader.next().unwrap().is_some() {}
    assert!(reader.known_durable() < second);
    // All behind, which were appended after flushes.
    assert!(reader.known_durable_behind().unwrap() >= second);
}
