//! Whole grids of reads that others measured and published: models trained on a part of one run, judged where they have seen nothing,
//! by the other run.
#![allow(clippy::unwrap_used, reason = "a failed step must stop the test")]
mod common;

use common::rows;
use isobath_model::{Comparison, HeldOutError, ModelKind, OperatingPoint, Sample};

/// Accesses begin at 512 bytes; a page of the model is as large here.
const UNIT_BYTES: f64 = 512.0;
const THREAD_BYTES: f64 = 10.0 * (1u64 << 30) as f64;
/// Cells are left out in turn, one in so many.
const FOLDS: usize = 8;

/// The grid that one run measured, by rows.
fn grid(drive: &str, run: &str) -> Vec<Sample> {
    let mut samples = Vec::new();
    for row in rows(include_str!("fixtures/published_grids.csv")) {
        if row[0] != drive || row[1] != run {
            continue;
        }
        let threads: f64 = row[2].parse().unwrap();
        for (at, time) in row[3..].iter().enumerate() {
            let seconds = time.parse::<f64>().unwrap() / 1e6;
            samples.push(Sample {
                point: OperatingPoint::random_reads(threads, f64::from(1 << at)),
                throughput_pages_per_s: threads * THREAD_BYTES / UNIT_BYTES / seconds,
            });
        }
    }
    assert_eq!(samples.len(), 96);
    samples
}

/// Errors at the cells of `judge` of models that were fitted to the other cells of `train`: what selection chooses, and others.
fn errors(train: &[Sample], judge: &[Sample]) -> Vec<(String, HeldOutError)> {
    let kinds = [
        ModelKind::Mqssd,
        ModelKind::MqssdSmooth,
        ModelKind::Queue,
        ModelKind::Surface,
    ];
    let mut all = vec![Vec::new(); 1 + kinds.len()];
    for fold in 0..FOLDS {
        // A cell's row and column differ from fold to fold: none of either is left out as a whole.
        let is_out = |i: usize| (3 * (i / 12) + i % 12) % FOLDS == fold;
        let part = |of: &[Sample], out: bool| -> Vec<Sample> {
            let cells = of.iter().enumerate().filter(|(i, _)| is_out(*i) == out);
            cells.map(|(_, s)| *s).collect()
        };
        let comparison = Comparison::of(&part(train, false));
        let of_kind = |kind| {
            let own = comparison.candidates.iter().find(|c| c.kind == kind);
            own.unwrap().outcome.as_ref().unwrap().model()
        };
        let mut models = vec![comparison.best().unwrap().model()];
        models.extend(kinds.map(of_kind));
        for sample in part(judge, true) {
            for (errors, model) in all.iter_mut().zip(&models) {
                let predicted = model.throughput_pages_per_s(&sample.point).unwrap();
                errors.push((predicted / sample.throughput_pages_per_s - 1.0).abs());
            }
        }
    }
    let names = ["chosen".to_owned()]
        .into_iter()
        .chain(kinds.map(|kind| kind.to_string()));
    let all = all.iter().map(|e| HeldOutError::from_errors(e).unwrap());
    names.zip(all).collect()
}

/// The goal is 2.5% and 10%; the median reaches it on one of the two. Measured: 1.8% (4.5% at the 90th percentile) and 3.0% (8.2%), where
/// MQSSD as corrected has 7.0% (49%) and 8.4% (51%).
#[test]
fn the_chosen_model_predicts_grids_that_others_measured() {
    for (drive, median, p90) in [("Samsung", 0.019, 0.047), ("PNY", 0.031, 0.084)] {
        let (train, judge) = (grid(drive, "2"), grid(drive, "1"));
        let errors = errors(&train, &judge);
        for (name, error) in &errors {
            println!("{drive}: {name}: {error:.3?}");
        }
        let (chosen, corrected) = (errors[0].1, errors[1].1);
        assert!(
            chosen.median <= median && chosen.p90 <= p90,
            "{drive}: {chosen:?}"
        );
        assert!(corrected.median > 2.5 * chosen.median, "{corrected:?}");
    }
}
