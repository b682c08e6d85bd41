//! Workload descriptions: the advisor's input, as TOML.
//!
//! ```toml
//! [data]
//! record_count = 64_000_000
//! key_bytes = 16
//! value_bytes = 2048
//! zipf_exponent = 0.0            # optional: 0 is uniform, 0.99 is YCSB's skew
//! order = "rewritten"            # optional: "loaded" in the order of keys and not rewritten since, or "rewritten"
//!
//! [operations]                   # shares of all operations; they must add up to 1
//! point_reads = 0.70
//! scans = 0.05
//! updates = 0.20                 # blind or read-modify-write of existing keys
//! inserts = 0.05                 # of new keys
//! scan_records = 100             # records per scan
//! clients = 64                   # operations that are in flight at once
//!
//! [machine]
//! memory_bytes = 8_589_934_592   # for pool or block cache, all included
//! core_count = 4
//!
//! [target]                       # optional
//! operations_per_s = 50_000
//! read_p99_us = 2_000
//!
//! [drive]                        # optional
//! capacity_bytes = 1_000_000_000_000   # what the store may fill
//! endurance_bytes = 600e12       # the drive's TBW
//! lifetime_years = 5
//!
//! [durability]                   # optional
//! commits = "synced"             # synced, buffered or none
//! ```

use serde::{Deserialize, Serialize};
use toml::Spanned;

/// Why a workload file was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// The file is not TOML of the expected shape.
    #[error("line {line}{}: {message}", field.as_ref().map(|f| format!(", field {f}")).unwrap_or_default())]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// The key on that line, if there is one.
        field: Option<String>,
        /// What the parser said.
        message: String,
    },
    /// An impossible value.
    #[error("line {line}, field {field}: {value} {problem}")]
    Invalid {
        /// Line, from 1.
        line: usize,
        /// The field, with its table.
        field: &'static str,
        /// Its value.
        value: f64,
        /// What is wrong with it, and what would be right.
        problem: &'static str,
    },
}

/// A checked workload. See the module's example for the file format.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Workload {
    /// Records in the store.
    pub record_count: f64,
    /// Bytes per key, mean.
    pub key_bytes: f64,
    /// Bytes per value, mean.
    pub value_bytes: f64,
    /// Exponent of the Zipf distribution over records, 0 for uniform.
    pub zipf_exponent: f64,
    /// How records lie on the drive; `None` if the file does not say.
    pub order: Option<Order>,
    /// Share of operations that read one record.
    pub point_reads: f64,
    /// Share of operations that scan.
    pub scans: f64,
    /// Share of operations that update existing records.
    pub updates: f64,
    /// Share of operations that insert new records.
    pub inserts: f64,
    /// Records per scan.
    pub scan_records: f64,
    /// Operations in flight at once.
    pub clients: u32,
    /// Memory for the engine, bytes.
    pub memory_bytes: f64,
    /// Cores for the engine.
    pub core_count: u32,
    /// Rate that must be reached, operations/s.
    pub target_operations_per_s: Option<f64>,
    /// 99th percentile of read latency that must be kept, µs.
    pub target_read_p99_us: Option<f64>,
    /// Bytes of the drive that the store may fill.
    pub capacity_bytes: Option<f64>,
    /// Bytes that the drive may be written in its life (TBW).
    pub endurance_bytes: Option<f64>,
    /// Years that the drive must last.
    pub lifetime_years: f64,
    /// Durability of commits.
    pub durability: Durability,
}

/// When a commit counts as done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// After it is on the drive.
    #[default]
    Synced,
    /// Within a bounded window.
    Buffered,
    /// The log is written, nothing waits for it.
    None,
}

/// How records lie on the drive, relative to their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Loaded in the order of their keys, and hardly rewritten since.
    Loaded,
    /// Rewritten or inserted at random since they were loaded: pages whose keys follow each other
    /// lie anywhere.
    Rewritten,
}

impl Workload {
    /// How records lie on the drive: as the file says or, if it does not, as they come to lie in
    /// the steady state of the operations. Writes at random rewrite every page some day; what is
    /// never written stays as it was loaded.
    pub fn order_on_drive(&self) -> Order {
        self.order.unwrap_or(match self.writes() > 0.0 {
            true => Order::Rewritten,
            false => Order::Loaded,
        })
    }

    /// Bytes per record.
    pub fn record_bytes(&self) -> f64 {
        self.key_bytes + self.value_bytes
    }

    /// Bytes of all records.
    pub fn data_bytes(&self) -> f64 {
        self.record_count * self.record_bytes()
    }

    /// Share of operations that write a record.
    pub fn writes(&self) -> f64 {
        self.updates + self.inserts
    }

    /// Reads a workload file; errors name line and field.
    pub fn from_toml(text: &str) -> Result<Self, WorkloadError> {
        let file: File = toml::from_str(text).map_err(|error| syntax(text, &error))?;
        let check = Check { text };
        let (d, o, m) = (&file.data, &file.operations, &file.machine);
        let record_count = check.holds(
            "data.record_count",
            &d.record_count,
            |v| (1.0..=RECORDS_MAX).contains(&v),
            "is not within 1..=1e15",
        )?;
        let workload = Self {
            record_count,
            key_bytes: check.holds(
                "data.key_bytes",
                &d.key_bytes,
                |v| (1.0..=KEY_BYTES_MAX).contains(&v),
                "is not within 1..=1024, the longest key of Isobath",
            )?,
            value_bytes: check.holds(
                "data.value_bytes",
                &d.value_bytes,
                |v| (0.0..=VALUE_BYTES_MAX).contains(&v),
                "is not within 0..=1073741824 (1 GiB), the longest value of Isobath",
            )?,
            zipf_exponent: match &d.zipf_exponent {
                Some(v) => check.holds(
                    "data.zipf_exponent",
                    v,
                    |v| (0.0..=3.0).contains(&v),
                    "is not within 0..=3",
                )?,
                None => 0.0,
            },
            order: d.order,
            point_reads: check.share("operations.point_reads", o.point_reads.as_ref())?,
            scans: check.share("operations.scans", o.scans.as_ref())?,
            updates: check.share("operations.updates", o.updates.as_ref())?,
            inserts: check.share("operations.inserts", o.inserts.as_ref())?,
            scan_records: match &o.scan_records {
                Some(v) => check.at_least_one("operations.scan_records", v)?,
                None => DEFAULT_SCAN_RECORDS.min(record_count),
            },
            clients: check.count("operations.clients", &o.clients)?,
            memory_bytes: check.holds(
                "machine.memory_bytes",
                &m.memory_bytes,
                |v| (MEMORY_BYTES_MIN..=MEMORY_BYTES_MAX).contains(&v),
                "is not within 134217728 (128 MiB, less is too little for any engine)..=1e15",
            )?,
            core_count: check.count("machine.core_count", &m.core_count)?,
            target_operations_per_s: check.optional(
                "target.operations_per_s",
                file.target.operations_per_s.as_ref(),
            )?,
            target_read_p99_us: check
                .optional("target.read_p99_us", file.target.read_p99_us.as_ref())?,
            capacity_bytes: check
                .optional("drive.capacity_bytes", file.drive.capacity_bytes.as_ref())?,
            endurance_bytes: check
                .optional("drive.endurance_bytes", file.drive.endurance_bytes.as_ref())?,
            lifetime_years: check
                .optional("drive.lifetime_years", file.drive.lifetime_years.as_ref())?
                .unwrap_or(DEFAULT_LIFETIME_YEARS),
            durability: file.durability.commits,
        };
        workload.check_sums(&check, &file)?;
        Ok(workload)
    }

    fn check_sums(&self, check: &Check<'_>, file: &File) -> Result<(), WorkloadError> {
        let sum = self.point_reads + self.scans + self.writes();
        if (sum - 1.0).abs() > SHARES_TOLERANCE {
            // As a person would add them up.
            let sum = (sum * 1e6).round() / 1e6;
            return Err(WorkloadError::Invalid {
                line: check.line_of_table("operations"),
                field: "operations",
                value: sum,
                problem: "is the sum of the shares of point_reads, scans, updates and inserts; it must be 1",
            });
        }
        if let Some(records) = &file.operations.scan_records {
            let fits = |records| records <= self.record_count;
            let problem = "is more than data.record_count";
            check.holds("operations.scan_records", records, fits, problem)?;
        }
        if let Some(capacity) = &file.drive.capacity_bytes {
            let fits = |capacity| capacity >= self.data_bytes();
            let problem = "is less than the records themselves need (record_count × (key_bytes + value_bytes))";
            check.holds("drive.capacity_bytes", capacity, fits, problem)?;
        }
        Ok(())
    }
}

/// The longest key that the engine takes, bytes.
pub const KEY_BYTES_MAX: f64 = 1024.0;
/// The longest value that the engine takes, bytes.
pub const VALUE_BYTES_MAX: f64 = 1_073_741_824.0;
const DEFAULT_SCAN_RECORDS: f64 = 100.0;
const DEFAULT_LIFETIME_YEARS: f64 = 5.0;
/// What shares may be off by together, of rounding.
const SHARES_TOLERANCE: f64 = 1e-6;
/// More than any machine or drive has; what follows from it stays a number.
const RECORDS_MAX: f64 = 1e15;
const MEMORY_BYTES_MAX: f64 = 1e15;
const MEMORY_BYTES_MIN: f64 = 128.0 * 1024.0 * 1024.0;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    data: Data,
    operations: Operations,
    machine: Machine,
    #[serde(default)]
    target: Target,
    #[serde(default)]
    drive: Drive,
    #[serde(default)]
    durability: DurabilityTable,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Data {
    record_count: Spanned<f64>,
    key_bytes: Spanned<f64>,
    value_bytes: Spanned<f64>,
    zipf_exponent: Option<Spanned<f64>>,
    order: Option<Order>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Operations {
    point_reads: Option<Spanned<f64>>,
    scans: Option<Spanned<f64>>,
    updates: Option<Spanned<f64>>,
    inserts: Option<Spanned<f64>>,
    scan_records: Option<Spanned<f64>>,
    clients: Spanned<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Machine {
    memory_bytes: Spanned<f64>,
    core_count: Spanned<f64>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Target {
    operations_per_s: Option<Spanned<f64>>,
    read_p99_us: Option<Spanned<f64>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Drive {
    capacity_bytes: Option<Spanned<f64>>,
    endurance_bytes: Option<Spanned<f64>>,
    lifetime_years: Option<Spanned<f64>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct DurabilityTable {
    #[serde(default)]
    commits: Durability,
}

struct Check<'a> {
    text: &'a str,
}

impl Check<'_> {
    fn line_at(&self, offset: usize) -> usize {
        1 + self
            .text
            .bytes()
            .take(offset)
            .filter(|b| *b == b'\n')
            .count()
    }

    /// Where a table begins, whether it has a header, braces or dotted keys.
    fn line_of_table(&self, name: &str) -> usize {
        let begins = |line: &str| {
            let line = line.trim_start_matches(['[', ' ', '\t']);
            let rest = line.strip_prefix(name).map(str::trim_start);
            rest.is_some_and(|rest| rest.starts_with([']', '=', '.']))
        };
        1 + self.text.lines().position(begins).unwrap_or(0)
    }

    fn holds(
        &self,
        field: &'static str,
        value: &Spanned<f64>,
        ok: impl Fn(f64) -> bool,
        problem: &'static str,
    ) -> Result<f64, WorkloadError> {
        let number = *value.get_ref();
        if number.is_finite() && ok(number) {
            return Ok(number);
        }
        Err(WorkloadError::Invalid {
            line: self.line_at(value.span().start),
            field,
            value: number,
            problem,
        })
    }

    fn positive(&self, field: &'static str, value: &Spanned<f64>) -> Result<f64, WorkloadError> {
        self.holds(field, value, |v| v > 0.0, "is not greater than 0")
    }

    fn at_least_one(
        &self,
        field: &'static str,
        value: &Spanned<f64>,
    ) -> Result<f64, WorkloadError> {
        self.holds(field, value, |v| v >= 1.0, "is less than 1")
    }

    fn share(
        &self,
        field: &'static str,
        value: Option<&Spanned<f64>>,
    ) -> Result<f64, WorkloadError> {
        let problem = "is not a share within 0..=1";
        value.map_or(Ok(0.0), |v| {
            self.holds(field, v, |v| (0.0..=1.0).contains(&v), problem)
        })
    }

    fn count(&self, field: &'static str, value: &Spanned<f64>) -> Result<u32, WorkloadError> {
        let whole = |v: f64| v >= 1.0 && v.fract() == 0.0 && v <= COUNT_MAX;
        // In range by the check, so the conversion is exact.
        self.holds(
            field,
            value,
            whole,
            "is not a whole number within 1..=65536",
        )
        .map(|v| v as u32)
    }

    fn optional(
        &self,
        field: &'static str,
        value: Option<&Spanned<f64>>,
    ) -> Result<Option<f64>, WorkloadError> {
        value.map(|v| self.positive(field, v)).transpose()
    }
}

const COUNT_MAX: f64 = 65536.0;

fn syntax(text: &str, error: &toml::de::Error) -> WorkloadError {
    let offset = error.span().map_or(0, |s| s.start);
    let line = Check { text }.line_at(offset);
    let source = text.lines().nth(line - 1).unwrap_or_default();
    let field = source
        .split_once('=')
        .filter(|(key, _)| !key.trim_start().starts_with('#'))
        .map(|(key, _)| key.trim().to_string());
    WorkloadError::Syntax {
        line,
        field,
        message: error.message().to_string(),
    }
}
