//! Commits that wait for the drive, in groups.

use serde::{Deserialize, Serialize};

use crate::workload::Workload;

/// What synced commits take beside the flush that their group shares.
///
/// While one group is flushed, the next one gathers; so of `n` clients half share a flush, and each
/// waits for two. A commit then takes `2 (flush + wake) + n commit`, which is what both engines
/// were measured at from 2 to 128 clients (docs/benchmarks.md).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SyncedCosts {
    /// From the end of a flush until those that waited for it run again, µs.
    pub wake_us: f64,
    /// Each commit of a group, µs: they go one after another.
    pub commit_us: f64,
}

impl SyncedCosts {
    /// From commits per second of few and of many clients, on a drive on which a flush takes so
    /// many µs.
    #[must_use]
    pub fn measured(flush_us: f64, few: (u32, f64), many: (u32, f64)) -> SyncedCosts {
        let round_us = |(clients, per_s): (u32, f64)| f64::from(clients) * 1e6 / per_s;
        let more_clients = (f64::from(many.0) - f64::from(few.0)).max(1.0);
        let commit_us = ((round_us(many) - round_us(few)) / more_clients).max(0.0);
        let wake_us = 0.5 * (round_us(few) - f64::from(few.0) * commit_us) - flush_us;
        SyncedCosts {
            wake_us: wake_us.max(0.0),
            commit_us,
        }
    }

    /// Time of one of the commits of a group that nothing overlaps, µs.
    pub(super) fn serial_us(&self, flush_us: f64, group: f64) -> f64 {
        (flush_us + self.wake_us) / group + self.commit_us
    }
}

/// Commits that share a flush: all that wait for one. Half of the writers come while the last flush
/// is under way.
pub(super) fn group_of(workload: &Workload) -> f64 {
    (f64::from(workload.clients) * workload.writes() / 2.0).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_measured_rates_give_both_costs() {
        // 2 (100 + 40) + 8 n µs.
        let per_s = |n: u32| f64::from(n) * 1e6 / (280.0 + 8.0 * f64::from(n));
        let costs = SyncedCosts::measured(100.0, (2, per_s(2)), (64, per_s(64)));
        assert!((costs.wake_us - 40.0).abs() < 1e-9, "{costs:?}");
        assert!((costs.commit_us - 8.0).abs() < 1e-9, "{costs:?}");
        let rate = 1e6 / costs.serial_us(100.0, 64.0);
        assert!((rate / per_s(128) - 1.0).abs() < 1e-9, "{rate}");
        // A drive that was faster than its flush says costs nothing, not less.
        let none = SyncedCosts::measured(500.0, (2, per_s(2)), (64, per_s(2) * 32.0));
        assert_eq!((none.wake_us, none.commit_us), (0.0, 0.0));
    }
}
