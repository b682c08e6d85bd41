#!/usr/bin/env bash
# How long a store takes to open after `kill -9`, by the length of its log.
#
#   scripts/recovery.sh DIR [LOG...]     LOG: bytes of log since the last checkpoint; 64MiB 256MiB 1GiB unless told
set -euo pipefail
dir=$1
shift
isobath=${ISOBATH:-$(dirname "$0")/../target/release/isobath}
logs=("$@")
[ ${#logs[@]} -gt 0 ] || logs=(64MiB 256MiB 1GiB)
store=$dir/recovery.iso
for log in "${logs[@]}"; do
    rm -f "$store"
    # A checkpoint begins when a quarter of the log is used; the kill comes before.
    bytes=$(numfmt --from=iec-i --suffix=B "$log")
    bytes=${bytes%B}
    "$isobath" bench lookup --path "$store" --bytes 1GiB --pool 2GiB --log $((bytes * 5))B --op update \
        --keep --tasks 256 --warm-up 0s --duration 600s --no-drive --quiet >/dev/null &
    writer=$!
    while kill -0 "$writer" 2>/dev/null; do
        sleep 0.2
        logged=$("$isobath" stats -s "$store" --json 2>/dev/null | grep -o '"log_bytes_written":[0-9]*' | grep -o '[0-9]*$' || true)
        if [ "${logged:-0}" -ge "$bytes" ]; then break; fi
    done
    kill -9 "$writer" 2>/dev/null || true
    wait "$writer" 2>/dev/null || true
    echo "== $log of log"
    "$isobath" put -s "$store" --tree records recovered yes 2>&1 | grep recovered || true
done
rm -f "$store"
