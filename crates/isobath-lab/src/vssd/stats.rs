//! Counters as SMART has them, and the write frequency of logical pages (paper 002, Fig. 4).

use isobath_flash::ftl::Smart;
use serde::{Deserialize, Serialize};

use super::state::DeclaredState;

/// The statistics of a drive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DriveStats {
    /// Bytes that the host sees.
    pub capacity_bytes: u64,
    /// Share of the flash that the host does not see.
    pub over_provisioning: f64,
    /// Bytes of a superblock, the unit of erasure.
    pub superblock_bytes: u32,
    /// Number of superblocks.
    pub superblocks: u64,
    /// The cleaning policy.
    pub policy: String,
    /// Bytes of the write cache.
    pub cache_bytes: u64,
    /// The state that it was brought into last.
    pub declared: DeclaredState,
    /// Mounted since then.
    pub used: bool,
    /// Logical pages of 4 KiB that hold data.
    pub valid_pages: u64,
    /// Logical pages.
    pub pages: u64,
    /// Since the drive was made.
    pub life: Smart,
    /// Since the mark: the drive's last state, or `stats --mark`.
    pub since_mark: Smart,
    /// WA-D over the drive's life.
    pub wa_d_life: Option<f64>,
    /// WA-D since the mark.
    pub wa_d: Option<f64>,
    /// Fewest erases of a superblock.
    pub wear_min: u32,
    /// Most erases of a superblock.
    pub wear_max: u32,
    /// Share of logical pages that the host wrote since the mark.
    pub written_share: f64,
    /// Times that the process which served the drive was killed.
    pub kills: u64,
    /// The process that serves it, where it is mounted.
    pub pid: Option<u32>,
    /// The timing model that paces completions. Rates with one are modelled; without one they mean
    /// nothing.
    pub profile: Option<String>,
    /// Time that the timing model has paced, ns.
    pub modelled_ns: u64,
    /// I/Os whose completion the timing model paced.
    pub paced: u64,
    /// Of these, completions that this machine delivered over 100 µs later than the model says.
    pub late: u64,
}

/// The columns of `history.csv`, one line per second in which something changed. Bytes are those of
/// the drive's life.
#[cfg(feature = "vssd")]
pub(super) const HISTORY_HEADER: &str = "unix_s,host_written_bytes,flash_written_bytes,flash_relocated_bytes,\
     host_trimmed_bytes,host_read_bytes,erases,valid_pages,wa_d_since_mark,wa_d_of_line\n";

#[cfg(feature = "vssd")]
impl DriveStats {
    /// A line of `history.csv`; `before` is what the line before was made of.
    pub(super) fn history_line(&self, before: &DriveStats, unix: std::time::Duration) -> String {
        let ratio = |ratio: Option<f64>| ratio.map(|r| format!("{r:.4}")).unwrap_or_default();
        let life = &self.life;
        format!(
            "{:.1},{},{},{},{},{},{},{},{},{}\n",
            unix.as_secs_f64(),
            life.host_written_bytes,
            life.flash_written_bytes,
            life.flash_relocated_bytes,
            life.host_trimmed_bytes,
            life.host_read_bytes,
            life.erases,
            self.valid_pages,
            ratio(self.wa_d),
            ratio(life.since(&before.life).wa_d()),
        )
    }
}

/// The write frequency of logical pages as a CDF, like paper 002's Fig. 4: of the pages, sorted by
/// how often they were written, the first share of them, and the share of all writes that they got.
/// CSV with a header and at most `points` lines behind it, beginning at 0 and ending at 1.
pub fn write_frequency_csv(writes: &[u32], points: usize) -> String {
    let mut sorted = writes.to_vec();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    let total = sorted.iter().map(|&n| u64::from(n)).sum::<u64>();
    let steps = points.saturating_sub(1).clamp(1, sorted.len().max(1));
    let mut out = String::from("lba_share,write_share\n0,0\n");
    let (mut taken, mut sum) = (0, 0u64);
    for step in 1..=steps {
        let until = sorted.len() * step / steps;
        sum += sorted[taken..until]
            .iter()
            .map(|&n| u64::from(n))
            .sum::<u64>();
        taken = until;
        let lba_share = taken as f64 / sorted.len().max(1) as f64;
        let write_share = sum as f64 / total.max(1) as f64;
        out += &format!("{lba_share:.6},{write_share:.6}\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_write_frequency_of_known_writes() {
        // Two pages get 4 writes each, two get 1, four none.
        let csv = write_frequency_csv(&[0, 4, 1, 0, 4, 0, 1, 0], 1000);
        let expected = "lba_share,write_share\n0,0\n0.125000,0.400000\n0.250000,0.800000\n0.375000,0.900000\n\
                        0.500000,1.000000\n0.625000,1.000000\n0.750000,1.000000\n0.875000,1.000000\n1.000000,1.000000\n";
        assert_eq!(csv, expected);
        let coarse = write_frequency_csv(&[0, 4, 1, 0, 4, 0, 1, 0], 3);
        assert_eq!(
            coarse,
            "lba_share,write_share\n0,0\n0.500000,1.000000\n1.000000,1.000000\n"
        );
        assert_eq!(
            write_frequency_csv(&[0, 0], 9).lines().last(),
            Some("1.000000,0.000000")
        );
    }
}
