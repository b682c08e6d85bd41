#!/usr/bin/env bash
# Every measurement of docs/benchmarks.md, one after the other: JSON lines in OUT, one file per measurement.
#
#   scripts/benchmarks.sh DIR OUT [SIZE]     DIR: on the drive to be measured; SIZE: data, 4GiB unless told
#   ONLY='lookup|scan' DURATION=10s scripts/benchmarks.sh DIR OUT     only the measurements whose names match
#
# Needs a build with the rival: cargo build --release --features rocksdb. Keep other load off the machine.
set -euo pipefail
dir=$1 out=$2 size=${3:-4GiB}
only=${ONLY:-.} duration=${DURATION:-20s}
isobath=${ISOBATH:-$(dirname "$0")/../target/release/isobath}
mkdir -p "$out"

# NAME ARGUMENTS...: one measurement
measure() {
    local name=$1
    shift
    [[ $name =~ $only ]] || return 0
    printf '%s  %s: isobath %s\n' "$(date +%T)" "$name" "$*" >&2
    "$isobath" "$@" --json --quiet >"$out/$name.json" || echo "$name failed" >&2
}
lookup() {
    local name=$1
    shift
    measure "$name" bench run --warm-up 5s --bytes "$size" --duration "$duration" "$@"
}
iso=(--path "$dir/bench.iso" --keep)
rocks=(--path "$dir/bench.rocks" --keep --engine rocksdb)

lookup load "${iso[@]}" --load-only
lookup get "${iso[@]}"
lookup rocksdb-get "${rocks[@]}" --threads 128
lookup get-again "${iso[@]}"
rate() { grep -o '"operations_per_s":[0-9]*' "$out/$1.json" | head -1 | grep -o '[0-9]*$'; }
if [[ latency =~ $only && -s $out/rocksdb-get.json ]]; then
    lookup latency "${iso[@]}" --rate $(($(rate get) * 8 / 10))
    lookup rocksdb-latency "${rocks[@]}" --threads 128 --rate $(($(rate rocksdb-get) * 8 / 10))
fi
lookup scan "${iso[@]}" --op scan --tasks 4
lookup scan-deep "${iso[@]}" --op scan
lookup rocksdb-scan "${rocks[@]}" --op scan --threads 8
lookup memory-device --memory-device --workers 1
lookup in-pool-get --in-pool --workers 1
lookup in-pool-get-turns --in-pool --workers 1 --tasks 8
lookup in-pool-get-threads --in-pool --from threads --threads 1 --workers 1
lookup in-pool-get-many --in-pool --workers 1 --op get-many
lookup in-pool-scan --in-pool --workers 1 --op scan
lookup update-log-off --path "$dir/off.iso" --op update --log-off
lookup update-buffered --path "$dir/buffered.iso" --op update --durability buffered
lookup update --path "$dir/synced.iso" --op update --durability synced
small=(--path "$dir/small.iso" --bytes 64MiB --pool 2GiB --tasks 256 --op update --durability synced --warm-up 5s --no-drive)
measure commits bench run "${small[@]}" --duration "$duration"
if [[ commits-latency =~ $only && -s $out/commits.json ]]; then
    measure commits-latency bench run "${small[@]}" --duration "$duration" --rate $(($(rate commits) / 2))
fi
measure flushes raw --scratch "$dir/flush.scratch" --read 0 --durable --depth 1,4,16 --duration 3s
lookup insert --path "$dir/insert.iso" --op insert --durability synced
measure raw raw --file "$dir/bench.iso" --depth 128
rm -rf "$dir"/{bench,insert,off,buffered,synced,small}.iso "$dir/bench.rocks"
