//! Table 2 of the MQSSD paper: fit its cost functions and extrapolate them.
#![allow(clippy::unwrap_used, reason = "a failed step must stop the test")]
mod common;

use common::{Noise, Table2};
use isobath_model::curve::{CostCurve, FitNorm, Rational, RationalDegree, Saturating};
use isobath_model::drive::{TABLE_2_ACCESSES, costs_per_concurrency};
use isobath_model::plan::paper_plan;
use isobath_model::{
    Comparison, DriveModel, HeldOutError, ModelKind, OperatingPoint, Prediction, Predictor, Sample,
};

fn worst(curve: &impl CostCurve, points: &[(f64, f64)]) -> f64 {
    points
        .iter()
        .map(|&(k, y)| (curve.at(k) / y - 1.0).abs())
        .fold(0.0, f64::max)
}

#[test]
fn the_saturating_form_meets_every_point_within_five_percent() {
    for (name, points) in Table2::read().curves() {
        let tight = Saturating::fit(points, FitNorm::Largest).unwrap();
        let squares = Saturating::fit(points, FitNorm::Squares).unwrap();
        println!(
            "{name}: largest {:.4}, squares {:.4}: {tight:?}",
            worst(&tight, points),
            worst(&squares, points)
        );
        assert!(
            worst(&tight, points) <= 0.05,
            "{name}: {}",
            worst(&tight, points)
        );
        assert!(
            worst(&squares, points) <= 0.06,
            "{name}: {}",
            worst(&squares, points)
        );
    }
}

#[test]
fn from_k_up_to_32_it_extrapolates_to_64_and_128_within_fifteen_percent() {
    for (name, points) in Table2::read().curves() {
        let (known, unseen) = points.split_at(6);
        let curve = Saturating::fit(known, FitNorm::Squares).unwrap();
        let rational = Rational::fit(known, RationalDegree::Two).unwrap();
        println!(
            "{name}: saturating {:.3}, rational {:.3}",
            worst(&curve, unseen),
            worst(&rational, unseen)
        );
        assert!(
            worst(&curve, unseen) <= 0.15,
            "{name}: {}",
            worst(&curve, unseen)
        );
    }
}

#[test]
fn the_printed_rationals_have_poles_and_the_corrected_ones_do_not() {
    let table = Table2::read();
    let mut printed_failures = 0;
    for (name, points) in table.curves() {
        let degree = if name == "β" {
            RationalDegree::Three
        } else {
            RationalDegree::Two
        };
        let printed = Rational::fit_as_printed(points, degree).unwrap();
        let corrected = Rational::fit(points, degree).unwrap();
        println!(
            "{name}: printed poles {:?} worst {:.3}; corrected worst {:.3} {corrected:?}",
            printed.poles_from(1.0),
            worst(&printed, points),
            worst(&corrected, points)
        );
        let grid = (0..400).map(|i| 1.03f64.powi(i));
        if !printed.poles_from(1.0).is_empty() || grid.clone().any(|k| printed.at(k) < 0.0) {
            printed_failures += 1;
        }
        assert!(corrected.poles_from(1.0).is_empty());
        assert!(grid.clone().all(|k| corrected.at(k) > 0.0));
        let beyond: Vec<f64> = grid
            .filter(|&k| k > 128.0)
            .map(|k| corrected.at(k))
            .collect();
        assert!(
            beyond.is_sorted_by(|a, b| a >= &(b * 0.9999)),
            "{name} rises beyond the measured range"
        );
    }
    assert!(printed_failures >= 1);
}

/// The benchmark of section 3.3 as Table 2 describes it, costs added: the paper's grid of k and r.
fn table_2_samples() -> Vec<Sample> {
    let table = Table2::read();
    let at = |curve: &[(f64, f64)], k: f64| curve.iter().find(|p| p.0 == k).unwrap().1;
    let sample = |point: OperatingPoint| {
        let (setup, transfer) = if point.read_share > 0.5 {
            (&table.t, &table.alpha)
        } else {
            (&table.s, &table.beta)
        };
        let setup_us = at(setup, point.concurrency) / TABLE_2_ACCESSES;
        let cost = setup_us * point.random_accesses_per_page() + at(transfer, point.concurrency);
        Sample {
            point,
            throughput_pages_per_s: 1e6 / cost,
        }
    };
    paper_plan().into_iter().map(sample).collect()
}

/// The units of Table 2 are right if its single-threaded throughput drops over r as section 3.3
/// reports: 38–57 times for writes, 18–23 times for reads (this drive: 42 and 17, from three-digit
/// costs).
#[test]
fn the_units_of_table_2_give_the_drops_of_section_3_3() {
    let samples = table_2_samples();
    let drop = |read_share: f64| {
        let at = |pages: f64| {
            let found = samples.iter().find(|s| {
                let p = s.point;
                p.concurrency == 1.0 && p.io_pages == pages && p.read_share == read_share
            });
            found.unwrap().throughput_pages_per_s
        };
        at(1000.0) / at(1.0)
    };
    assert!((41.5..41.7).contains(&drop(0.0)), "{}", drop(0.0));
    assert!((16.5..16.7).contains(&drop(1.0)), "{}", drop(1.0));
}

#[test]
fn per_k_least_squares_recover_table_2() {
    let table = Table2::read();
    let samples = table_2_samples();
    for (read_share, setup, transfer) in
        [(1.0, &table.t, &table.alpha), (0.0, &table.s, &table.beta)]
    {
        let own: Vec<Sample> = samples
            .iter()
            .filter(|s| s.point.read_share == read_share)
            .copied()
            .collect();
        let rows = costs_per_concurrency(&own);
        assert_eq!(rows.len(), 8);
        for (row, (s, b)) in rows.iter().zip(setup.iter().zip(transfer)) {
            assert!((row.setup_us * TABLE_2_ACCESSES / s.1 - 1.0).abs() < 1e-9);
            assert!((row.transfer_us / b.1 - 1.0).abs() < 1e-6 && row.r_squared > 1.0 - 1e-9);
        }
    }
}

/// Equations 7 and 8 add rates: for r → 0 they predict the sum of two throughputs, of which one
/// grows without bound.
#[test]
fn adding_costs_predicts_the_grid_and_adding_rates_does_not() {
    let samples = table_2_samples();
    let error = |kind| {
        let model = DriveModel::fit(kind, &samples).unwrap();
        (HeldOutError::of(&model, &samples).unwrap().unwrap(), model)
    };
    let (corrected, _) = error(ModelKind::Mqssd);
    let (printed, printed_model) = error(ModelKind::MqssdPrinted);
    println!("corrected {corrected:.3?}, printed {printed:.3?}");
    // 0.014 and 0.042; as printed 10.2 and 142.
    assert!(
        corrected.median < 0.015 && corrected.p90 < 0.045,
        "{corrected:?}"
    );
    assert!(printed.median > 10.0 && printed.p90 > 140.0, "{printed:?}");
    let rare = OperatingPoint {
        random_share: 1e-6,
        ..OperatingPoint::random_reads(1.0, 1.0)
    };
    let common = OperatingPoint::random_reads(1.0, 1.0);
    let ratio = printed_model.throughput_pages_per_s(&rare).unwrap()
        / printed_model.throughput_pages_per_s(&common).unwrap();
    // 59,221.
    assert!(ratio > 5.9e4, "{ratio}");
}

/// A grid of k ≤ 32 with 2% noise: what selection takes must hold at k = 64 and 128 too. By
/// cross-validation alone it would be equation 5 with costs added, which is as good inside the grid
/// and misses by a third beyond it.
#[test]
fn what_is_chosen_from_k_up_to_32_predicts_64_and_128() {
    let mut random = Noise(7);
    let noisy: Vec<Sample> = table_2_samples()
        .into_iter()
        .map(|s| Sample {
            throughput_pages_per_s: s.throughput_pages_per_s * random.factor(0.02),
            ..s
        })
        .collect();
    let (known, unseen): (Vec<Sample>, Vec<Sample>) =
        noisy.iter().partition(|s| s.point.concurrency <= 32.0);
    let mut comparison = Comparison::of(&known);
    let error = |p: &Predictor| HeldOutError::of(p.model(), &unseen).unwrap().unwrap();
    let chosen = comparison.best().unwrap();
    println!("of all: {} {:.3?}", chosen.model().kind(), error(chosen));
    // 0.078 and 0.130.
    assert!(error(chosen).median < 0.08 && error(chosen).p90 < 0.135);
    // Without the smooth residual, two forms are equal inside the grid.
    comparison
        .candidates
        .retain(|c| c.kind != ModelKind::MqssdSmooth);
    let inside = comparison
        .candidates
        .iter()
        .filter_map(|c| c.outcome.as_ref().ok())
        .min_by(|a, b| {
            let score = |p: &Predictor| p.held_out().unwrap().median + p.held_out().unwrap().p90;
            score(a).total_cmp(&score(b))
        })
        .unwrap();
    println!("inside: {} {:.3?}", inside.model().kind(), error(inside));
    assert_eq!(inside.model().kind(), ModelKind::MqssdPrintedAdded);
    // 0.193 and 0.376.
    assert!(error(inside).p90 > 0.37, "{:?}", error(inside));
    let chosen = comparison.best().unwrap();
    println!("chosen: {} {:.3?}", chosen.model().kind(), error(chosen));
    assert_eq!(chosen.model().kind(), ModelKind::Mqssd);
    // 0.085 and 0.133.
    assert!(error(chosen).median < 0.09 && error(chosen).p90 < 0.14);
}

/// Trained on k ≤ 32, the 90% interval at k = 64 and 128 holds what was measured there, and words
/// say that it is extrapolated.
#[test]
fn predictions_beyond_the_measured_range_are_wider_and_say_so() {
    let (known, unseen): (Vec<Sample>, Vec<Sample>) = table_2_samples()
        .into_iter()
        .partition(|s| s.point.concurrency <= 32.0);
    let comparison = Comparison::of(&known);
    let best = comparison.best().unwrap();
    let width = |p: &Prediction| (p.high_pages_per_s / p.low_pages_per_s).ln();
    let inside = best.predict(&OperatingPoint::random_reads(32.0, 10.0));
    let inside = inside.unwrap();
    assert_eq!(inside.caution(), None);
    let mut covered = 0;
    for sample in &unseen {
        let p = best.predict(&sample.point).unwrap();
        assert!(width(&p) > width(&inside), "{p:?}");
        let held = p.low_pages_per_s..=p.high_pages_per_s;
        covered += usize::from(held.contains(&sample.throughput_pages_per_s));
    }
    println!("{covered} of {} covered", unseen.len());
    // More than the nine tenths that it promises: all 28.
    assert_eq!(covered, unseen.len());
    let beyond = best
        .predict(&OperatingPoint::random_reads(128.0, 2000.0))
        .unwrap();
    assert_eq!(
        beyond.caution().unwrap(),
        "a depth of 128 is above the largest measured (32), and an I/O size in pages of 2000 is above the largest measured \
         (1000): this is extrapolated, and its interval is wider"
    );
}

/// Equations 5 and 6 with costs added: what is wrong with the printed model on the paper's own grid
/// is the sum of rates.
#[test]
fn the_printed_functions_with_costs_added_meet_the_grid() {
    let samples = table_2_samples();
    let error = |kind| {
        let model = DriveModel::fit(kind, &samples).unwrap();
        HeldOutError::of(&model, &samples).unwrap().unwrap()
    };
    let (added, printed) = (
        error(ModelKind::MqssdPrintedAdded),
        error(ModelKind::MqssdPrinted),
    );
    println!("costs added {added:.3?}, rates added {printed:.3?}");
    // 0.003 and 0.033; as printed 10.2.
    assert!(added.median < 0.0035 && added.p90 < 0.034, "{added:?}");
    assert!(printed.median > 10.0, "{printed:?}");
}
