//! How large the parts of log-structured merge trees are.
//!
//! Memtables, files and levels scale with the data, so that a small store has as many levels as one
//! of [`LARGE_STORE_BYTES`] with its engine's defaults. Cache and memtables together have the
//! pool's size.

/// The store that a small one is a model of (paper 001, section 4.2: 160 GB).
const LARGE_STORE_BYTES: f64 = 160e9;
/// RocksDB's and fjall's default memtable, which is also their default file size.
const DEFAULT_WRITE_BUFFER: f64 = 67_108_864.0;
/// The smallest memtable that the scale gives. With less, what a flush and a compaction cost per
/// file, however small, would be most of their cost, which is nothing like a large store's; with
/// more, a small store would have fewer levels.
const SCALED_MIN: f64 = 2_097_152.0;
/// The smallest memtable that RocksDB takes; fjall has the same here.
const WRITE_BUFFER_MIN: f64 = 65_536.0;
/// Memtables that count: one that is written to, one that is written out.
const WRITE_BUFFERS: u64 = 2;
/// The default first level, in memtables.
const LEVEL_BASE_BUFFERS: u64 = 4;

/// Sizes that follow from the size of the data and the cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TreeSizes {
    pub(crate) block_cache_bytes: u64,
    pub(crate) write_buffer_bytes: u64,
    pub(crate) level_base_bytes: u64,
}

impl TreeSizes {
    /// Memtables of this share of the pool, or as large beside the data as those of the large store
    /// are.
    pub(crate) fn of(pool_bytes: u64, data_bytes: u64, write_share: Option<f64>) -> TreeSizes {
        let scaled = DEFAULT_WRITE_BUFFER * (data_bytes as f64 / LARGE_STORE_BYTES).min(1.0);
        let buffer = match write_share {
            Some(share) => pool_bytes as f64 * share / WRITE_BUFFERS as f64,
            None => scaled.max(SCALED_MIN),
        };
        let most = (pool_bytes as f64 / 4.0).max(WRITE_BUFFER_MIN);
        let buffer = buffer.clamp(WRITE_BUFFER_MIN, most) as u64;
        TreeSizes {
            block_cache_bytes: pool_bytes.saturating_sub(buffer * WRITE_BUFFERS),
            write_buffer_bytes: buffer,
            level_base_bytes: buffer * LEVEL_BASE_BUFFERS,
        }
    }

    /// All memtables together.
    #[cfg(feature = "rocksdb")]
    pub(crate) fn memtable_bytes(&self) -> u64 {
        self.write_buffer_bytes * WRITE_BUFFERS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_scale_with_the_data_and_stay_in_the_pool() {
        let large = TreeSizes::of(16 << 30, 160_000_000_000, None);
        assert_eq!(large.write_buffer_bytes, 64 << 20);
        assert_eq!(large.level_base_bytes, 256 << 20);
        let small = TreeSizes::of(160 << 20, 16_000_000_000, None);
        assert_eq!(large.write_buffer_bytes / small.write_buffer_bytes, 10);
        assert_eq!(
            small.block_cache_bytes + 2 * small.write_buffer_bytes,
            160 << 20
        );
        let smallest = TreeSizes::of(160 << 20, 256_000_000, None);
        assert_eq!(smallest.write_buffer_bytes, 2 << 20);
        let split = TreeSizes::of(160 << 20, 1_600_000_000, Some(0.25));
        assert_eq!(split.write_buffer_bytes, 20 << 20);
        assert_eq!(TreeSizes::of(1 << 20, 1, None).write_buffer_bytes, 1 << 18);
        assert_eq!(
            TreeSizes::of(16 << 20, 1, Some(1.0)).block_cache_bytes,
            8 << 20
        );
    }
}
