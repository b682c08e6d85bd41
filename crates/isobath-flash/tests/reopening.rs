//! What policies lose when a space is closed and opened: they learn of segments what a checkpoint
//! keeps, no more.

#![allow(clippy::unwrap_used)]

use isobath_flash::policy::{CleaningPolicy, PolicyKind};
use isobath_flash::sim::{Duplicates, SimConfig, Simulator};
use isobath_flash::workload::Synthetic;

type Boxed = Simulator<Box<dyn CleaningPolicy>, Synthetic>;

/// 1,000 segments of 128 pages, used as an engine uses them, F = 0.8; loaded, and its pages written
/// eight times.
fn used(policy: PolicyKind, workload: &str) -> (Boxed, u64) {
    let config = SimConfig {
        segment_bytes: 512 << 10,
        clean_below: 8,
        spare_segments: SimConfig::paper_spare(1000, 8, 16),
        matches_reserve: false,
        clean_batch: Some(16),
        sort_buffer_segments: 0,
        duplicates: Duplicates::Absorbed,
        ..SimConfig::paper(1000, 0.8)
    };
    let kind = workload.parse().unwrap();
    let workload = Synthetic::new(kind, config.user_pages(), config.seed).unwrap();
    let pages = u64::from(config.user_pages());
    let mut simulator = Simulator::new(config, policy.build(pages), workload).unwrap();
    simulator.load().unwrap();
    simulator.updates(8 * pages).unwrap();
    (simulator, pages)
}

/// `Wamp` while as much is written as `times` times what there is.
fn wamp(simulator: &mut Boxed, pages: u64, times: f64) -> f64 {
    let before = *simulator.totals();
    simulator.updates((times * pages as f64) as u64).unwrap();
    simulator.totals().since(&before).wamp()
}

/// The same, with an opening each time that a share `every` of what there is was written, after
/// some others.
fn wamp_with_openings(policy: PolicyKind, workload: &str, every: f64) -> f64 {
    let (mut simulator, pages) = used(policy, workload);
    let mut sessions = |times: f64| {
        let before = *simulator.totals();
        for _ in 0..(times / every) as u32 {
            simulator.reopen(policy.build(pages)).unwrap();
            wamp(&mut simulator, pages, every);
        }
        simulator.totals().since(&before).wamp()
    };
    sessions(1.5);
    sessions(2.5)
}

/// Seeds are fixed: each limit is the measured number, rounded up. If nothing were known of the
/// pages that are there, life-table would cost twice what MDC does at 90:10 (1.79 and 0.90).
#[test]
fn life_table_opened_every_tenth_of_what_there_is_stays_near_mdc_or_below() {
    for (workload, most) in [
        ("uniform", 0.97),
        ("hot-cold:0.9", 0.67),
        ("zipf:0.99", 0.63),
        ("sliding:0.8:0.2:10", 1.02),
        ("zipf-moving:0.99:10", 0.895),
        ("sequential:0.5:0.5", 1.065),
    ] {
        let [mdc, life_table] = [PolicyKind::Mdc, PolicyKind::LifeTable]
            .map(|policy| wamp_with_openings(policy, workload, 0.1));
        println!("{workload}: every tenth {mdc:.3} {life_table:.3}");
        assert!(
            life_table < most * mdc,
            "{workload}: {life_table} is {:.2} times {mdc}",
            life_table / mdc
        );
    }
}

/// As much as there is written after an opening, as the policy that wrote the space or as another
/// one: 0.462 after 0.477, 0.644 after 0.877.
#[test]
fn life_table_knows_at_once_what_the_policy_before_it_knew() {
    for (before, most) in [(PolicyKind::LifeTable, 0.98), (PolicyKind::Mdc, 0.74)] {
        let (mut simulator, pages) = used(before, "hot-cold:0.9");
        let steady = wamp(&mut simulator, pages, 1.0);
        simulator
            .reopen(PolicyKind::LifeTable.build(pages))
            .unwrap();
        let first = wamp(&mut simulator, pages, 1.0);
        println!("{before}: {steady:.3} {first:.3}");
        assert!(first < most * steady, "{before}: {first} after {steady}");
    }
}

#[test]
fn mdc_knows_at_once_what_life_table_knew() {
    let (mut simulator, pages) = used(PolicyKind::LifeTable, "hot-cold:0.9");
    simulator.reopen(PolicyKind::Mdc.build(pages)).unwrap();
    let first = wamp(&mut simulator, pages, 1.0);
    let (mut other, _) = used(PolicyKind::Mdc, "hot-cold:0.9");
    let usual = wamp(&mut other, pages, 1.0);
    println!("{first:.3} {usual:.3}");
    // Measured 0.642 and 0.877; of seeds 1 to 7 the mean is 0.734 times as much.
    assert!(first < 0.74 * usual, "{first} {usual}");
}
