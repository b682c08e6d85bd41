//! Cost models of a profiled drive, for `isobath.lab`. Formulas and fits are those of
//! `isobath-model`.

use isobath_model::btree::BTree;
use isobath_model::drive::ConcurrencyCosts;
use isobath_model::lsm::{AccessCosts, PrintedLsm};
use isobath_model::profile::DeviceProfile;
use isobath_model::report::ModelReport;
use isobath_model::{ModelKind, OperatingPoint};
use pyo3::prelude::*;

use crate::errors::Failure;

/// The models that were fitted to the points of one profile.
#[pyclass(frozen, module = "isobath._native")]
pub(crate) struct Predictor {
    report: ModelReport,
}

/// A point, with the interval of 90%: pages per second, low, high, doublings beyond what was
/// measured, and in words what lies beyond.
type Predicted = (f64, f64, f64, f64, Option<String>);

#[pymethods]
impl Predictor {
    /// Fits all models to a profile, which is JSON.
    #[new]
    fn new(py: Python<'_>, profile: &str) -> PyResult<Predictor> {
        let report = py.detach(|| {
            DeviceProfile::from_json(profile)
                .map(|profile| ModelReport::of(&profile, None))
                .map_err(|error| Failure::Value(error.to_string()))
        })?;
        Ok(Predictor { report })
    }

    /// The fitted models, coarsest first: name, words for people, whether selection took it.
    fn kinds(&self) -> Vec<(String, String, bool)> {
        let fitted = self.report.rows.iter().filter(|row| row.failure.is_none());
        fitted
            .map(|row| (name_of(row.kind), row.kind.to_string(), row.chosen))
            .collect()
    }

    /// Predicts points of (I/Os in flight, share of random ones, pages per I/O, share of reads), by
    /// the model of a name or the chosen one.
    fn predict(
        &self,
        py: Python<'_>,
        kind: Option<&str>,
        points: Vec<(f64, f64, f64, f64)>,
    ) -> PyResult<Vec<Predicted>> {
        let predictor = match kind {
            None => self.report.comparison.best(),
            Some(name) => ModelKind::ALL
                .into_iter()
                .find(|kind| name_of(*kind) == name)
                .and_then(|kind| self.report.predictor(kind)),
        };
        let predictor = predictor.ok_or_else(|| {
            Failure::Value(match kind {
                None => "no model could be fitted to the profile".to_owned(),
                Some(name) => format!("no model {name:?} was fitted to the profile"),
            })
        })?;
        let predicted: Result<Vec<Predicted>, Failure> = py.detach(|| {
            points
                .into_iter()
                .map(|(concurrency, random_share, io_pages, read_share)| {
                    let point = OperatingPoint {
                        concurrency,
                        random_share,
                        io_pages,
                        read_share,
                    };
                    let prediction = predictor
                        .predict(&point)
                        .map_err(|error| Failure::Value(error.to_string()))?;
                    Ok((
                        prediction.throughput_pages_per_s,
                        prediction.low_pages_per_s,
                        prediction.high_pages_per_s,
                        prediction.extrapolated_doublings,
                        prediction.caution(),
                    ))
                })
                .collect()
        });
        Ok(predicted?)
    }

    /// Table 2 of the drive: for each operation and k the setup cost in µs per random access, the
    /// transfer cost in µs per page, and the line's R².
    fn lines(&self) -> Vec<(&'static str, f64, f64, f64, f64)> {
        let row = |operation, costs: &ConcurrencyCosts| {
            let ConcurrencyCosts {
                concurrency,
                setup_us,
                transfer_us,
                r_squared,
            } = *costs;
            (operation, concurrency, setup_us, transfer_us, r_squared)
        };
        let reads = self
            .report
            .read_lines
            .iter()
            .map(|costs| row("read", costs));
        let writes = self
            .report
            .write_lines
            .iter()
            .map(|costs| row("write", costs));
        reads.chain(writes).collect()
    }

    /// The points that were fitted: I/Os in flight, share of random ones, pages per I/O, share of
    /// reads, pages per second.
    fn samples(&self) -> Vec<(f64, f64, f64, f64, f64)> {
        let samples = self.report.samples.iter();
        samples
            .map(|sample| {
                let point = &sample.point;
                (
                    point.concurrency,
                    point.random_share,
                    point.io_pages,
                    point.read_share,
                    sample.throughput_pages_per_s,
                )
            })
            .collect()
    }
}

/// The pages of a B-tree's node with the cheapest point query, where an access takes `setup_us` and
/// `transfer_us` per page (paper 000, section 2.2).
#[pyfunction]
pub(crate) fn best_node_pages(
    record_count: f64,
    page_entries: f64,
    setup_us: f64,
    transfer_us: f64,
) -> u32 {
    let tree = BTree {
        record_count,
        page_entries,
    };
    tree.optimal_node_pages(|pages| setup_us + pages * transfer_us)
}

/// What an LSM tree costs by equations 9 to 12 as printed, in µs: an insert, a point query, and what
/// a scan of `scan_bytes` takes beyond the query.
///
/// `store` has bytes of records, bytes per file, files in L0, bytes per block, and bytes per record;
/// `costs` has t, α, s and β. Without a fanout there is a single level.
#[pyfunction]
#[pyo3(signature = (store, costs, fanout, scan_bytes))]
pub(crate) fn printed_lsm_us(
    store: (f64, f64, f64, f64, f64),
    costs: (f64, f64, f64, f64),
    fanout: Option<f64>,
    scan_bytes: f64,
) -> (f64, f64, f64) {
    let (data_bytes, file_bytes, l0_files, block_bytes, record_bytes) = store;
    let (read_setup_us, read_transfer_us, write_setup_us, write_transfer_us) = costs;
    let tree = PrintedLsm {
        data_bytes,
        file_bytes,
        l0_files,
        block_bytes,
        page_bytes: isobath_model::PAGE_BYTES as f64,
        record_bytes,
    };
    let costs = AccessCosts {
        read_setup_us,
        read_transfer_us,
        write_setup_us,
        write_transfer_us,
    };
    let (insert, query) = match fanout {
        Some(fanout) => (
            tree.insert_us(fanout, &costs),
            tree.point_query_us(fanout, &costs),
        ),
        None => (
            tree.insert_single_level_us(&costs),
            tree.point_query_single_level_us(&costs),
        ),
    };
    (insert, query, tree.scan_transfer_us(scan_bytes, &costs))
}

/// The name that JSON has for a model.
fn name_of(kind: ModelKind) -> String {
    let name = match kind {
        ModelKind::Dam => "dam",
        ModelKind::Pdam => "pdam",
        ModelKind::Affine => "affine",
        ModelKind::MqssdPrinted => "mqssd_printed",
        ModelKind::MqssdPrintedAdded => "mqssd_printed_added",
        ModelKind::Mqssd => "mqssd",
        ModelKind::MqssdSmooth => "mqssd_smooth",
        ModelKind::Queue => "queue",
        ModelKind::Surface => "surface",
        other => return other.to_string(),
    };
    name.to_owned()
}
