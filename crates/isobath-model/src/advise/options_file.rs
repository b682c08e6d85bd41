//! A RocksDB OPTIONS file: the ini dialect that `LoadOptionsFromFile` reads.

use super::RocksdbSettings;
use crate::lsm::Layout;

/// Sections and keys of RocksDB 6 and later. Unknown keys are errors to RocksDB, so only long-lived
/// ones are used.
pub(super) fn render(s: &RocksdbSettings) -> String {
    let (fanout, base_bytes, levels) = match s.layout {
        Layout::Leveled { fanout, l0_files } => (
            fanout,
            u64::from(l0_files) * s.file_bytes,
            (s.level_count + 2).max(LEVELS_DEFAULT),
        ),
        // L1 never exceeds its capacity, so nothing ever moves to a second level.
        Layout::SingleLevel => (FANOUT_UNUSED, SINGLE_LEVEL_BYTES, 2),
    };
    let filter = match s.filter_bits_per_key {
        0 => "nullptr".to_string(),
        bits => format!("bloomfilter:{bits}:false"),
    };
    format!(
        "\
# Written by `isobath advise`. Load with LoadOptionsFromFile(); or name it OPTIONS-000005 in an empty directory
# and open that with LoadLatestOptions().
[Version]
  rocksdb_version=7.8.3
  options_file_version=1.1

[DBOptions]
  create_if_missing=true
  max_background_jobs={jobs}
  max_subcompactions={subcompactions}
  max_open_files=-1
  use_direct_reads=true
  use_direct_io_for_flush_and_compaction=true
  bytes_per_sync=1048576

[CFOptions \"default\"]
  write_buffer_size={write_buffer}
  max_write_buffer_number={memtables}
  target_file_size_base={file_bytes}
  max_bytes_for_level_base={base_bytes}
  max_bytes_for_level_multiplier={fanout}
  level_compaction_dynamic_level_bytes=false
  num_levels={levels}
  level0_file_num_compaction_trigger={trigger}
  level0_slowdown_writes_trigger={slowdown}
  level0_stop_writes_trigger={stop}
  compression=kNoCompression
  compaction_style=kCompactionStyleLevel
  compaction_pri=kMinOverlappingRatio
  table_factory=BlockBasedTable

[TableOptions/BlockBasedTable \"default\"]
  block_size=4096
  block_align=true
  block_cache={{capacity={cache};num_shard_bits=6}}
  cache_index_and_filter_blocks=true
  pin_l0_filter_and_index_blocks_in_cache=true
  filter_policy={filter}
",
        jobs = s.background_jobs,
        subcompactions = s.subcompactions,
        write_buffer = s.write_buffer_bytes,
        memtables = super::rocksdb::MEMTABLES,
        file_bytes = s.file_bytes,
        trigger = s.l0_trigger_files,
        slowdown = s.l0_slowdown_files,
        stop = s.l0_stop_files,
        cache = s.block_cache_bytes,
    )
}

const LEVELS_DEFAULT: u32 = 7;
const FANOUT_UNUSED: u32 = 10;
/// 2⁶⁰ bytes: no store reaches it, and RocksDB's arithmetic on it does not overflow.
const SINGLE_LEVEL_BYTES: u64 = 1 << 60;
