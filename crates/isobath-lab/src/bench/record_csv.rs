//! Records of runs as tables of comma-separated values.

use std::path::Path;

use super::record::Record;
use crate::LabError;

/// Writes `records.csv` (one row per run), `operations.csv` (one per run and kind of operation) and
/// `series.csv` (one per sample) beside the records.
///
/// # Errors
/// I/O errors.
pub fn write_csv(directory: &Path, records: &[Record]) -> Result<(), LabError> {
    let first = records.first();
    let columns = first.map(|record| cells(record).map(|(name, _)| name));
    let rows = records
        .iter()
        .map(|record| cells(record).map(|(_, cell)| cell));
    write(&directory.join("records.csv"), columns, rows)?;
    let columns = [
        "row",
        "config_hash",
        "round",
        "engine",
        "isolation",
        "workload",
        "operation",
        "operations_per_s",
    ];
    let rows = records.iter().flat_map(|record| {
        let kinds = record.operations_by_type.iter();
        kinds.map(move |(operation, per_s)| {
            [
                may(record.row.clone()),
                record.config_hash.clone(),
                record.round.to_string(),
                record.setting.engine.clone(),
                record.setting.tuning.isolation.name().to_owned(),
                record.setting.workload.clone(),
                operation.clone(),
                per_s.to_string(),
            ]
        })
    });
    write(&directory.join("operations.csv"), Some(columns), rows)?;
    let columns = [
        "config_hash",
        "round",
        "seconds",
        "operations",
        "user_bytes",
        "host_bytes",
        "nand_bytes",
        "space_bytes",
        "cpu_s",
        "latency_us_p99",
    ];
    let rows = records.iter().flat_map(|record| {
        let samples = record.series.samples.iter();
        samples.map(move |sample| {
            [
                record.config_hash.clone(),
                record.round.to_string(),
                sample.seconds.to_string(),
                sample.operations.to_string(),
                sample.user_bytes.to_string(),
                sample.host_bytes.to_string(),
                may(sample.nand_bytes),
                sample.space_bytes.to_string(),
                sample.cpu_s.to_string(),
                may(sample.latency_us_p99),
            ]
        })
    });
    write(&directory.join("series.csv"), Some(columns), rows)
}

/// Writes a table; one without columns is empty.
fn write<const N: usize>(
    path: &Path,
    columns: Option<[&str; N]>,
    rows: impl Iterator<Item = [String; N]>,
) -> Result<(), LabError> {
    let failed = |error: csv::Error| LabError::input(path, error.to_string());
    let mut table = csv::Writer::from_path(path).map_err(failed)?;
    if let Some(columns) = columns {
        table.write_record(columns).map_err(failed)?;
    }
    for row in rows {
        table.write_record(row).map_err(failed)?;
    }
    table.flush().map_err(LabError::io("write", path))
}

fn may<T: ToString>(value: Option<T>) -> String {
    value.map_or(String::new(), |value| value.to_string())
}

/// The columns of a record, each with its name.
fn cells(r: &Record) -> [(&'static str, String); 46] {
    let medium = &r.setting.medium;
    let limits = r.drive_limits().map(Option::unzip);
    let [
        reads,
        random,
        random_flushed,
        sequential,
        sequential_flushed,
    ] = limits;
    [
        ("row", may(r.row.clone())),
        ("config_hash", r.config_hash.clone()),
        ("round", r.round.to_string()),
        ("after_gap", r.after_gap.to_string()),
        ("isobath_version", r.isobath_version.clone()),
        ("engine", r.setting.engine.clone()),
        ("isolation", r.setting.tuning.isolation.name().to_owned()),
        ("workload", r.setting.workload.clone()),
        ("records_count", r.records_count.to_string()),
        ("data_bytes", r.data_bytes.to_string()),
        ("capacity_bytes", may(medium.capacity_bytes())),
        ("over_provisioning", may(medium.over_provisioning())),
        ("drive", medium.to_string()),
        (
            "drive_state",
            may(medium.modelled().map(|drive| drive.state.name())),
        ),
        ("pool_bytes", r.setting.pool_bytes.to_string()),
        ("clients_count", r.clients_count.to_string()),
        ("rate_per_s", may(r.setting.rate_per_s)),
        ("duration_s", r.duration_s.to_string()),
        ("steal_s", r.steal_s.to_string()),
        ("operations_per_s", r.operations_per_s.to_string()),
        ("steady_from", may(r.steady_from)),
        ("latency_us_p50", r.latency_us_p50.to_string()),
        ("latency_us_p99", r.latency_us_p99.to_string()),
        ("latency_us_p999", r.latency_us_p999.to_string()),
        ("latency_us_max", r.latency_us_max.to_string()),
        ("latency_one_in", may(r.latency_one_in)),
        ("keys_drawn_before", may(r.keys_drawn_before)),
        ("cpu_us_per_operation", r.cpu_us_per_operation.to_string()),
        ("harness_ns_per_operation", may(r.harness_ns_per_operation)),
        ("harness_share_of_cpu", may(r.harness_share())),
        ("fill_factor", may(r.setting.space.fill_factor)),
        ("levels", may(r.levels())),
        ("wa_a", may(r.wa_a)),
        ("wa_d", may(r.wa_d)),
        (
            "modelled_operations_per_s",
            may(r.modelled_operations_per_s),
        ),
        ("space_amplification_max", may(r.space_amplification_max)),
        ("drive_reads_per_s_before", may(reads.0)),
        ("drive_reads_per_s_after", may(reads.1)),
        ("drive_random_writes_per_s_before", may(random.0)),
        ("drive_random_writes_per_s_after", may(random.1)),
        (
            "drive_random_flushed_writes_per_s_before",
            may(random_flushed.0),
        ),
        (
            "drive_random_flushed_writes_per_s_after",
            may(random_flushed.1),
        ),
        ("drive_sequential_mb_per_s_before", may(sequential.0)),
        ("drive_sequential_mb_per_s_after", may(sequential.1)),
        (
            "drive_sequential_flushed_mb_per_s_before",
            may(sequential_flushed.0),
        ),
        (
            "drive_sequential_flushed_mb_per_s_after",
            may(sequential_flushed.1),
        ),
    ]
}
