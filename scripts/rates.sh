# Rates of runs, for the scripts that compare an adapter with something else; $out is where the runs printed to.

median() {
    sort -g | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}

# Operations per second of the adapter's runs of a row: all operations over all the time measured.
adapter_rates() {
    local line
    while read -r line; do
        local operations seconds
        operations=$(grep -oP '"operations":\K[0-9]+' <<<"$line" | tail -1)
        seconds=$(grep -oP '"duration_s":\K[-0-9.e]+' <<<"$line" | head -1)
        awk -v o="$operations" -v s="$seconds" 'BEGIN { print o / s }'
    done <"$out/$1.adapter"
}
