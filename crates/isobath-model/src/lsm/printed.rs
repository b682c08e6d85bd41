//! Equations 9–12 as printed, with costs in µs. They rank layouts over k; they choose F badly.

/// s(k), β(k), t(k), α(k) at one k.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AccessCosts {
    /// t(k): setup of a random read, µs.
    pub read_setup_us: f64,
    /// α(k): transfer of a page read, µs/page.
    pub read_transfer_us: f64,
    /// s(k): setup of a random write, µs.
    pub write_setup_us: f64,
    /// β(k): transfer of a page written, µs/page.
    pub write_transfer_us: f64,
}

/// The store of section 5.1.2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrintedLsm {
    /// `N`: bytes of records.
    pub data_bytes: f64,
    /// `T`: bytes per SST file.
    pub file_bytes: f64,
    /// `C`: files in L0, and in L1.
    pub l0_files: f64,
    /// `B'`: bytes per data block.
    pub block_bytes: f64,
    /// `B`: bytes per device page.
    pub page_bytes: f64,
    /// Bytes per record; turns `T` into the records per file that equation 9 divides by.
    pub record_bytes: f64,
}

impl PrintedLsm {
    /// log_F(N / (C·T)): levels beyond L0, not rounded.
    pub fn level_count(&self, fanout: f64) -> f64 {
        (self.data_bytes / (self.l0_files * self.file_bytes))
            .max(1.0)
            .ln()
            / fanout.ln()
    }

    /// t + s + T(α + β)/B: reading and rewriting one file, µs.
    fn file_rewrite_us(&self, costs: &AccessCosts) -> f64 {
        let pages = self.file_bytes / self.page_bytes;
        costs.read_setup_us
            + costs.write_setup_us
            + pages * (costs.read_transfer_us + costs.write_transfer_us)
    }

    /// Equation 9: compaction per record inserted, µs.
    pub fn insert_us(&self, fanout: f64, costs: &AccessCosts) -> f64 {
        let touched_files = self.l0_files + fanout * self.level_count(fanout);
        touched_files * self.file_rewrite_us(costs) * self.record_bytes / self.file_bytes
    }

    /// Equation 10: a point query that reads one block per sorted run, µs.
    pub fn point_query_us(&self, fanout: f64, costs: &AccessCosts) -> f64 {
        (self.l0_files + self.level_count(fanout)) * self.point_query_single_level_us(costs)
    }

    /// Equation 11: compaction per record inserted with a single level, µs. The files touched,
    /// printed as O(T), are at most N/T, and that is what this computes.
    pub fn insert_single_level_us(&self, costs: &AccessCosts) -> f64 {
        let touched_files = self.data_bytes / self.file_bytes;
        touched_files * self.file_rewrite_us(costs) * self.record_bytes / self.file_bytes
    }

    /// Equation 12: a point query with a single level, µs.
    pub fn point_query_single_level_us(&self, costs: &AccessCosts) -> f64 {
        costs.read_setup_us + self.block_bytes / self.page_bytes * costs.read_transfer_us
    }

    /// X(t/T + α/B): what a scan of `bytes` costs beyond the point query, µs (section 5.2.1).
    pub fn scan_transfer_us(&self, bytes: f64, costs: &AccessCosts) -> f64 {
        bytes * (costs.read_setup_us / self.file_bytes + costs.read_transfer_us / self.page_bytes)
    }
}
