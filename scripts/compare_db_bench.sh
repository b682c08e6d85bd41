#!/usr/bin/env bash
# Compares the adapter of RocksDB with RocksDB's own tool, db_bench, in pairs and with the same options: those that the adapter prints.
# Inserts are compared with a loop in C, too (scripts/bare/rocksdb.c says why).
#
#   scripts/compare_db_bench.sh ISOBATH DIR OUT [PAIRS]      ISOBATH: a binary built with --features rocksdb; DIR: on the drive;
#                                                            PAIRS: 5 unless told
#   RECORDS=4000000 THREADS=64 DURATION=10 scripts/compare_db_bench.sh ...
#
# Prints per row both medians (operations per second, the whole run) and the median of the pairs' ratios, adapter divided by db_bench;
# 0.95 is the goal. OUT/ROW.adapter has the adapter's JSON, OUT/ROW.db_bench the tool's words, OUT/ROW.bare the loop's, one run after the other.
# Needs db_bench (Debian: rocksdb-tools), of the same version as the library, and librocksdb-dev. Keep other load off the machine.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/rates.sh"
isobath=$1 dir=$2 out=$3 pairs=${4:-5}
records=${RECORDS:-4000000} threads=${THREADS:-64} duration=${DURATION:-10}
key=16 value=100
pool=$((records * (key + value) / 10))
mkdir -p "$dir" "$out"
adapter="$dir/adapter.rocksdb" tool="$dir/db_bench.rocksdb" alone="$dir/bare.rocksdb"
rm -rf "$adapter" "$tool" "$alone"
trap 'rm -rf "$adapter" "$tool" "$alone"' EXIT
cc -O2 -Wall -Wextra -o "$out/rocksdb" "$here/bare/rocksdb.c" -lrocksdb

# Prints a setting that the adapter printed in its last run of a row.
setting() {
    tail -1 "$out/$1.adapter" | grep -oP "\"$2\",\"\K[0-9]+"
}

# ROW WORKLOAD THREADS: one run of the adapter, which loads for itself.
run_adapter() {
    "$isobath" bench run --engine rocksdb --workload "$2" --records "$records" --pool "$pool" --threads "$3" --duration "$duration"s \
        --warm-up "${4}s" --no-drive --path "$adapter" --json --quiet | tail -1 >>"$out/$1.adapter"
}

# Where db_bench has other defaults than the library, and which costs or saves time: the library's, which the adapter leaves as they are.
library_defaults=(--enable_pipelined_write=false --delayed_write_rate=16777216 --table_cache_numshardbits=6 --index_shortening_mode=1
    --dump_malloc_stats=false)

# ROW THREADS ARGUMENTS...: db_bench with the adapter's settings.
run_tool() {
    local row=$1 threads=$2
    shift 2
    db_bench --db="$tool" --num="$records" --key_size=$key --value_size=$value --threads="$threads" \
        --compression_type=none --block_size="$(setting "$row" block_bytes)" \
        --cache_size="$(setting "$row" block_cache_bytes)" --cache_numshardbits=-1 \
        --write_buffer_size="$(setting "$row" write_buffer_bytes)" \
        --target_file_size_base="$(setting "$row" target_file_size_base)" \
        --max_bytes_for_level_base="$(setting "$row" max_bytes_for_level_base)" \
        --db_write_buffer_size="$(setting "$row" db_write_buffer_size)" "${library_defaults[@]}" \
        --max_background_jobs="$(setting "$row" max_background_jobs)" --open_files=-1 \
        --use_direct_reads=true --use_direct_io_for_flush_and_compaction=true --disable_wal=false --sync=false "$@" 2>/dev/null
}

# ROW: the loop in C with the adapter's settings.
run_bare() {
    local options="create_if_missing=true;compression=kNoCompression;max_open_files=-1;use_direct_reads=true" name
    options+=";use_direct_io_for_flush_and_compaction=true"
    for name in write_buffer_size:write_buffer_bytes db_write_buffer_size:db_write_buffer_size \
        target_file_size_base:target_file_size_base max_bytes_for_level_base:max_bytes_for_level_base \
        max_background_jobs:max_background_jobs; do
        options+=";${name%:*}=$(setting "$1" "${name#*:}")"
    done
    options+=";block_based_table_factory={block_size=$(setting "$1" block_bytes);block_cache=$(setting "$1" block_cache_bytes)}"
    "$out/rocksdb" "$alone" "$options" "$records" $key $value >>"$out/$1.bare"
    rm -rf "$alone"
}

# Operations per second of the tool's runs; where a run has a warm-up, the later line of the two counts.
tool_rates() {
    grep -oP "^$2\s*:.*?\K[0-9]+(?= ops/sec)" "$out/$1.db_bench" | awk -v every="$3" 'NR % every == 0'
}

bare_rates() {
    grep -oP '^operations_per_s \K[0-9.]+' "$out/$1.bare"
}

# ROW OTHER COMMAND...: medians of the adapter and of the other side, whose rates the command prints, and of the pairs' ratios.
report() {
    local row=$1 other=$2
    shift 2
    printf '%-20s adapter %10.0f /s   %-9s %10.0f /s   adapter / %s %.3f\n' "$row" "$(adapter_rates "$row" | median)" \
        "$other" "$("$@" | median)" "$other" "$(paste <(adapter_rates "$row") <("$@") | awk '{ print $1 / $2 }' | median)"
}

# Uniform lookups of keys that are there, after a sorted load and a compaction; the first half warms the cache.
read_random() {
    if [[ $1 == adapter ]]; then
        run_adapter read-random read-random "$threads" "$duration"
    else
        run_tool read-random 1 --benchmarks=fillseq,compact >/dev/null
        cat "$tool"/*.sst >/dev/null
        run_tool read-random "$threads" --use_existing_db=true --duration="$duration" --benchmarks=readrandom,readrandom \
            >>"$out/read-random.db_bench"
        rm -rf "$tool"
    fi
}

# Every key once, in random order, by one thread: db_bench has no more for unique keys.
fill_unique_random() {
    if [[ $1 == adapter ]]; then
        run_adapter fill-unique-random fill-unique-random 1 0
    elif [[ $1 == bare ]]; then
        run_bare fill-unique-random
    else
        run_tool fill-unique-random 1 --benchmarks=filluniquerandom >>"$out/fill-unique-random.db_bench"
        rm -rf "$tool"
    fi
}

rm -f "$out"/{read-random,fill-unique-random}.{adapter,db_bench,bare}
for run in $(seq "$pairs"); do
    # The first pair begins with the adapter, which says the settings; then the side that goes first alternates.
    order=(adapter tool)
    ((run % 2)) || order=(tool adapter)
    for side in "${order[@]}"; do read_random "$side"; done
    for side in "${order[@]}" bare; do duration=600 fill_unique_random "$side"; done
done
report read-random db_bench tool_rates read-random readrandom 2
report fill-unique-random db_bench tool_rates fill-unique-random filluniquerandom 1
report fill-unique-random bare bare_rates fill-unique-random
