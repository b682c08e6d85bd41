#!/usr/bin/env bash
# What docs/benchmarks.md asks a quiet machine for, in some 25 minutes.
#
#   cargo build --release --features rocksdb,wiredtiger,lmdb,redb,fjall
#   scripts/measure.sh ISOBATH DIR OUT [PART...]     DIR: on the drive, 4 GiB free; OUT: what is measured; root
#
# Parts, all in this order unless some are named:
#   tails     lookups and YCSB B at one absolute rate, with the cores left alone and with both kept awake, beside `null` and `drive`: 7 minutes (ROUNDS=1)
#   headline  lookups and scans out of memory with three sizes of data: rows with a headline number: 5 minutes
#   bare      adapters of rivals beside bare loops and db_bench, PAIRS=2: 7 minutes (BARE=target/release/examples/bare)
#   components  where Isobath's CPU time goes, sampled by perf: 2 minutes
#   tpcc        the TPC-C-derived workload on every engine, in turn, ROUNDS=3: 5 minutes
#   virtual     Isobath and RocksDB on virtual SSDs, a sweep that commits no pitfall: 8 minutes
#   segments    the same for Isobath with segments of a superblock, and a second time with about RocksDB's space: 10 minutes
# Smaller, to see that it works: BYTES=32MiB HEADLINE_BYTES=32MiB MEASURE=1s RECORDS=20000 BARE_SECONDS=0.3.
# Then: scripts/measure_tables.py OUT docs/results && cargo test -p xtask results, which says what docs/benchmarks.md has to quote.
set -euo pipefail
isobath=$1 dir=$2 out=$3
shift 3
parts=("$@")
((${#parts[@]})) || parts=(tails headline bare components tpcc virtual segments)
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$dir" "$out"
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

# Programs of the idle class that keep every core from sleeping while a command runs.
awake() {
    local spinners=() core
    for core in $(seq "$(nproc)"); do
        chrt --idle 0 sh -c 'while :; do :; done' &
        spinners+=($!)
    done
    "$@" || true
    kill "${spinners[@]}" 2>/dev/null || true
    wait "${spinners[@]}" 2>/dev/null || true
}

# NAME WORKLOAD RATE TIME: each engine at one rate, in turn.
tails_of() {
    local name=$1 workload=$2 rate=$3 time=$4 round engine
    for round in $(seq "${ROUNDS:-1}"); do
        for engine in isobath rocksdb wiredtiger drive null; do
            "$isobath" bench run --engine "$engine" --workload "$workload" --bytes "${BYTES:-512MiB}" --rate "$rate" --threads 64 \
                --duration "$time" --warm-up 2s --durability synced --no-drive --path "$dir/tail" --json --quiet >>"$out/$name.jsonl"
        done
    done
}

tails() {
    rm -f "$out"/tails-*.jsonl
    tails_of tails-lookup lookup "${RATE:-20000}" "${MEASURE:-8s}"
    awake tails_of tails-lookup-awake lookup "${RATE:-20000}" "${MEASURE:-8s}"
    tails_of tails-ycsb-b ycsb-b "${RATE_B:-600}" "${MEASURE:-20s}"
    awake tails_of tails-ycsb-b-awake ycsb-b "${RATE_B:-600}" "${MEASURE:-20s}"
}

headline() {
    "$isobath" bench campaign --out "$out/headline" --directory "$dir" --rows lookup-out,scan-out,ycsb-c-out \
        --sizes 0.25,0.5,1 --duration "${MEASURE:-5s}" --warm-up 2s ${HEADLINE_BYTES:+--bytes "$HEADLINE_BYTES"} --quiet >"$out/headline.txt"
}

bare() {
    local engine
    for engine in lmdb redb fjall wiredtiger; do
        RECORDS="${RECORDS:-500000}" THREADS=16 DURATION="${BARE_SECONDS:-2}" "$here/compare_bare.sh" "$engine" "$isobath" "$dir/bare" "$out/bare-$engine" "${PAIRS:-2}" |
            tee "$out/bare-$engine.txt"
    done
    RECORDS="${RECORDS:-1000000}" THREADS=16 DURATION="${BARE_SECONDS:-3}" "$here/compare_db_bench.sh" "$isobath" "$dir/bare" "$out/bare-rocksdb" \
        "${PAIRS:-2}" | tee "$out/bare-rocksdb.txt"
}

components() {
    local workload size
    rm -f "$out/components.jsonl"
    for workload in lookup ycsb-c ycsb-a tpcc; do
        size=(--bytes "${COMPONENTS_BYTES:-256MiB}")
        [[ $workload != tpcc ]] || size=(--warehouses 2 --pool 64MiB)
        "$isobath" bench run --engine isobath --workload "$workload" "${size[@]}" --duration "${MEASURE:-6s}" --warm-up 2s --components \
            --path "$dir/components" --json --quiet >>"$out/components.jsonl"
    done
}

tpcc() {
    local round engine engines=(isobath rocksdb wiredtiger lmdb redb fjall)
    rm -f "$out"/tpcc-*.jsonl
    for round in $(seq "${ROUNDS:-3}"); do
        for engine in "${engines[@]}"; do
            "$isobath" bench run --engine "$engine" --workload tpcc --warehouses 2 --pool 64MiB --threads 16 --tasks 8 \
                --duration "${MEASURE:-8s}" --warm-up 2s --durability none --no-drive --seed "$round" --path "$dir/tpcc.$engine" --json \
                --quiet | tail -1 >>"$out/tpcc-$engine.jsonl"
            rm -rf "$dir/tpcc.$engine"
        done
        # The order of the engines alternates.
        mapfile -t engines < <(printf '%s\n' "${engines[@]}" | tac)
    done
}

# NAME ENGINES ARGUMENTS...: updates on virtual SSDs of 192 MiB, three sizes of data, two amounts of spare flash.
on_virtual_ssds() {
    local name=$1 engines=$2
    shift 2
    "$isobath" bench sweep --engines "$engines" --workload update --simulated 192MiB --vssd "$dir/drives" \
        --sizes 0.1,0.15,0.2 --state preconditioned --log-off --pool 8MiB --until-steady --duration "${MEASURE:-40s}" \
        "$@" --out "$out/$name" --quiet >"$out/$name.txt"
}

virtual() {
    on_virtual_ssds virtual isobath,rocksdb
}

# A superblock of these drives is a 256th or a 64th of them.
segments() {
    on_virtual_ssds segments-tlc isobath --profiles tlc --segment 768KiB --fill-factors 0.3,0.8
    on_virtual_ssds segments-qlc isobath --profiles qlc --segment 3MiB --fill-factors 0.3,0.8
}

for part in "${parts[@]}"; do
    "$part"
done
