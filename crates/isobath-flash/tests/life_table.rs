//! What the life-table policy must gain, at a size that a test can afford: 1,000 segments of 128 pages, sixteen device
//! sizes written, seeds fixed. docs/benchmarks.md has larger sizes.

#![allow(clippy::unwrap_used)]

use isobath_flash::policy::PolicyKind;
use isobath_flash::sim::{RunLength, SimConfig, simulate};

/// The paper's set-up, its trigger, batch and sort buffer scaled to segments of a quarter of the size.
fn config(fill: f64) -> SimConfig {
    SimConfig {
        segment_bytes: 512 << 10,
        clean_below: 8,
        spare_segments: SimConfig::paper_spare(1000, 8, 16),
        sort_buffer_segments: 8,
        ..SimConfig::paper(1000, fill)
    }
}

/// `Wamp` of the second half. Policies that clean 64 segments at a time in the paper clean 16 here.
fn wamp(policy: PolicyKind, workload: &str, fill: f64) -> f64 {
    let config = SimConfig {
        clean_batch: Some(16),
        ..config(fill)
    };
    let kind = workload.parse().unwrap();
    simulate(policy, &config, kind, RunLength::DeviceWrites(16.0))
        .unwrap()
        .steady
        .wamp()
}

fn gains_over_mdc(workload: &str, least: f64) {
    for fill in [0.8, 0.9] {
        let mdc = wamp(PolicyKind::Mdc, workload, fill);
        let life_table = wamp(PolicyKind::LifeTable, workload, fill);
        let gain = 1.0 - life_table / mdc;
        assert!(
            gain >= least,
            "{workload} F={fill}: {life_table} is {gain:.3} below {mdc}"
        );
    }
}

#[test]
fn is_never_above_greedy_on_uniform_updates() {
    for fill in [0.7, 0.8, 0.9] {
        let greedy = wamp(PolicyKind::Greedy, "uniform", fill);
        let life_table = wamp(PolicyKind::LifeTable, "uniform", fill);
        assert!(
            life_table <= greedy,
            "F={fill}: {life_table} above {greedy}"
        );
    }
}

#[test]
fn gains_5_percent_over_mdc_on_skew_that_stays() {
    gains_over_mdc("hot-cold:0.8", 0.05);
    gains_over_mdc("hot-cold:0.9", 0.05);
    gains_over_mdc("zipf:0.99", 0.05);
}

#[test]
fn gains_10_percent_over_mdc_on_a_sliding_hot_set() {
    gains_over_mdc("sliding:0.8:0.2:10", 0.10);
}

/// 41% and 29% here; more in a larger space.
#[test]
fn gains_over_mdc_on_zipf_with_a_moving_head() {
    gains_over_mdc("zipf-moving:0.99:10", 0.27);
}
