//! The seven pitfalls of paper 002 (section 4), and how a run avoided each.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::medium::DriveKind;
use crate::names::named;

named! {
    /// One of the paper's pitfalls, in its order.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Pitfall {
        /// 1: the run ends before throughput and write amplification have stopped changing.
        ShortRun = "short run",
        /// 2: the drive's own write amplification is left out.
        DeviceWrites = "device writes",
        /// 3: the drive's state before the run is unknown or not the declared one.
        DriveState = "drive state",
        /// 4: one dataset size stands for all.
        DatasetSize = "dataset size",
        /// 5: the space that the engine takes is left out.
        Space = "space",
        /// 6: one amount of over-provisioning stands for all.
        OverProvisioning = "over-provisioning",
        /// 7: one drive stands for all.
        DriveType = "drive type",
    }
}

impl Pitfall {
    /// The names of several, for a person.
    #[must_use]
    pub fn names(pitfalls: &[Pitfall]) -> String {
        let names: Vec<&str> = pitfalls.iter().map(|pitfall| pitfall.name()).collect();
        names.join(", ")
    }
}

/// The verdict on one pitfall.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verdict", content = "reason")]
pub enum Verdict {
    /// It was avoided; how.
    Controlled(String),
    /// It could not be found out here; why.
    Unknown(String),
    /// It was committed; what to do.
    Violated(String),
}

impl Verdict {
    /// Whether the pitfall was committed.
    #[must_use]
    pub fn is_violated(&self) -> bool {
        matches!(self, Verdict::Violated(_))
    }

    /// The same, said of one engine among others.
    pub(super) fn about(&self, engine: &str) -> Verdict {
        let said = |reason: &str| format!("{engine}: {reason}");
        match self {
            Verdict::Controlled(how) => Verdict::Controlled(said(how)),
            Verdict::Unknown(why) => Verdict::Unknown(said(why)),
            Verdict::Violated(what) => Verdict::Violated(said(what)),
        }
    }

    /// More is less favourable.
    pub(super) fn severity(&self) -> u8 {
        match self {
            Verdict::Controlled(_) => 0,
            Verdict::Unknown(_) => 1,
            Verdict::Violated(_) => 2,
        }
    }

    /// Whether nothing is known of the pitfall.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self, Verdict::Unknown(_))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Controlled(how) => write!(f, "controlled: {how}"),
            Verdict::Unknown(why) => write!(f, "unknown here: {why}"),
            Verdict::Violated(what) => write!(f, "violated: {what}"),
        }
    }
}

/// What was measured, or the verdict where it was not: that it cannot be here, or was left out.
pub(super) type Known<T> = Result<T, Verdict>;

/// The evidence of the runs of one engine in one configuration.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Evidence {
    /// Whether the runs use a drive at all.
    pub drive: bool,
    /// Whether anything is written.
    pub writes: bool,
    /// Sample from which on all metrics are steady, and how many samples there are, of the shortest
    /// run; none if not.
    pub steady: Option<(usize, usize)>,
    /// Bytes that the host wrote, the load not counted, over the bytes that the engine may write
    /// to.
    pub capacities_written: Known<f64>,
    /// WA-D.
    pub wa_d: Known<f64>,
    /// The verdict on the state of the drive.
    pub state: Verdict,
    /// Dataset sizes that were run, over what `dataset_of` says.
    pub dataset_shares: Vec<f64>,
    /// The total that dataset sizes are shares of: the capacity, or the cache if no capacity is
    /// known.
    pub dataset_of: &'static str,
    /// Largest space amplification.
    pub space: Known<f64>,
    /// Over-provisioned shares that were run; unknown if the drive does not let them be set.
    pub over_provisioning: Known<Vec<f64>>,
    /// Kinds of drives that were run.
    pub drives: Vec<DriveKind>,
    /// Kinds of drives that there are to run on.
    pub drives_available: usize,
}

/// Sizes that a sweep has at least, and how far apart the smallest and the largest are (paper 002
/// sweeps 0.25 to 0.88).
const SIZES_MIN: usize = 3;
const SIZES_SPREAD_MIN: f64 = 2.0;
/// Amounts of over-provisioning that are this close count as one: paper 002 compares none with a
/// quarter of the drive.
const SPARE_STEP: f64 = 0.02;
/// Host writes before which no run on a drive counts as steady (paper 002, section 4.1).
pub const CAPACITIES_MIN: f64 = 3.0;

/// The seven verdicts, in the paper's order.
#[must_use]
pub(super) fn judge(evidence: &Evidence) -> Vec<(Pitfall, Verdict)> {
    let verdict = |pitfall| {
        let no_drive = || Verdict::Controlled("no drive is involved".to_owned());
        match pitfall {
            Pitfall::ShortRun => short_run(evidence),
            Pitfall::DatasetSize => dataset_size(evidence),
            Pitfall::Space => space(evidence),
            _ if !evidence.drive => no_drive(),
            Pitfall::DeviceWrites => device_writes(evidence),
            Pitfall::DriveState => evidence.state.clone(),
            Pitfall::OverProvisioning => over_provisioning(evidence),
            Pitfall::DriveType => drive_type(evidence),
        }
    };
    Pitfall::ALL
        .map(|pitfall| (pitfall, verdict(pitfall)))
        .into()
}

fn short_run(evidence: &Evidence) -> Verdict {
    let Some((from, samples)) = evidence.steady else {
        return Verdict::Violated(
            "the run ended before its metrics were steady; run it longer".to_owned(),
        );
    };
    let steady = format!("steady from sample {from} of {samples} on");
    if !evidence.writes || !evidence.drive {
        return Verdict::Controlled(steady);
    }
    // A rate that is steady for seconds may drift for minutes: a drive that cleans settles only
    // once most of it has been rewritten.
    match &evidence.capacities_written {
        Ok(times) if *times >= CAPACITIES_MIN => Verdict::Controlled(format!(
            "{steady}, and {times:.1} times the capacity was written"
        )),
        Ok(times) => Verdict::Violated(format!(
            "only {times:.1} of {CAPACITIES_MIN} capacities were written; run it longer"
        )),
        Err(verdict) => verdict.clone(),
    }
}

fn device_writes(evidence: &Evidence) -> Verdict {
    match &evidence.wa_d {
        _ if !evidence.writes => Verdict::Controlled("nothing is written".to_owned()),
        Ok(wa_d) => Verdict::Controlled(format!("WA-D at most {wa_d:.2}")),
        Err(verdict) => verdict.clone(),
    }
}

fn dataset_size(evidence: &Evidence) -> Verdict {
    let mut shares = evidence.dataset_shares.clone();
    shares.sort_by(f64::total_cmp);
    shares.dedup_by(|a, b| (*a / *b - 1.0).abs() < 0.05);
    match (shares.first(), shares.last()) {
        (Some(least), Some(most))
            if shares.len() >= SIZES_MIN && most / least >= SIZES_SPREAD_MIN =>
        {
            Verdict::Controlled(format!(
                "{} sizes, {least:.2} to {most:.2} of {}",
                shares.len(),
                evidence.dataset_of
            ))
        }
        _ => Verdict::Violated(format!(
            "{} dataset size(s); sweep at least {SIZES_MIN}, the largest at least {SIZES_SPREAD_MIN} times the smallest",
            shares.len()
        )),
    }
}

fn space(evidence: &Evidence) -> Verdict {
    match &evidence.space {
        Ok(times) => Verdict::Controlled(format!("space amplification at most {times:.2}")),
        Err(verdict) => verdict.clone(),
    }
}

fn over_provisioning(evidence: &Evidence) -> Verdict {
    match &evidence.over_provisioning {
        Ok(shares) => {
            let mut shares = shares.clone();
            shares.sort_by(f64::total_cmp);
            // The first of those that are close stays, so that no chain of them counts as one.
            shares.dedup_by(|next, kept| *next - *kept < SPARE_STEP - 1e-9);
            match shares.len() {
                0 | 1 => Verdict::Violated(
                    "one amount of over-provisioning, though more can be set; run another"
                        .to_owned(),
                ),
                count => Verdict::Controlled(format!("{count} amounts of over-provisioning")),
            }
        }
        Err(verdict) => verdict.clone(),
    }
}

fn drive_type(evidence: &Evidence) -> Verdict {
    let mut drives = evidence.drives.clone();
    drives.sort();
    drives.dedup();
    match drives.len() {
        2.. => Verdict::Controlled(format!("{} kinds of drives", drives.len())),
        _ if evidence.drives_available > 1 => Verdict::Violated(format!(
            "one kind of drive of {}; run another",
            evidence.drives_available
        )),
        _ => Verdict::Unknown("there is one drive here".to_owned()),
    }
}

/// Whether a row with these verdicts may have a headline number.
#[must_use]
pub fn has_headline(verdicts: &[(Pitfall, Verdict)]) -> bool {
    !verdicts.iter().any(|(_, verdict)| verdict.is_violated())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn disk(name: &str) -> DriveKind {
        DriveKind::Disk(Some(name.to_owned()))
    }

    fn left_out() -> Verdict {
        Verdict::Violated("it could be measured and was not".to_owned())
    }

    /// Evidence of a campaign that avoids every pitfall.
    pub(crate) fn controlled() -> Evidence {
        Evidence {
            drive: true,
            writes: true,
            steady: Some((40, 120)),
            capacities_written: Ok(4.0),
            wa_d: Ok(1.7),
            state: Verdict::Controlled("preconditioned".to_owned()),
            dataset_shares: vec![0.25, 0.5, 0.75],
            dataset_of: "the capacity",
            space: Ok(1.4),
            over_provisioning: Ok(vec![0.125, 0.25]),
            drives: vec![disk("a"), disk("b")],
            drives_available: 2,
        }
    }

    fn violated(evidence: &Evidence) -> Vec<Pitfall> {
        let violated = judge(evidence).into_iter().filter(|(_, v)| v.is_violated());
        violated.map(|(pitfall, _)| pitfall).collect()
    }

    #[test]
    fn each_pitfall_is_caught_alone_and_none_where_all_are_avoided() {
        assert_eq!(violated(&controlled()), []);
        assert!(has_headline(&judge(&controlled())));
        type Fault = (Pitfall, fn(&mut Evidence));
        let commit: [Fault; 7] = [
            (Pitfall::ShortRun, |e| e.steady = None),
            (Pitfall::DeviceWrites, |e| e.wa_d = Err(left_out())),
            (Pitfall::DriveState, |e| {
                e.state = Verdict::Violated("used".into())
            }),
            (Pitfall::DatasetSize, |e| e.dataset_shares.truncate(1)),
            (Pitfall::Space, |e| e.space = Err(left_out())),
            (Pitfall::OverProvisioning, |e| {
                e.over_provisioning = Ok(vec![0.2, 0.200_000_1])
            }),
            (Pitfall::DriveType, |e| e.drives.truncate(1)),
        ];
        for (pitfall, commit) in commit {
            let mut evidence = controlled();
            commit(&mut evidence);
            assert_eq!(violated(&evidence), [pitfall]);
            assert!(!has_headline(&judge(&evidence)));
        }
    }

    #[test]
    fn what_cannot_be_known_is_unknown_with_its_reason() {
        let mut evidence = controlled();
        evidence.wa_d = Err(Verdict::Unknown("no SMART".into()));
        evidence.state = Verdict::Unknown("a shared drive".into());
        evidence.over_provisioning = Err(Verdict::Unknown("a file".into()));
        (evidence.drives_available, evidence.drives) = (1, vec![disk("a")]);
        let verdicts = judge(&evidence);
        let unknown = verdicts
            .iter()
            .filter(|(_, v)| matches!(v, Verdict::Unknown(_)));
        assert_eq!(unknown.count(), 4);
        assert!(verdicts[1].1.to_string().contains("unknown here: no SMART"));
        assert!(has_headline(&verdicts));
        // The rule of three capacities counts with WA-D and without.
        for wa_d in [Err(Verdict::Unknown("no SMART".into())), Ok(1.5)] {
            evidence.wa_d = wa_d;
            evidence.capacities_written = Ok(2.9);
            assert_eq!(violated(&evidence), [Pitfall::ShortRun]);
            evidence.capacities_written = Err(Verdict::Unknown("no limit".into()));
            assert_eq!(violated(&evidence), []);
            let short_run = &judge(&evidence)[0].1;
            assert_eq!(*short_run, Verdict::Unknown("no limit".into()));
        }
    }

    #[test]
    fn without_a_drive_only_its_own_pitfalls_are_left() {
        let mut evidence = controlled();
        evidence.drive = false;
        evidence.wa_d = Err(left_out());
        evidence.drives.clear();
        assert_eq!(violated(&evidence), []);
        evidence.dataset_shares = vec![0.5, 0.51, 0.52];
        assert_eq!(violated(&evidence), [Pitfall::DatasetSize]);
    }

    #[test]
    fn rules_hold_at_their_bounds() {
        let with = |change: &dyn Fn(&mut Evidence)| {
            let mut evidence = controlled();
            change(&mut evidence);
            violated(&evidence)
        };
        let capacities = |times| with(&|e| e.capacities_written = Ok(times));
        assert_eq!(capacities(CAPACITIES_MIN), []);
        assert_eq!(capacities(CAPACITIES_MIN - 0.01), [Pitfall::ShortRun]);
        let sizes = |shares: &[f64]| with(&|e| e.dataset_shares = shares.to_vec());
        assert_eq!(sizes(&[0.4, 0.6, 0.8]), []);
        // Near each other, and two that count as one.
        assert_eq!(sizes(&[0.5, 0.6, 0.7]), [Pitfall::DatasetSize]);
        assert_eq!(sizes(&[0.25, 0.255, 0.5]), [Pitfall::DatasetSize]);
        // A run that only reads has no bytes to count.
        let reads = with(&|e| {
            e.writes = false;
            e.capacities_written = Err(left_out());
            e.wa_d = Err(left_out());
        });
        assert_eq!(reads, []);
    }
}
