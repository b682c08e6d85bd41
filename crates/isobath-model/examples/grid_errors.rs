//! How well models predict a grid of reads that others measured: trained on seven eighths of one
//! run, judged on the last eighth of another run of the same drive, each eighth in turn.
//!
//! `cargo run --release -p isobath-model --example grid_errors -- TRAIN.csv JUDGE.csv`
//!
//! A file has a row per number of threads, `k,t,t,...`: microseconds that k threads took to read 10
//! GiB each, in accesses of 512 bytes, 1 KiB, 2 KiB and so on at random places. Lines that begin
//! with `#` are comments. The authors of the MQSSD paper publish such grids beside it.
#![allow(clippy::unwrap_used, reason = "a failed step must end the example")]

use isobath_model::{Comparison, HeldOutError, ModelKind, OperatingPoint, Sample};

/// Accesses begin at 512 bytes; a page of the model is as large here.
const UNIT_BYTES: f64 = 512.0;
const THREAD_BYTES: f64 = 10.0 * (1u64 << 30) as f64;
/// Cells are left out in turn, one in so many.
const FOLDS: usize = 8;

/// The grid in the file at `path`, by rows.
fn grid(path: &str) -> Vec<Sample> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut samples = Vec::new();
    let lines = text.lines().map(str::trim);
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let numbers: Vec<f64> = line.split(',').map(|n| n.trim().parse().unwrap()).collect();
        let (threads, times) = (numbers[0], &numbers[1..]);
        for (at, time) in times.iter().enumerate() {
            samples.push(Sample {
                point: OperatingPoint::random_reads(threads, f64::from(1 << at)),
                throughput_pages_per_s: threads * THREAD_BYTES / UNIT_BYTES / (time / 1e6),
            });
        }
    }
    samples
}

/// Errors at the cells of `judge` of models that were fitted to the other cells of `train`: what
/// selection chooses, and others.
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

fn main() {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let [train, judge] = paths.as_slice() else {
        eprintln!("usage: grid_errors TRAIN.csv JUDGE.csv");
        std::process::exit(2);
    };
    for (name, error) in errors(&grid(train), &grid(judge)) {
        println!(
            "{name}: median {:.1}%, 90th percentile {:.1}%",
            100.0 * error.median,
            100.0 * error.p90
        );
    }
}
