#!/usr/bin/env python3
"""Makes tables of docs/results from what scripts/measure.sh measured.

    scripts/measure_tables.py OUT docs/results
    cargo test -p xtask results      # says which numbers docs/benchmarks.md no longer has

Title, command, machine and notes of a file stay; look at the machine. The date is today's, the commit that of the working tree.
"""

import datetime
import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

NAMES = {"isobath": "Isobath", "rocksdb": "RocksDB", "wiredtiger": "WiredTiger", "drive": "the drive alone", "null": "no engine"}
ORDER = list(NAMES.values())


def name(engine):
    return NAMES.get(engine.split()[0], engine)


def write(directory, table, columns, rows):
    path = directory / f"{table}.json"
    file = json.loads(path.read_text()) if path.exists() else {"title": table, "command": [], "machine": "", "notes": []}
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    file["recorded"] = {"date": str(datetime.date.today()), "commit": commit}
    keys = ["title", "command", "machine", "recorded", "notes"]
    parts = [f"  {json.dumps(key)}: {listed(file[key])}" for key in keys]
    parts += [f'  "columns": {plain(columns)}', f'  "rows": {listed(rows)}']
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def plain(value):
    return json.dumps(value, ensure_ascii=False)


def listed(value):
    """A list has a line for each of its values."""
    if not isinstance(value, list):
        return plain(value)
    return "[\n" + ",\n".join("    " + plain(part) for part in value) + "\n  ]"


def number(value):
    return f"{value:,.0f}"


def tails(out, results):
    """Medians over the rounds; of p99.9 also the range, and the longest of all."""
    columns = ["operations, cores", "engine", "rounds", "offered/s", "p50 µs", "p99 µs", "p99.9 µs (range)", "longest, ms", "CPU µs per operation"]
    rows = []
    for file, what in [
        ("tails-lookup", "lookups, left alone"),
        ("tails-lookup-awake", "lookups, kept awake"),
        ("tails-ycsb-b", "YCSB B, left alone"),
        ("tails-ycsb-b-awake", "YCSB B, kept awake"),
    ]:
        path = out / f"{file}.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        for engine in ORDER:
            rounds = [r for r in records if name(r["setting"]["engine"]) == engine]
            if not rounds:
                continue
            of = {field: [r[field] for r in rounds] for field in rounds[0] if isinstance(rounds[0][field], (int, float))}
            late = of["latency_us_p999"]
            span = f" ({number(min(late))} to {number(max(late))})" if len(late) > 1 else ""
            rows.append([
                what, engine, str(len(rounds)), number(rounds[0]["setting"]["rate_per_s"]), number(median(of["latency_us_p50"])),
                number(median(of["latency_us_p99"])), number(median(late)) + span, f"{max(of['latency_us_max']) / 1e3:.1f}",
                f"{median(of['cpu_us_per_operation']):.1f}",
            ])
    write(results, "tails-at-one-rate", columns, rows)


def headline(out, results):
    columns = ["row", "data", "engine", "per second", "steady", "p99 µs", "CPU µs per operation", "of it the benchmark",
               "the drive alone, random reads before / after"]
    rows = []
    records = [json.loads(line)["record"] for line in (out / "headline" / "records.jsonl").read_text().splitlines()]
    for r in sorted(records, key=lambda r: (r["row"], r["data_bytes"], ORDER.index(name(r["setting"]["engine"])))):
        limit = r["drive_reads_per_s"]
        share = r["harness_ns_per_operation"] / 1e3 / r["cpu_us_per_operation"]
        rows.append([
            r["row"], f"{r['data_bytes'] / (1 << 20):.0f} MiB", name(r["setting"]["engine"]), number(r["operations_per_s"]),
            "no" if r["steady_from"] is None else "yes", number(r["latency_us_p99"]), f"{r['cpu_us_per_operation']:.2f}",
            f"{share * 100:.1f}%", "not measured" if limit is None else f"{number(limit[0])} / {number(limit[1])}",
        ])
    write(results, "campaign-with-sizes", columns, rows)


def bare(out, results):
    columns = ["engine", "row", "adapter, per second", "beside", "per second", "adapter over it (goal: 0.95)", "CPU µs per operation"]
    row_of = re.compile(r"(\S+)\s+adapter\s+(\d+) /s\s+(bare loop|bare|db_bench)\s+(\d+) /s\s+adapter / (?:bare loop|bare|db_bench) ([0-9.]+)"
                        r"(?:\s+CPU us per operation ([0-9.]+) and ([0-9.]+))?")
    rows = []
    for engine, said in [("rocksdb", "RocksDB"), ("lmdb", "LMDB"), ("redb", "redb"), ("fjall", "fjall"), ("wiredtiger", "WiredTiger")]:
        path = out / f"bare-{engine}.txt"
        for line in path.read_text().splitlines() if path.exists() else []:
            found = row_of.match(line)
            if found:
                row, adapter, beside, alone, ratio, *cpu = found.groups()
                both = "" if cpu[0] is None else " and ".join(f"{float(us):.3g}" for us in cpu)
                beside = "db_bench" if beside == "db_bench" else "a bare loop"
                rows.append([said, row, number(int(adapter)), beside, number(int(alone)), ratio, both])
    write(results, "adapters-and-bare-loops", columns, rows)


def components(out, results):
    """Components that take half a percent of a run at least, those that take most first."""
    names = {"lookup": "lookups", "ycsb-c": "YCSB C", "ycsb-a": "YCSB A", "tpcc": "TPC-C-derived"}
    records = [json.loads(line) for line in (out / "components.jsonl").read_text().splitlines()]
    times = [dict(r["cpu_by_component"]) for r in records]
    totals = [r["cpu_us_per_operation"] for r in records]
    most = {part: max(t.get(part, 0) / total for t, total in zip(times, totals)) for t in times for part in t}
    limits = [r["drive_reads_per_s"] for r in records]
    rows = [
        ["all", *(f"{total:.2f}" for total in totals)],
        ["operations per second", *(number(r["operations_per_s"]) for r in records)],
        ["the drive alone, random reads per second before / after", *(f"{number(a)} / {number(b)}" for a, b in limits)],
    ]
    for part in sorted((part for part in most if most[part] >= 0.005), key=most.get, reverse=True):
        cells = [f"{t[part]:.2f} ({100 * t[part] / total:.0f}%)" if part in t else "" for t, total in zip(times, totals)]
        rows.append([part, *cells])
    write(results, "cpu-by-component", ["CPU µs per operation", *(names[r["workload"]] for r in records)], rows)


def tpcc(out, results):
    columns = ["engine", "transactions/s", "least to most", "New-Order/s", "Isobath's over its", "CPU µs per transaction", "conflicts per transaction",
               "p99.9, ms"]
    runs = {}
    for engine in ["isobath", "rocksdb", "wiredtiger", "lmdb", "redb", "fjall"]:
        lines = (out / f"tpcc-{engine}.jsonl").read_text().splitlines()
        runs[engine] = [json.loads(line) for line in lines]
    rates = lambda engine: [r["operations_per_s"] for r in runs[engine]]
    own = median(rates("isobath"))
    rows = []
    for engine, all_runs in runs.items():
        of = lambda value: median([value(r) for r in all_runs])
        rate = median(rates(engine))
        orders = of(lambda r: next(c["operations_per_s"] for c in r["calls"] if c["operation"] == "new-order"))
        conflicts = of(lambda r: r["tpcc"]["conflicts_count"] / (r["operations_per_s"] * r["duration_s"]))
        rows.append([name(all_runs[0]["setting"]["engine"]), number(rate), f"{number(min(rates(engine)))} to {number(max(rates(engine)))}", number(orders),
                     "" if engine == "isobath" else f"{own / rate:.2f}", number(of(lambda r: r["cpu_us_per_operation"])), f"{conflicts:.2f}",
                     number(of(lambda r: r["latency_us_p999"]) / 1e3)])
        assert not any(r["tpcc"]["violations"] for r in all_runs), engine
    write(results, "tpcc-derived", columns, rows)


def virtual_records(out, part):
    lines = (out / part / "records.jsonl").read_text().splitlines()
    records = [json.loads(line)["record"] for line in lines]
    return sorted(records, key=lambda r: (drive(r), r["data_bytes"], r["setting"]["engine"], -(r["setting"]["space"]["fill_factor"] or 0)))


def drive(r):
    medium = r["setting"]["medium"]
    return f"{medium['profile']}, {100 * medium['over_provisioning']:g}%"


def share_of_drive(r):
    return f"{r['data_bytes'] / (192 << 20):.2f}"


def steady(r):
    return "no" if r["steady_from"] is None else "yes"


def virtual(out, results):
    columns = ["drive, spare flash", "data / drive", "engine", "WA-A", "WA-D", "WA-A × WA-D", "space at most", "capacities written",
               "steady", "modelled updates/s"]
    rows = [
        [drive(r), share_of_drive(r), name(r["setting"]["engine"]), f"{r['wa_a']:.2f}", f"{r['wa_d']:.2f}", f"{r['wa_a'] * r['wa_d']:.2f}",
         f"{r['space_amplification_max']:.2f}", f"{r['capacities_written']:.1f}", steady(r), number(r["modelled_operations_per_s"])]
        for r in virtual_records(out, "virtual")
    ]
    write(results, "virtual-ssd-headline", columns, rows)


def segments(out, results):
    """Beside RocksDB's rows of the table before, which stands in the results."""
    columns = ["drive, spare flash", "data / drive", "fill factor", "segments, KiB", "WA-A", "WA-D", "WA-A × WA-D", "space at most",
               "capacities written", "steady", "RocksDB: WA-A × WA-D", "RocksDB: space", "flash bytes over RocksDB's"]
    before = json.loads((results / "virtual-ssd-headline.json").read_text())["rows"]
    rivals = {(row[0], row[1]): row for row in before if row[2] == "RocksDB"}
    rows = []
    for r in virtual_records(out, "segments-qlc") + virtual_records(out, "segments-tlc"):
        rival = rivals[drive(r), share_of_drive(r)]
        flash = r["wa_a"] * r["wa_d"]
        size = int(dict(r["settings"])["segment_bytes"]) >> 10
        rows.append([drive(r), share_of_drive(r), f"{r['setting']['space']['fill_factor']:g}", number(size), f"{r['wa_a']:.2f}", f"{r['wa_d']:.2f}",
                     f"{flash:.2f}", f"{r['space_amplification_max']:.2f}", f"{r['capacities_written']:.1f}", steady(r),
                     rival[5], rival[6], f"{flash / float(rival[5]):.2f}"])
    write(results, "virtual-ssd-segments", columns, rows)


def main():
    out, results = Path(sys.argv[1]), Path(sys.argv[2])
    for part, marker in [(tails, "tails-lookup.jsonl"), (headline, "headline/records.jsonl"), (bare, "bare-lmdb.txt"),
                         (components, "components.jsonl"), (tpcc, "tpcc-isobath.jsonl"), (virtual, "virtual/records.jsonl"),
                         (segments, "segments-tlc/records.jsonl")]:
        if (out / marker).exists():
            part(out, results)


if __name__ == "__main__":
    main()
