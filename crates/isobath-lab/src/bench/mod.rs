//! Benchmarks of engines: the named workloads, any engine, the drive's own limit
//! beside it, the seven verdicts of paper 002, and result rows with units in
//! their column names.

mod campaign;
mod catalogue;
mod choice;
mod clients;
mod components;
mod cost;
mod fio;
mod half_rate;
mod harness;
mod keys;
mod latencies;
mod lookup;
mod place;
mod ratio;
mod record;
mod record_csv;
mod region;
mod report;
mod row;
mod search;
mod self_test;
mod series;
mod smart;
mod steady;
mod suite;
mod summary;
mod tally;
mod tpcc;
mod verdict;
mod workload;

pub use campaign::{Campaign, Case, Outcome};
pub use catalogue::{ScanLength, Workload};
pub use choice::Choice;
pub use components::components;
pub use cost::{CostMap, Point, cost_map, drives, points};
pub use fio::{FioJob, fio_left_out, read_fio};
pub use half_rate::at_half_rate;
pub(crate) use keys::Records;
pub use keys::{KeyFormat, KeyOrder};
pub(crate) use lookup::{Data, run};
pub use lookup::{LookupPlan, LookupReport, lookup};
pub(crate) use place::shape;
pub use place::{Place, VirtualSsdPlace};
pub use ratio::{REPEATS_MIN, Ratio, Says, compare, schedule};
pub use record::{LeftOut, Record, evidence};
pub use record_csv::write_csv;
pub use region::make_region;
pub use report::{Measured, html, ratio_chart, svg_charts};
pub use row::{LoadRow, Row, Setting};
pub use search::{Search, SearchPlan, Trial, search};
pub use self_test::{Caught, self_test};
pub use series::{Sample, Series};
pub use smart::{DriveWrites, VendorLog, host_bytes};
pub use steady::{Steady, SteadyParameters, steady};
pub use suite::{SUITE_ROWS_MAX, Suite, SuiteChoice, SuiteData, SuiteLog, SuiteRow, SuiteSizes};
pub use summary::{EngineSummary, RowSummary, summarize, write_summary};
pub use tpcc::{Report as TpccReport, Scale as TpccScale};
pub use verdict::{
    CAPACITIES_MIN, Evidence, Known, Length, Pitfall, StateEvidence, Verdict, has_headline, judge,
};
pub use workload::Mix;
