//! Chooses the runs that support a statement together.
//!
//! Runs are pooled only if nothing but what a sweep varies differs: sizes of data, drives of one
//! class, and their over-provisioning. A row is what one heading has under the same conditions for
//! all engines; a line of it is one engine in one configuration. Every line must avoid a pitfall by
//! itself, since no engine's runs say anything about another one.

use serde::Serialize;
use serde_json::Value;

use super::medium::{Medium, MediumClass};
use super::record::{LeftOut, RunRecord};
use super::row::Setting;
use super::verdict::{Evidence, Pitfall, Verdict, judge};
use crate::engine::{Callers, DriveState, EngineKind, SpaceConfig, Tuning};

/// A setting without what may differ between runs that are pooled; equal in all of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Configuration {
    medium: MediumClass,
    setting: Setting,
}

impl Configuration {
    /// Of one engine.
    fn of(record: &RunRecord) -> Configuration {
        let mut setting = record.setting.clone();
        let medium = setting.medium.class();
        setting.medium = Medium::Memory;
        (setting.records, setting.seed) = (0, 0);
        (setting.warm_up_s, setting.duration_s) = (0.0, 0.0);
        if record.search.is_some() {
            // The best for each run are sought, so they differ.
            (setting.workers, setting.clients) = (0, 0);
            (setting.tuning.background_jobs, setting.tuning.write_share) = (None, None);
        }
        Configuration { medium, setting }
    }

    /// Of all engines together: without what each has of its own.
    fn shared(record: &RunRecord) -> Configuration {
        let mut configuration = Configuration::of(record);
        let setting = &mut configuration.setting;
        (setting.kind, setting.engine) = (EngineKind::Null, String::new());
        (setting.callers, setting.clients, setting.workers) = (Callers::Threads, 0, 0);
        setting.tuning = Tuning::default();
        setting.space = SpaceConfig {
            log_bytes: setting.space.log_bytes.filter(|bytes| *bytes == 0),
            buffered_ms: setting.space.buffered_ms,
            ..SpaceConfig::default()
        };
        configuration
    }

    /// Whether runs without an engine stand beside those of this row: they may have another medium.
    fn stands_beside(&self, row: &Configuration) -> bool {
        self.setting == row.setting
    }
}

/// Names and values of settings that differ between them, one text for each.
fn differences(all: &[Configuration]) -> Vec<String> {
    let texts: Vec<Vec<(String, String)>> = all
        .iter()
        .map(|configuration| {
            let mut texts = Vec::new();
            let mut value = serde_json::to_value(configuration).unwrap_or_default();
            // Its class stands beside it.
            if let Some(cleared) = value.pointer_mut("/setting/medium") {
                *cleared = Value::Null;
            }
            flatten("", &value, &mut texts);
            texts
        })
        .collect();
    let is_in_all = |text: &(String, String)| texts.iter().all(|one| one.contains(text));
    let differing = |one: &Vec<(String, String)>| {
        let own = one.iter().filter(|text| !is_in_all(text));
        let own: Vec<String> = own.map(|(name, value)| format!("{name} {value}")).collect();
        own.join(", ")
    };
    texts.iter().map(differing).collect()
}

/// The leaves of a value, each with the name that it has in its own table.
fn flatten(name: &str, value: &Value, texts: &mut Vec<(String, String)>) {
    match value {
        // Bound: settings are three tables deep.
        Value::Object(fields) => {
            for (field, value) in fields {
                let is_kind = field == "kind" && !name.is_empty();
                flatten(if is_kind { name } else { field }, value, texts);
            }
        }
        Value::String(text) => texts.push((name.to_owned(), text.clone())),
        other => texts.push((name.to_owned(), other.to_string())),
    }
}

/// Records that belong together, and what they are called beside others.
#[derive(Debug, Clone)]
pub struct Group {
    /// Heading or engine; with what makes it different if there are several of it.
    pub name: String,
    /// Its records, in their order.
    pub records: Vec<RunRecord>,
}

/// Groups by a name and a configuration, in the order of their first records.
fn grouped(
    records: impl Iterator<Item = RunRecord>,
    name: impl Fn(&RunRecord) -> String,
    configuration: impl Fn(&RunRecord) -> Configuration,
) -> Vec<(Configuration, Group)> {
    let mut groups: Vec<(Configuration, Group)> = Vec::new();
    for record in records {
        let (name, own) = (name(&record), configuration(&record));
        let is_own =
            |(other, group): &&mut (Configuration, Group)| group.name == name && *other == own;
        match groups.iter_mut().find(is_own) {
            Some((_, group)) => group.records.push(record),
            None => groups.push((
                own,
                Group {
                    name,
                    records: vec![record],
                },
            )),
        }
    }
    groups
}

/// Tells those of one name apart by what they differ in.
fn named_apart(groups: Vec<(Configuration, Group)>) -> Vec<Group> {
    let names: Vec<String> = groups.iter().map(|(_, group)| group.name.clone()).collect();
    let apart = |at: usize| {
        let same: Vec<usize> = (0..names.len())
            .filter(|other| names[*other] == names[at])
            .collect();
        let all: Vec<Configuration> = same.iter().map(|at| groups[*at].0.clone()).collect();
        let place = same.iter().position(|other| *other == at)?;
        let text = differences(&all).swap_remove(place);
        (!text.is_empty()).then(|| format!("{}, {text}", names[at]))
    };
    let apart: Vec<Option<String>> = (0..names.len()).map(apart).collect();
    let groups = groups.into_iter().zip(apart);
    groups
        .map(|((_, group), name)| Group {
            name: name.unwrap_or(group.name),
            records: group.records,
        })
        .collect()
}

/// The rows of a campaign: of each heading, the runs under the same conditions. Runs without an
/// engine stand in every row whose conditions they have, whatever their medium.
#[must_use]
pub fn rows(records: &[RunRecord]) -> Vec<Group> {
    let name = |record: &RunRecord| record.heading().to_owned();
    let engines = records
        .iter()
        .filter(|record| !record.is_baseline())
        .cloned();
    let mut rows = grouped(engines, name, Configuration::shared);
    let mut alone = Vec::new();
    for record in records.iter().filter(|record| record.is_baseline()) {
        let own = Configuration::shared(record);
        let mut is_alone = true;
        for (row, group) in &mut rows {
            if group.name == record.heading() && own.stands_beside(row) {
                group.records.push(record.clone());
                is_alone = false;
            }
        }
        if is_alone {
            alone.push(record.clone());
        }
    }
    rows.extend(grouped(alone.into_iter(), name, Configuration::shared));
    let first = |group: &Group| {
        let is_of = |record: &RunRecord| group.records.contains(record);
        records.iter().position(is_of)
    };
    rows.sort_by_key(|(_, group)| first(group));
    named_apart(rows)
}

/// The lines of a row: each engine in each of its configurations.
#[must_use]
pub fn lines(row: &[RunRecord]) -> Vec<Group> {
    named_apart(grouped(
        row.iter().cloned(),
        RunRecord::side,
        Configuration::of,
    ))
}

/// The verdicts on runs that stand behind one statement: of each pitfall the least favourable of
/// all lines. Runs without an engine say nothing about engines, and are left out if there are
/// others.
#[must_use]
pub fn verdicts(records: &[RunRecord]) -> Vec<(Pitfall, Verdict)> {
    let engines = records.iter().filter(|record| !record.is_baseline());
    let engines: Vec<RunRecord> = engines.cloned().collect();
    let lines = lines(match engines.is_empty() {
        true => records,
        false => &engines,
    });
    let judged: Vec<Vec<(Pitfall, Verdict)>> = lines
        .iter()
        .map(|line| judge(&evidence(&line.records)))
        .collect();
    let worst = |(at, pitfall): (usize, Pitfall)| {
        let of_lines = judged
            .iter()
            .zip(&lines)
            .map(|(line, group)| (&line[at].1, group));
        // The first of the worst.
        let worst = of_lines.reduce(|worst, next| match next.0.severity() > worst.0.severity() {
            true => next,
            false => worst,
        });
        let verdict = match worst {
            None => Verdict::Unknown("there is no run".to_owned()),
            Some((verdict, _)) if lines.len() == 1 => verdict.clone(),
            Some((verdict, group)) => verdict.about(&group.name),
        };
        (pitfall, verdict)
    };
    Pitfall::ALL.into_iter().enumerate().map(worst).collect()
}

/// The evidence of all runs of one line: the least favourable of each kind.
fn evidence(records: &[RunRecord]) -> Evidence {
    let simulated = records.iter().all(RunRecord::is_modelled);
    let steady = records
        .iter()
        .map(|r| Some((r.steady_from?, r.series.samples.len())));
    let steady: Option<Vec<_>> = steady.collect();
    let unknown = |why: &str| Verdict::Unknown(why.to_owned());
    let violated = |what: &str| Verdict::Violated(what.to_owned());
    let known = |of: fn(&RunRecord) -> Option<f64>, worse: fn(f64, f64) -> f64, why: &str| {
        let values: Option<Vec<f64>> = records.iter().map(of).collect();
        let worst = values.and_then(|values| values.into_iter().reduce(worse));
        worst.ok_or_else(|| unknown(why))
    };
    let wa_d_unknown = records.iter().find_map(|r| r.wa_d_unknown.as_deref());
    let space = records.iter().filter_map(|r| r.space_amplification_max);
    let states = records
        .iter()
        .map(|r| Some(r.setting.medium.modelled()?.state));
    let states: Option<Vec<DriveState>> = states.collect();
    let leaves_out = |of: fn(&LeftOut) -> bool| records.iter().any(|r| of(&r.left_out));
    let (dataset_shares, dataset_of) = dataset_sizes(records);
    let kinds = records.iter().map(|r| &r.setting.medium);
    Evidence {
        drive: records.iter().any(|r| r.setting.medium.is_drive()),
        writes: records.iter().any(|r| r.writes),
        steady: steady.and_then(|all| all.into_iter().max()),
        capacities_written: known(
            |r| r.capacities_written,
            f64::min,
            "the engine may write anywhere on the file system, so its capacity is not known",
        ),
        wa_d: match leaves_out(|left| left.flash_writes) {
            true => Err(violated(
                "the drive counts flash writes and they were left out",
            )),
            false => known(
                |r| r.wa_d,
                f64::max,
                wa_d_unknown.unwrap_or("the drive does not count flash writes"),
            ),
        },
        state: match states {
            Some(states) if states.contains(&DriveState::Used) => violated(
                "a run found the drive as other programs had left it; trim or precondition it before each",
            ),
            Some(states) => {
                let mut names: Vec<&str> = states.into_iter().map(DriveState::name).collect();
                names.sort_unstable();
                names.dedup();
                Verdict::Controlled(names.join(", "))
            }
            None => unknown("the file system's drive cannot be brought into a state from here"),
        },
        dataset_shares,
        dataset_of,
        space: match space.fold(0.0, f64::max) {
            _ if leaves_out(|left| left.space) => {
                Err(violated("the space that the engine takes was left out"))
            }
            most if most > 0.0 => Ok(most),
            _ => Err(unknown("the engine has no files whose size could be read")),
        },
        over_provisioning: match simulated {
            true => Ok(kinds
                .clone()
                .filter_map(Medium::over_provisioning)
                .collect()),
            false => Err(unknown(
                "a file system places files where it likes, so no part of the drive can be kept free",
            )),
        },
        drives: kinds.filter_map(Medium::drive_kind).collect(),
        drives_available: if simulated { SIMULATED_KINDS } else { 1 },
    }
}

/// Kinds of drives that any run of Isobath can be made on: the simulated ones.
const SIMULATED_KINDS: usize = 2;

/// The sizes of the runs' data as shares, and of what: of the capacity where it is known of every
/// run, else of the cache, which all runs of a line have alike.
fn dataset_sizes(records: &[RunRecord]) -> (Vec<f64>, &'static str) {
    let of = |record: &RunRecord, whole: u64| record.data_bytes as f64 / whole.max(1) as f64;
    let shares = records
        .iter()
        .map(|r| Some(of(r, r.setting.medium.capacity_bytes()?)));
    match shares.collect() {
        Some(shares) => (shares, "the capacity"),
        None => {
            let shares = records.iter().map(|r| of(r, r.setting.pool_bytes));
            (shares.collect(), "the cache")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::half_rate::tests::{of_engine, ran};
    use super::super::summary::tests::{both, file};
    use super::super::{needs, summarize};
    use super::*;

    fn violated(records: &[RunRecord]) -> Vec<Pitfall> {
        let all = verdicts(records).into_iter();
        let violated = all.filter(|(_, verdict)| verdict.is_violated());
        violated.map(|(pitfall, _)| pitfall).collect()
    }

    /// Runs of Isobath with these sizes, long enough.
    fn sizes(sizes: &[f64]) -> Vec<RunRecord> {
        let mut records = both(sizes);
        records.retain(|record| record.setting.kind == EngineKind::Isobath);
        for record in &mut records {
            record.steady_from = Some(0);
        }
        records
    }

    #[test]
    fn sizes_of_several_engines_are_none_of_any() {
        let three = sizes(&[0.25, 0.5, 1.0]);
        assert_eq!(violated(&three), []);
        let kinds = [EngineKind::Isobath, EngineKind::Redb, EngineKind::Fjall];
        let distinct =
            |record: &RunRecord| three.iter().position(|r| r.data_bytes == record.data_bytes);
        let mut first: Vec<usize> = three.iter().filter_map(distinct).collect();
        first.sort_unstable();
        first.dedup();
        let each: Vec<RunRecord> = three
            .iter()
            .map(|record| {
                let at = first
                    .iter()
                    .position(|at| Some(*at) == distinct(record))
                    .unwrap();
                of_engine(record, kinds[at], kinds[at].name())
            })
            .collect();
        assert_eq!(violated(&each), [Pitfall::DatasetSize]);
        let row = &summarize(&each)[0];
        assert_eq!((row.sizes_count, row.engines.len()), (1, 3));
        assert!(
            needs(&each, 1e12, 1e6)
                .iter()
                .all(|need| need.drives.is_none())
        );
        assert!(
            needs(&three, 1e12, 1e6)
                .iter()
                .all(|need| need.drives.is_some())
        );
    }

    #[test]
    fn runs_under_other_conditions_are_other_rows() {
        let records = sizes(&[0.25, 0.5, 1.0]);
        let change: [fn(&mut RunRecord); 5] = [
            |record| record.setting.pool_bytes *= 2,
            |record| record.setting.space.buffered_ms = Some(10),
            |record| record.setting.space.log_bytes = Some(0),
            |record| record.setting.medium = file("xfs"),
            |record| record.setting.value_bytes += 1,
        ];
        let most = records.iter().map(|r| r.data_bytes).max();
        for change in change {
            let mut changed = records.clone();
            let largest = changed.iter_mut().filter(|r| Some(r.data_bytes) == most);
            largest.for_each(change);
            let rows = summarize(&changed);
            assert_eq!(rows.len(), 2);
            assert_ne!(rows[0].row, rows[1].row);
            for row in &rows {
                assert!(row.row.starts_with("lookup-in, "), "{}", row.row);
                assert_eq!(row.violated, [Pitfall::DatasetSize]);
            }
            assert_eq!(violated(&changed), [Pitfall::DatasetSize]);
        }
    }

    #[test]
    fn configurations_of_an_engine_are_lines_of_a_row() {
        let mut records = sizes(&[0.25, 0.5, 1.0]);
        let most = records.iter().map(|r| r.data_bytes).max();
        for record in records.iter_mut().filter(|r| Some(r.data_bytes) == most) {
            record.setting.clients = 77;
        }
        let rows = summarize(&records);
        assert_eq!((rows.len(), rows[0].sizes_count), (1, 1));
        let names: Vec<&str> = rows[0].engines.iter().map(|e| e.engine.as_str()).collect();
        assert!(names.contains(&"isobath 1, clients 77"), "{names:?}");
        assert_eq!(rows[0].violated, [Pitfall::DatasetSize]);
        let said = verdicts(&records)[3].1.to_string();
        assert!(said.starts_with("violated: isobath 1, clients "), "{said}");
        // A search's choices may differ, since each run is searched for.
        let (_, trials) = ran(&[1.0], 1);
        let search = crate::bench::Search {
            seed: 1,
            trial_s: 1.0,
            trials: Vec::new(),
            best: trials.len(),
        };
        for record in &mut records {
            record.search = Some(search.clone());
        }
        assert_eq!(violated(&records), []);
    }

    #[test]
    fn a_file_system_in_memory_is_no_drive() {
        let mut records = sizes(&[0.25, 0.5, 1.0]);
        for record in &mut records {
            record.setting.medium = file("ext4");
        }
        let drive = verdicts(&records);
        assert!(drive[6].1.is_unknown(), "{}", drive[6].1);
        for record in &mut records {
            record.setting.medium = Medium::MemoryFiles {
                name: "tmpfs".to_owned(),
            };
        }
        assert_eq!(
            verdicts(&records)[6].1.to_string(),
            "controlled: no drive is involved"
        );
    }

    #[test]
    fn runs_together_show_the_worst_of_each() {
        let mut records = sizes(&[0.25, 0.5, 1.0]);
        for (at, record) in records.iter_mut().enumerate() {
            record.wa_d = Some(1.0 + at as f64);
            record.capacities_written = Some(4.0 + at as f64);
        }
        let shown = evidence(&records);
        assert_eq!(shown.wa_d, Ok(records.len() as f64));
        assert_eq!(shown.capacities_written, Ok(4.0));
    }
}
