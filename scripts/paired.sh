#!/usr/bin/env bash
# Compares two builds, row by row: each row runs OLD and NEW in turn, in the same minute and on the same file.
#
#   scripts/paired.sh OLD NEW DIR OUT [PAIRS]     OLD, NEW: two `isobath` binaries; DIR: on the drive; PAIRS: 5 unless told
#   ONLY='get|scan' DURATION=5s scripts/paired.sh ...                only the rows whose names match
#   NEW_ARGUMENTS=--batch=32 scripts/paired.sh ...           more arguments for NEW alone
#
# Prints per row the medians over all pairs: operations per second, CPU per operation, and NEW divided by OLD.
# OUT/ROW.{old,new} keep every run's JSON. Keep other load off the machine.
set -euo pipefail
old=$1 new=$2 dir=$3 out=$4 pairs=${5:-5}
only=${ONLY:-.} duration=${DURATION:-3s} size=${SIZE:-256MiB}
mkdir -p "$out"

# Prints one number of each line, a run's JSON: the first by that name, of the whole run.
first() {
    grep -oP "^.*?\"$1\":\K[-0-9.e]+" "$2"
}

# The verb of a build: `bench lookup` was what `bench run` is.
verb() {
    if "$1" bench lookup --help >/dev/null 2>&1; then echo lookup; else echo run; fi
}

# Prints the median of one number of all runs of a row.
median() {
    first "$2" "$1" | sort -g | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}

# Prints the median of the pairs' ratios, NEW divided by OLD.
ratio() {
    paste <(first "$2" "$out/$1.old") <(first "$2" "$out/$1.new") |
        awk '{ print $2 / $1 }' | sort -g | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}

# ROW ARGUMENTS...: one row
row() {
    local name=$1 run
    shift
    [[ $name =~ $only ]] || return 0
    : >"$out/$name.old"
    : >"$out/$name.new"
    for run in $(seq "$pairs"); do
        # The build that goes first alternates too.
        local order=(old new)
        ((run % 2)) || order=(new old)
        for which in "${order[@]}"; do
            local more=()
            [[ $which == old ]] || read -ra more <<<"${NEW_ARGUMENTS:-}"
            "${!which}" bench "$(verb "${!which}")" --bytes "$size" --duration "$duration" --warm-up 1s --no-drive --json --quiet \
                "$@" "${more[@]}" |
                tail -1 >>"$out/$name.$which"
        done
    done
    printf '%-18s %10.0f %10.0f /s  x %.3f   %7.3f %7.3f us of CPU  x %.3f\n' "$name" \
        "$(median "$out/$name.old" operations_per_s)" "$(median "$out/$name.new" operations_per_s)" "$(ratio "$name" operations_per_s)" \
        "$(median "$out/$name.old" cpu_us_per_operation)" "$(median "$out/$name.new" cpu_us_per_operation)" "$(ratio "$name" cpu_us_per_operation)"
}

pool=(--in-pool --workers 1 --path "$dir/pool.iso" --keep)
drive=(--path "$dir/drive.iso" --keep)
# Both builds can read what the older one made.
"$old" bench "$(verb "$old")" "${pool[@]}" --bytes "$size" --load-only --no-drive --quiet >/dev/null
"$old" bench "$(verb "$old")" "${drive[@]}" --bytes "$size" --load-only --no-drive --quiet >/dev/null
row in-pool-get "${pool[@]}"
row in-pool-get-many "${pool[@]}" --op get-many
row in-pool-scan "${pool[@]}" --op scan
row get "${drive[@]}"
row scan "${drive[@]}" --op scan --tasks 4
rm -f "$dir/pool.iso" "$dir/drive.iso"
row memory-device --memory-device --workers 1
row update-log-off --path "$dir/update.iso" --op update --log-off
row update-buffered --path "$dir/update.iso" --op update --durability buffered
row update-synced --path "$dir/update.iso" --op update --durability synced
row insert-synced --path "$dir/update.iso" --op insert --durability synced
size=64MiB
row commits --path "$dir/update.iso" --op update --pool 512MiB --tasks 256 --durability synced
