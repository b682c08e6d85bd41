#!/usr/bin/env bash
# How long a store takes to open after `kill -9`, by the length of its log.
#
#   scripts/recovery.sh DIR [LOG...]     LOG: about how much log, 64MiB 256MiB 1GiB unless told
#
# Prints what the next opening says, how much log there was and how long that took, how long the command took from its start to its
# end, one write included, and the drive's own random reads right after it.
set -euo pipefail
dir=$1
shift
isobath=${ISOBATH:-$(dirname "$0")/../target/release/isobath}
logs=("$@")
[ ${#logs[@]} -gt 0 ] || logs=(64MiB 256MiB 1GiB)
store=$dir/recovery.iso
drive() { "$isobath" raw --file "$store" --depth 128 --duration 2s --json | grep -o '"ios_per_s":[0-9]*' | grep -o '[0-9]*$'; }
for log in "${logs[@]}"; do
    rm -f "$store"
    bytes=$(numfmt --from=iec-i --suffix=B "$log")
    bytes=${bytes%B}
    # A checkpoint begins when a quarter of the log is used, and keeps its younger half.
    run=(bench run --durability synced --path "$store" --bytes 1GiB --pool 2GiB --log $((bytes * 4))B --no-drive --quiet --keep)
    "$isobath" "${run[@]}" --load-only >/dev/null
    "$isobath" "${run[@]}" --op update --tasks 256 --warm-up 0s --duration 600s >/dev/null &
    writer=$!
    # Until it has opened, and has written several times that much, at some 20 MB/s.
    sleep $((15 + 2 * bytes / 20000000))
    kill -9 "$writer"
    wait "$writer" 2>/dev/null || true
    began=$(date +%s%N)
    "$isobath" put -s "$store" --pool 2GiB --tree scratch --create-tree key value 2>&1 | grep 'recovered from'
    echo "  from the command's start to its end: $((($(date +%s%N) - began) / 1000000)) ms"
    echo "  the drive alone: $(drive) random 4 KiB reads/s"
done
rm -f "$store"
