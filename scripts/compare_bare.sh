#!/usr/bin/env bash
# Compares an engine's adapter with a bare loop of the engine's own calls, in pairs and with the same options: those that the adapter prints.
# RocksDB has a tool of its own: scripts/compare_db_bench.sh.
#
#   cargo build --release --features wiredtiger,lmdb,redb,fjall
#   cargo build --release -p isobath-lab --example bare --features lmdb,redb,fjall
#   scripts/compare_bare.sh ENGINE ISOBATH DIR OUT [PAIRS]    ENGINE: wiredtiger, lmdb, redb or fjall; ISOBATH: the first binary;
#                                                             DIR: on the drive; PAIRS: 5 unless told
#   BARE=target/release/examples/bare RECORDS=4000000 THREADS=64 DURATION=10 scripts/compare_bare.sh ...
#
# Rows: lookups and updates without durability, updates whose commits are on the drive. Prints per row both medians (operations per second)
# and the median of the pairs' ratios, adapter divided by bare loop; 0.95 is the goal. Where the drive bounds both, the medians of CPU time
# per operation tell the adapter's own cost. Both sides copy a value that they read; the adapter compares it with what was stored, the loop
# its length only. OUT/ROW.adapter has the adapter's JSON, OUT/ROW.bare the loop's words. WiredTiger's loop is compiled here
# (libwiredtiger-dev). Keep other load off the machine.
set -euo pipefail
engine=$1 isobath=$2 dir=$3 out=$4 pairs=${5:-5}
here=$(cd "$(dirname "$0")" && pwd)
source "$here/rates.sh"
bare=${BARE:-$here/../target/release/examples/bare}
records=${RECORDS:-4000000} threads=${THREADS:-64} duration=${DURATION:-10}
mkdir -p "$dir" "$out"
adapter="$dir/adapter.$engine" alone="$dir/bare.$engine"
rm -rf "$adapter" "$alone"
trap 'rm -rf "$adapter" "$alone"' EXIT
if [[ $engine == wiredtiger ]]; then
    cc -O2 -Wall -Wextra -o "$out/wiredtiger" "$here/bare/wiredtiger.c" -lwiredtiger -lpthread
fi

# Prints a setting that the adapter printed in its last run of a row.
setting() {
    tail -1 "$out/$1.adapter" | grep -oP "\[\"$2\",\"\K[^\"]+" | head -1
}

# ROW WORKLOAD VALUE_BYTES DURABILITY: one run of the adapter, which loads for itself.
run_adapter() {
    local pool=$((records * (16 + $3) / 10))
    # LMDB maps its file: the page cache holds the data whatever the pool, so that the rows are in memory.
    [[ $engine != lmdb ]] || pool=$((pool * 20))
    "$isobath" bench run --engine "$engine" --workload "$2" --records "$records" --pool "$pool" --threads "$threads" \
        --duration "${duration}s" --warm-up "${duration}s" --durability "$4" --no-drive --path "$adapter" --json --quiet |
        tail -1 >>"$out/$1.adapter"
}

# The loop's program with the adapter's settings: ROW VERB ARGUMENTS...
loop() {
    local row=$1 verb=$2
    shift 2
    local name settings=synced=$synced
    if [[ $engine == wiredtiger ]]; then
        "$out/wiredtiger" "$verb" "$alone" "$(setting "$row" connection)" "$(setting "$row" tables)" "$@"
        return
    fi
    for name in cache_bytes durable_every max_memtable_bytes table_target_bytes worker_threads max_cached_files; do
        settings+=",$name=$(setting "$row" "$name" || true)"
    done
    "$bare" "$engine" "$verb" "$alone" "$settings" "$@"
}

# ROW VERB VALUE_BYTES ORDER DURABILITY: one run of the loop: a load, one reading past the page cache, the clients.
run_bare() {
    local row=$1 verb=$2 value=$3 order=$4 synced=false file
    [[ $5 == none ]] || synced=true
    loop "$row" load "$records" 16 "$value" "$order" >/dev/null
    while read -r file; do
        dd if="$file" of=/dev/null bs=2M iflag=direct status=none
    done < <(find "$alone" -type f -size +4k)
    loop "$row" "$verb" "$records" 16 "$value" "$order" "$threads" "$duration" "$duration" >>"$out/$row.bare"
    rm -rf "$alone"
}

bare_rates() {
    grep -oP '^operations_per_s \K[0-9.]+' "$out/$1.bare"
}

# CPU time per operation, in microseconds.
adapter_cpu() {
    grep -oP '"cpu_us_per_operation":\K[0-9.]+' "$out/$1.adapter"
}

bare_cpu() {
    grep -oP '^cpu_us_per_operation \K[0-9.]+' "$out/$1.bare"
}

# ROW WORKLOAD VERB VALUE_BYTES ORDER DURABILITY: all pairs of a row; the order of keys is the workload's.
row() {
    local name=$1 run side
    rm -f "$out/$name".{adapter,bare}
    for run in $(seq "$pairs"); do
        # The first pair begins with the adapter, which says the settings; then the side that goes first alternates.
        local order=(adapter bare)
        ((run % 2)) || order=(bare adapter)
        for side in "${order[@]}"; do
            case $side in
                adapter) run_adapter "$name" "$2" "$4" "$6" ;;
                bare) run_bare "$name" "$3" "$4" "$5" "$6" ;;
            esac
        done
    done
    printf '%-14s adapter %10.0f /s   bare loop %10.0f /s   adapter / bare loop %.3f   CPU us per operation %.2f and %.2f\n' "$name" \
        "$(adapter_rates "$name" | median)" "$(bare_rates "$name" | median)" \
        "$(paste <(adapter_rates "$name") <(bare_rates "$name") | awk '{ print $1 / $2 }' | median)" \
        "$(adapter_cpu "$name" | median)" "$(bare_cpu "$name" | median)"
}

row lookup read-random get 100 hashed none
row update update-small put 128 sequential none
row update-synced update-small put 128 sequential synced
