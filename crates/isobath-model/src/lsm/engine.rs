//! Times of an LSM engine, calibrated on a few of its own runs.
//!
//! Queries: (c₀ + c₁·E)·(1/k + h). CPU and other costs per query, device and CPU per block, and the
//! share `h` that no concurrency hides. What a few runs say of the cost of a block, and of `h`, is
//! weighed against what is known of the drive. Scans: the same with sorted runs in place of blocks.
//! Inserts: (c₀ + c₁·L)/k + c₂ + c₃·R with L sorted runs and R the rewrites of L0 → L1 and L1 → L2,
//! which exclude each other. A single level: WA·(c₄/k + c₅). A single background job does
//! everything in turn: c₆ + c₇·WA.
//!
//! Where a layout itself was measured, what the formula missed there is carried over: its errors
//! are interpolated over ln k, so that a prediction at a measured run is the measurement.

use serde::{Deserialize, Serialize};

use super::levels::{Layout, LayoutWork, LsmStore};
use crate::error::FitError;
use crate::nonlinear::{Parameter, minimize};

/// One measured run of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The layout of the store.
    pub layout: Layout,
    /// `k`: threads, of users for queries and scans, of the background pool for inserts.
    pub concurrency: u32,
    /// Wall time per operation, all threads together, µs.
    pub operation_us: f64,
}

/// (c₀ + c₁·x)·(1/k + h), µs per operation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct QueryCosts {
    /// `c₀`: per operation, µs.
    pub operation_us: f64,
    /// `c₁`: per block read (queries) or sorted run merged (scans), µs.
    pub unit_us: f64,
    /// `h`: share that concurrency does not hide; 1/h is the limit of the speed-up.
    pub serial_share: f64,
}

impl QueryCosts {
    /// Wall time per operation in µs with `units` blocks or runs and `k` threads.
    pub fn at(&self, units: f64, concurrency: f64) -> f64 {
        (self.operation_us + self.unit_us * units) * (1.0 / concurrency + self.serial_share)
    }

    /// Fits `(units, k, µs)` of measured runs. `unit_us` is what the drive takes for a unit by
    /// itself, if units are reads of it and that was measured.
    fn fit(what: &str, points: &[(f64, f64, f64)], unit_us: Option<f64>) -> Result<Self, FitError> {
        let high = points.iter().map(|p| p.2 * p.1).fold(0.0, f64::max);
        let parameters = [
            Parameter::new(high * 1e-4, high * 0.3, high * 2.0),
            Parameter::new(high * 1e-5, unit_us.unwrap_or(high * 0.1), high),
            Parameter::new(1e-6, SERIAL_SHARE_USUAL, 1.0),
        ];
        let from = |v: &[f64]| Self {
            operation_us: v[0],
            unit_us: v[1],
            serial_share: v[2],
        };
        let residuals = |v: &[f64]| -> Vec<f64> {
            let missed = points
                .iter()
                .map(|&(units, k, y)| (from(v).at(units, k) / y).ln() / MISSED_LN);
            let known = unit_us.map(|unit_us| {
                let unit = (v[1] / unit_us).ln() / UNIT_SPREAD_LN;
                let serial = (v[2] / SERIAL_SHARE_USUAL).ln() / SERIAL_SHARE_SPREAD_LN;
                [unit, serial]
            });
            missed.chain(known.into_iter().flatten()).collect()
        };
        let minimum = minimize(&parameters, &[], &residuals);
        let minimum = minimum.ok_or_else(|| FitError::no_convergence(what))?;
        Ok(from(&minimum.values))
    }
}

/// Wall time per inserted record.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CompactionCosts {
    /// `c₀`: overlapped by threads, µs.
    pub parallel_us: f64,
    /// `c₁`: overlapped by threads, per sorted run, µs.
    pub parallel_per_run_us: f64,
    /// `c₂`: not overlapped, µs.
    pub serial_us: f64,
    /// `c₃`: not overlapped, per rewrite through L1, µs.
    pub serial_per_rewrite_us: f64,
    /// `c₄`: a single level's overlapped cost per unit of write amplification, µs. `None` if no run
    /// was a single level.
    pub single_parallel_us: Option<f64>,
    /// `c₅`: a single level's cost that is not overlapped, per unit of write amplification, µs.
    pub single_serial_us: Option<f64>,
    /// `c₆`, `c₇`: with one background job, µs and µs per unit of write amplification. `None`
    /// without two such runs.
    pub one_job_us: Option<(f64, f64)>,
}

impl CompactionCosts {
    fn at(&self, layout: Layout, work: &LayoutWork, concurrency: f64) -> Option<f64> {
        if let (Some((fixed_us, per_unit_us)), true) = (self.one_job_us, concurrency < 2.0) {
            return Some(fixed_us + per_unit_us * work.write_amplification);
        }
        match layout {
            Layout::Leveled { .. } => Some(
                (self.parallel_us + self.parallel_per_run_us * work.sorted_runs) / concurrency
                    + self.serial_us
                    + self.serial_per_rewrite_us * work.serial_rewrites,
            ),
            Layout::SingleLevel => {
                let per_unit = self.single_parallel_us? / concurrency + self.single_serial_us?;
                Some(work.write_amplification * per_unit)
            }
        }
    }
}

/// An engine's calibrated times on one store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineModel {
    /// The store it was calibrated on.
    pub store: LsmStore,
    /// Point queries.
    pub query: QueryCosts,
    /// Scans.
    pub scan: QueryCosts,
    /// Inserts, until nothing is pending.
    pub compaction: CompactionCosts,
    /// What the formulas missed at the runs they were calibrated on.
    residuals: Residuals,
}

/// ln(measured / formula) per calibration run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Residuals {
    query: Vec<(Layout, u32, f64)>,
    scan: Vec<(Layout, u32, f64)>,
    insert: Vec<(Layout, u32, f64)>,
}

impl Residuals {
    fn of(cells: &[Cell], formula: impl Fn(&Cell) -> Option<f64>) -> Vec<(Layout, u32, f64)> {
        let one = |c: &Cell| Some((c.layout, c.concurrency, (c.operation_us / formula(c)?).ln()));
        let mut all: Vec<_> = cells.iter().filter_map(one).collect();
        all.sort_by_key(|r| r.1);
        all
    }

    /// The factor for a layout at `concurrency`: linear in ln k between its own runs, constant
    /// beyond, 1 without any.
    fn factor(of: &[(Layout, u32, f64)], layout: Layout, concurrency: u32) -> f64 {
        let own: Vec<(f64, f64)> = of
            .iter()
            .filter(|r| r.0 == layout)
            .map(|r| (f64::from(r.1).ln(), r.2))
            .collect();
        let x = f64::from(concurrency).ln();
        let after = own.iter().position(|p| p.0 >= x);
        let ln = match (after, own.last()) {
            (_, None) => 0.0,
            (None, Some(last)) => last.1,
            (Some(0), _) => own[0].1,
            (Some(i), _) => {
                let ((x0, y0), (x1, y1)) = (own[i - 1], own[i]);
                y0 + (y1 - y0) * (x - x0) / (x1 - x0)
            }
        };
        ln.exp()
    }
}

/// What the formula misses of a run, in ln(time): how far it is trusted beside what is usual.
const MISSED_LN: f64 = 0.05;
/// How far a block's cost inside of the engine is from the drive's own read of it, in ln: a third
/// either way, for the CPU beside it and for what is found in caches.
const UNIT_SPREAD_LN: f64 = 0.3;
/// A drive serves about a hundred random reads in the time that one takes; how far it may be from
/// that, in ln: a factor of 4.5 either way.
const SERIAL_SHARE_USUAL: f64 = 0.01;
const SERIAL_SHARE_SPREAD_LN: f64 = 1.5;

/// Least number of runs per kind of operation.
const QUERY_CELLS_MIN: usize = 3;
const COMPACTION_CELLS_MIN: usize = 4;

impl EngineModel {
    /// Calibrates on measured cells: at least three of queries, three of scans and four leveled
    /// ones of inserts, over two layouts and two concurrencies each; two more of inserts into a
    /// single level make that layout predictable.
    ///
    /// `block_read_us` is what the drive takes for one random read of a block with nothing else in
    /// flight, if that was measured. Three runs seldom tell a block's cost from a query's; the
    /// drive does.
    pub fn calibrate(
        store: LsmStore,
        block_read_us: Option<f64>,
        queries: &[Cell],
        scans: &[Cell],
        inserts: &[Cell],
    ) -> Result<Self, CalibrationError> {
        enough("queries", queries.len(), QUERY_CELLS_MIN)?;
        enough("scans", scans.len(), QUERY_CELLS_MIN)?;
        let leveled: Vec<Cell> = inserts
            .iter()
            .filter(|c| c.layout != Layout::SingleLevel)
            .copied()
            .collect();
        let single: Vec<Cell> = inserts
            .iter()
            .filter(|c| c.layout == Layout::SingleLevel)
            .copied()
            .collect();
        enough(
            "inserts into leveled layouts",
            leveled.len(),
            COMPACTION_CELLS_MIN,
        )?;
        let points = |cells: &[Cell], units: fn(&LayoutWork) -> f64| -> Vec<(f64, f64, f64)> {
            let one = |c: &Cell| {
                (
                    units(&store.work(c.layout, c.concurrency)),
                    f64::from(c.concurrency),
                    c.operation_us,
                )
            };
            cells.iter().map(one).collect()
        };
        let query = QueryCosts::fit(
            "query times",
            &points(queries, |w| w.query_blocks),
            block_read_us,
        )?;
        let scan = QueryCosts::fit("scan times", &points(scans, |w| w.sorted_runs), None)?;
        let compaction = fit_compaction(&store, &leveled, &single)?;
        let mut model = Self {
            store,
            query,
            scan,
            compaction,
            residuals: Residuals::default(),
        };
        model.residuals = Residuals {
            query: Residuals::of(queries, |c| Some(model.query_us(c.layout, c.concurrency))),
            scan: Residuals::of(scans, |c| Some(model.scan_us(c.layout, c.concurrency))),
            insert: Residuals::of(inserts, |c| model.insert_us(c.layout, c.concurrency)),
        };
        Ok(model)
    }

    /// Wall time per point query, µs.
    pub fn query_us(&self, layout: Layout, concurrency: u32) -> f64 {
        let formula = self
            .query
            .at(self.store.query_blocks(layout), f64::from(concurrency));
        formula * Residuals::factor(&self.residuals.query, layout, concurrency)
    }

    /// Wall time per scan, µs.
    pub fn scan_us(&self, layout: Layout, concurrency: u32) -> f64 {
        let formula = self.scan.at(
            self.store.level_bytes(layout).len() as f64,
            f64::from(concurrency),
        );
        formula * Residuals::factor(&self.residuals.scan, layout, concurrency)
    }

    /// Wall time per insert until nothing is pending, µs; `None` for a single level that was not
    /// calibrated.
    pub fn insert_us(&self, layout: Layout, jobs: u32) -> Option<f64> {
        let formula =
            self.compaction
                .at(layout, &self.store.work(layout, jobs), f64::from(jobs))?;
        Some(formula * Residuals::factor(&self.residuals.insert, layout, jobs))
    }

    /// The cheapest of `layouts` for a mix, and its predicted cost per operation in µs.
    ///
    /// Layouts predicted within [`Self::TIE_SHARE`] of the cheapest count as equal; among them the
    /// one that writes least flash wins. `None` if no layout has a prediction.
    pub fn cheapest(&self, layouts: &[Layout], mix: &Mix) -> Option<(Layout, f64)> {
        let costs: Vec<(Layout, f64)> = layouts
            .iter()
            .filter_map(|&layout| Some((layout, self.mix_us(layout, mix)?)))
            .collect();
        let least = costs.iter().map(|c| c.1).fold(f64::INFINITY, f64::min);
        costs
            .into_iter()
            .filter(|c| c.1 <= least * (1.0 + Self::TIE_SHARE))
            .min_by(|a, b| {
                self.store
                    .query_blocks(a.0)
                    .total_cmp(&self.store.query_blocks(b.0))
            })
    }

    /// The model's own error on inserts: differences below it are not knowledge.
    pub const TIE_SHARE: f64 = 0.03;

    /// Mean wall time per operation of a mix, µs; `None` if it inserts and inserts into this layout
    /// have no prediction.
    pub fn mix_us(&self, layout: Layout, mix: &Mix) -> Option<f64> {
        let insert_us = if mix.inserts > 0.0 {
            mix.inserts * self.insert_us(layout, mix.jobs)?
        } else {
            0.0
        };
        Some(
            mix.queries * self.query_us(layout, mix.threads)
                + mix.scans * self.scan_us(layout, mix.threads)
                + insert_us,
        )
    }
}

/// Shares of operations and the concurrency they run with.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Mix {
    /// Point queries per operation.
    pub queries: f64,
    /// Scans per operation.
    pub scans: f64,
    /// Inserts per operation.
    pub inserts: f64,
    /// User threads.
    pub threads: u32,
    /// Background threads.
    pub jobs: u32,
}

/// Why an engine could not be calibrated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationError {
    /// Too few runs of one kind.
    #[error("calibrating the engine needs {missing} more runs of {what} ({found} of {needed} present)", missing = needed - found)]
    TooFewRuns {
        /// The kind.
        what: &'static str,
        /// How many are needed.
        needed: usize,
        /// How many there are.
        found: usize,
    },
    /// The fit failed.
    #[error(transparent)]
    Fit(#[from] FitError),
}

fn enough(what: &'static str, found: usize, needed: usize) -> Result<(), CalibrationError> {
    if found < needed {
        Err(CalibrationError::TooFewRuns {
            what,
            needed,
            found,
        })
    } else {
        Ok(())
    }
}

type Measured = Vec<(Cell, LayoutWork)>;

fn log_errors(costs: &CompactionCosts, cells: &Measured) -> Vec<f64> {
    let one = |(c, w): &(Cell, LayoutWork)| {
        let predicted = costs
            .at(c.layout, w, f64::from(c.concurrency))
            .unwrap_or(f64::NAN);
        (predicted / c.operation_us).ln()
    };
    cells.iter().map(one).collect()
}

/// Fits the three parts on the runs that concern each: several jobs over levels, several jobs over
/// one level, one job.
fn fit_compaction(
    store: &LsmStore,
    leveled: &[Cell],
    single: &[Cell],
) -> Result<CompactionCosts, FitError> {
    let with_work = |cells: &[Cell], one_job: bool| -> Measured {
        let own = cells.iter().filter(|c| (c.concurrency < 2) == one_job);
        own.map(|c| (*c, store.work(c.layout, c.concurrency)))
            .collect()
    };
    let mut costs = fit_leveled(&with_work(leveled, false))?;
    let single = with_work(single, false);
    if single.len() >= 2 {
        let unit = |c: &(Cell, LayoutWork)| c.0.operation_us / c.1.write_amplification;
        let high = single
            .iter()
            .map(|c| unit(c) * f64::from(c.0.concurrency))
            .fold(0.0, f64::max);
        let parameters = [
            Parameter::new(high * 1e-4, high, high * 4.0),
            Parameter::new(high * 1e-6, high * 0.05, high),
        ];
        costs = fit_on(&single, &parameters, |v| CompactionCosts {
            single_parallel_us: Some(v[0]),
            single_serial_us: Some(v[1]),
            ..costs
        })?;
    }
    let one_job = with_work(leveled, true);
    if one_job.len() >= 2 {
        let high = one_job
            .iter()
            .map(|(c, _)| c.operation_us)
            .fold(0.0, f64::max);
        let parameters = [
            Parameter::new(high * 1e-3, high * 0.8, high),
            Parameter::new(high * 1e-5, high * 0.02, high),
        ];
        costs = fit_on(&one_job, &parameters, |v| CompactionCosts {
            one_job_us: Some((v[0], v[1])),
            ..costs
        })?;
    }
    Ok(costs)
}

fn fit_leveled(cells: &Measured) -> Result<CompactionCosts, FitError> {
    let high = cells
        .iter()
        .map(|(c, _)| c.operation_us * f64::from(c.concurrency))
        .fold(0.0, f64::max);
    let parameters = [
        Parameter::new(high * 1e-5, high * 0.5, high * 4.0),
        Parameter::new(high * 1e-5, high * 0.05, high),
        Parameter::new(high * 1e-5, high * 0.05, high),
        Parameter::new(high * 1e-6, high * 0.01, high),
    ];
    fit_on(cells, &parameters, |v| CompactionCosts {
        parallel_us: v[0],
        parallel_per_run_us: v[1],
        serial_us: v[2],
        serial_per_rewrite_us: v[3],
        single_parallel_us: None,
        single_serial_us: None,
        one_job_us: None,
    })
}

fn fit_on(
    cells: &Measured,
    parameters: &[Parameter],
    costs: impl Fn(&[f64]) -> CompactionCosts,
) -> Result<CompactionCosts, FitError> {
    let best = minimize(parameters, &[], &|v: &[f64]| log_errors(&costs(v), cells));
    let best = best.ok_or_else(|| FitError::no_convergence("insert times"))?;
    Ok(costs(&best.values))
}
