//! Fixtures shared by the integration tests.
#![allow(
    dead_code,
    reason = "every test file uses its own part of the fixtures"
)]
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot read its fixture must stop"
)]

pub(crate) mod advice;

use isobath_model::{OperatingPoint, Sample};

/// Rows of a comma-separated fixture: comment lines and the header are left out.
pub(crate) fn rows(text: &str) -> Vec<Vec<&str>> {
    let lines = text
        .lines()
        .filter(|l| !l.starts_with('#') && !l.trim().is_empty());
    lines.skip(1).map(|l| l.split(',').collect()).collect()
}

/// Table 2: `(k, cost)` for the four cost functions.
pub(crate) struct Table2 {
    pub(crate) s: Vec<(f64, f64)>,
    pub(crate) beta: Vec<(f64, f64)>,
    pub(crate) t: Vec<(f64, f64)>,
    pub(crate) alpha: Vec<(f64, f64)>,
}

impl Table2 {
    pub(crate) fn read() -> Self {
        let rows: Vec<Vec<f64>> = rows(include_str!("../fixtures/mqssd_table2.csv"))
            .iter()
            .map(|r| r.iter().map(|v| v.parse().unwrap()).collect())
            .collect();
        let column = |i: usize| rows.iter().map(|r| (r[0], r[i])).collect();
        Self {
            s: column(1),
            beta: column(2),
            t: column(4),
            alpha: column(5),
        }
    }

    pub(crate) fn curves(&self) -> [(&'static str, &[(f64, f64)]); 4] {
        [
            ("s", &self.s),
            ("β", &self.beta),
            ("t", &self.t),
            ("α", &self.alpha),
        ]
    }
}

/// The measured virtual drive: mean of the two runs, and how far apart they were.
pub(crate) fn virtual_drive(set: &str) -> Vec<(Sample, f64)> {
    rows(include_str!("../fixtures/virtual_drive.csv"))
        .iter()
        .filter(|r| r[0] == set)
        .map(|r| {
            let v: Vec<f64> = r[1..].iter().map(|v| v.parse().unwrap()).collect();
            let point = OperatingPoint {
                concurrency: v[0],
                random_share: v[1],
                io_pages: v[2],
                read_share: v[3],
            };
            (
                Sample {
                    point,
                    throughput_pages_per_s: 0.5 * (v[4] + v[5]),
                },
                (v[4] / v[5] - 1.0).abs(),
            )
        })
        .collect()
}

/// The value below which `share` of the values lie.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

/// Seeded noise of measurements.
pub(crate) struct Noise(pub(crate) u64);

impl Noise {
    /// A number in 0..1, by SplitMix64 (Steele, Lea, Flood 2014).
    pub(crate) fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// exp of a sum of twelve uniform numbers: near to normal, `deviation` in ln.
    pub(crate) fn factor(&mut self, deviation: f64) -> f64 {
        let normal: f64 = (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0;
        (normal * deviation).exp()
    }
}
