//! The named workloads: each is written once and runs on every engine.

use isobath_model::workload::Durability;
use serde::{Deserialize, Serialize};

use super::choice::Choice;
use super::keys::{KeyFormat, KeyOrder};
use super::tpcc;
use super::workload::{Mix, Operation};
use crate::LabError;
use crate::engine::Schema;

/// How many records a scan reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScanLength {
    /// Always so many.
    Fixed(usize),
    /// Uniform from one to so many.
    UpTo(usize),
}

/// The clients' operations on the records of a benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// A description, in a sentence.
    pub about: String,
    /// Keys.
    #[serde(default)]
    pub key_format: KeyFormat,
    /// Order of the keys of successive records.
    #[serde(default)]
    pub key_order: KeyOrder,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Operations and their weights.
    pub mix: Mix,
    /// The law by which records are chosen.
    #[serde(default)]
    pub choice: Choice,
    /// Keys per get-many.
    #[serde(default = "default_batch")]
    pub batch: usize,
    /// Records per scan.
    #[serde(default)]
    pub scan: ScanLength,
    /// Nothing is loaded before: the clients insert the records, and the run ends with the last of
    /// them.
    #[serde(default)]
    pub fill: bool,
    /// The TPC-C-derived workload at this scale; a record is a warehouse then, with all that
    /// belongs to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpcc: Option<tpcc::Scale>,
}

impl Default for ScanLength {
    fn default() -> ScanLength {
        ScanLength::Fixed(100)
    }
}

fn default_batch() -> usize {
    64
}

/// Milliseconds that commits may reach the drive late if they are buffered.
pub const BUFFERED_MS: u32 = 10;

/// A workload file's further settings of a run; options of the command line come before it.
#[derive(Debug, Clone, PartialEq)]
pub struct FileWorkload {
    /// The clients' work.
    pub workload: Workload,
    /// Records that are loaded.
    pub records: u64,
    /// Clients at the same time.
    pub clients: usize,
    /// Memory of the engine: its pool or cache.
    pub memory_bytes: u64,
    /// Milliseconds that commits may reach the drive late, as [`crate::SpaceConfig::buffered_ms`]
    /// says them.
    pub buffered_ms: Option<u32>,
}

/// Workloads but those derived from TPC-C.
const PLAIN: &str = include_str!("../../campaigns/workloads.toml");

#[derive(Deserialize)]
struct Plain {
    workload: Vec<Workload>,
}

const TPCC: [(&str, &str, tpcc::Scale); 2] = [
    (
        "tpcc",
        "TPC-C-derived, five transactions over nine tables; a record is a warehouse",
        tpcc::Scale::FULL,
    ),
    (
        "tpcc-small",
        "the same with a hundredth of the items, customers and orders, to try it out",
        tpcc::Scale::SMALL,
    ),
];

impl Workload {
    /// Every named workload.
    #[must_use]
    pub fn all() -> Vec<Workload> {
        #[expect(clippy::expect_used, reason = "a constant, which a test reads")]
        let Plain { workload } = toml::from_str(PLAIN).expect("named workloads");
        let tpcc = TPCC.iter().map(Workload::of_tpcc);
        workload.into_iter().chain(tpcc).collect()
    }

    /// The workload of this name.
    ///
    /// # Errors
    /// [`LabError::Request`] that lists the names there are.
    pub fn named(name: &str) -> Result<Workload, LabError> {
        let all = Workload::all();
        let names: Vec<String> = all.iter().map(|workload| workload.name.clone()).collect();
        let found = all.into_iter().find(|workload| workload.name == name);
        found.ok_or_else(|| {
            LabError::Request(format!(
                "`{name}` is no workload; there are {}, and workload files that end in .toml",
                names.join(", ")
            ))
        })
    }

    fn of_tpcc(&(name, about, scale): &(&str, &str, tpcc::Scale)) -> Workload {
        Workload {
            name: name.to_owned(),
            about: about.to_owned(),
            // Keys and values are of many sizes; these two only add up to a warehouse.
            key_format: KeyFormat::Binary { bytes: 8 },
            key_order: KeyOrder::Sequential,
            value_bytes: scale.warehouse_bytes() - 8,
            mix: Mix::of(&tpcc::MIX),
            choice: Choice::Uniform,
            batch: 1,
            scan: ScanLength::Fixed(1),
            fill: false,
            tpcc: Some(scale),
        }
    }

    /// The tables that the workload needs, with so many records.
    pub(super) fn schema(&self, records: u64) -> Schema {
        Schema {
            data_bytes: records.saturating_mul(self.record_bytes()),
            tables: match self.tpcc {
                Some(_) => &tpcc::Table::NAMES,
                None => Schema::default().tables,
            },
        }
    }

    /// Random lookups of small records.
    #[must_use]
    pub fn lookup() -> Workload {
        Workload::all().swap_remove(0)
    }

    /// The workload that a file for `isobath advise` describes, and what else it says of a run.
    ///
    /// # Errors
    /// [`LabError::Request`] if the file or its key size cannot be used; the advisor's own
    /// messages name line and field.
    pub fn from_toml(name: &str, text: &str) -> Result<FileWorkload, LabError> {
        let file = isobath_model::workload::Workload::from_toml(text)
            .map_err(|error| LabError::Request(format!("{name}: {error}")))?;
        let key_bytes = file.key_bytes.round() as usize;
        if !(8..=crate::engine::KEY_BYTES_MAX).contains(&key_bytes) {
            return Err(LabError::Request(format!(
                "{name}: keys of the benchmark have 8 to {} bytes, not {key_bytes}",
                crate::engine::KEY_BYTES_MAX
            )));
        }
        let weight = |share: f64| (share * 10_000.0).round() as u32;
        let workload = Workload {
            name: name.to_owned(),
            about: "a workload file".to_owned(),
            key_format: KeyFormat::Binary { bytes: key_bytes },
            key_order: KeyOrder::Hashed,
            value_bytes: file.value_bytes.round() as usize,
            mix: Mix::of(&[
                (Operation::Get, weight(file.point_reads)),
                (Operation::Scan, weight(file.scans)),
                (Operation::Update, weight(file.updates)),
                (Operation::Insert, weight(file.inserts)),
            ]),
            choice: match file.zipf_exponent {
                0.0 => Choice::Uniform,
                exponent => Choice::Zipf(exponent),
            },
            batch: default_batch(),
            scan: ScanLength::Fixed((file.scan_records.round() as usize).max(1)),
            fill: false,
            tpcc: None,
        };
        Ok(FileWorkload {
            workload,
            records: file.record_count.round() as u64,
            clients: file.clients as usize,
            memory_bytes: file.memory_bytes as u64,
            buffered_ms: match file.durability {
                Durability::Synced => None,
                Durability::Buffered => Some(BUFFERED_MS),
                Durability::None => Some(u32::MAX),
            },
        })
    }

    /// Bytes of one record.
    #[must_use]
    pub fn record_bytes(&self) -> u64 {
        (self.key_format.bytes() + self.value_bytes) as u64
    }

    /// Says why the workload cannot run over so many records.
    pub(super) fn check(&self, records: u64) -> Result<(), LabError> {
        let request = |text: &str| Err(LabError::Request(text.to_owned()));
        let (ScanLength::Fixed(scan) | ScanLength::UpTo(scan)) = self.scan;
        if records == 0 || self.batch == 0 || scan == 0 {
            return request("records, keys per batch and records per scan must be at least 1");
        }
        match self.choice {
            _ if self.tpcc.is_some() && records > tpcc::WAREHOUSES_MAX => {
                request("there can be at most 65535 warehouses")
            }
            Choice::Zipf(s) if !(0.0..=10.0).contains(&s) => {
                request("the Zipf exponent must be between 0 and 10")
            }
            Choice::Zipf(_) if records > u64::from(u32::MAX) => {
                request("a Zipf law can rank at most 4294967295 records")
            }
            Choice::ScrambledZipf(s) | Choice::Latest(s) if !(0.0..1.0).contains(&s) => {
                request("the exponent of YCSB's Zipf law must be at least 0 and below 1")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_to_its_workload() {
        for workload in Workload::all() {
            assert_eq!(Workload::named(&workload.name).unwrap(), workload);
            workload.check(1000).unwrap();
            assert!(workload.about.len() < 110, "{}", workload.name);
        }
        let error = Workload::named("fly").unwrap_err().to_string();
        assert!(
            error.contains("ycsb-f") && error.contains(".toml"),
            "{error}"
        );
    }

    #[test]
    fn standard_parameters() {
        let d = Workload::named("ycsb-d").unwrap();
        assert_eq!(d.choice, Choice::Latest(0.99));
        assert_eq!(d.mix.to_string(), "get:95,insert:5");
        assert_eq!(d.record_bytes(), 1024);
        let e = Workload::named("ycsb-e").unwrap();
        assert_eq!(e.scan, ScanLength::UpTo(100));
        assert_eq!(
            Workload::named("ycsb-f").unwrap().mix.to_string(),
            "get:50,rmw:50"
        );
        let seek = Workload::named("seek-random").unwrap();
        assert_eq!(
            (seek.scan, seek.choice),
            (ScanLength::Fixed(128), Choice::Uniform)
        );
        let update = Workload::named("update").unwrap();
        assert_eq!((update.key_format.bytes(), update.value_bytes), (16, 4000));
        assert!(Workload::named("fill-unique-random").unwrap().fill);
    }

    #[test]
    fn the_advisors_files_are_workloads() {
        let text = include_str!("../../../../docs/workloads/read-mostly.toml");
        let file = Workload::from_toml("read-mostly.toml", text).unwrap();
        let FileWorkload {
            workload, clients, ..
        } = file;
        assert_eq!((file.records, clients), (64_000_000, 128));
        assert_eq!((file.memory_bytes, file.buffered_ms), (4 << 30, Some(10)));
        assert_eq!(workload.mix.to_string(), "get:9400,scan:100,update:500");
        assert_eq!(workload.choice, Choice::Zipf(0.8));
        assert_eq!(workload.scan, ScanLength::Fixed(50));
        let wrong = text.replace("key_bytes = 16", "key_bytes = 4");
        let error = Workload::from_toml("w", &wrong).unwrap_err().to_string();
        assert!(error.contains("8 to 48 bytes"), "{error}");
    }
}
