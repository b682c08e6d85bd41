#!/usr/bin/env python3
"""Compares programs over objects in a key-value device with twins that keep one file per object (paper 004, section 4).

    cargo xtask capi install --prefix PREFIX
    cmake -S examples/omp -B BUILD -DCMAKE_PREFIX_PATH=PREFIX && cmake --build BUILD
    LD_LIBRARY_PATH=PREFIX/lib scripts/evaluate_omp.py --build BUILD --isobath target/release/isobath \\
        --directory DIRECTORY --out OUT

DIRECTORY is on the drive to measure. OUT gets report.md, results.csv, the latencies of each row with their distributions as SVG and,
where a section records them, CPU and memory over time. Cold loads drop the page cache first, which takes root; the host's caches stay
as they are."""

import argparse
import csv
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time

# The module beside this script; a checkout stays as it is.
sys.dont_write_bytecode = True
import plot_omp  # noqa: E402

SIZES = (28_000, 225_000)
MODES = ("seq", "pc", "pda_pc")
# Functions that take a lock, wait for one, or give it back: no block, no clock.
LOCK = re.compile(r"(?<![bc])lock|mutex|futex|rwsem|rcu_sync|(?<![a-z])(?:percpu_)?(?:down|up)_(?:read|write)")
# A limited run thrashes where it has more major faults per loaded object than this: its own memory comes back from the drive, ...
FAULTS_PER_OBJECT = 0.1
# ... or where it gives less than this share of what cold loads without a limit give.
THRASHING_SHARE = 0.5
PROCESSORS = len(os.sched_getaffinity(0))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="where cmake built examples/omp")
    parser.add_argument("--isobath", default="isobath", help="the command, for the drive's own limit")
    parser.add_argument("--directory", required=True, help="an empty or new directory on the drive to measure")
    parser.add_argument("--out", required=True, help="a directory for the report")
    parser.add_argument("--only", default="objects,programs,locks,memory,sensitivity", help="sections, with commas")
    parser.add_argument("--programs", default="kmeans,pagerank,matmul", help="programs of the sections programs and sensitivity, with commas")
    parser.add_argument("--full", action="store_true", help="all numbers of threads, five times the objects, twice the matrix")
    parser.add_argument("--longer", type=int, default=1, help="programs run so many times as long: what a controller's search costs is a part of short runs")
    parser.add_argument("--repeats", type=int, default=1, help="sensitivity: the three best fixed choices and the controllers run so many times, in turns; medians count")
    parser.add_argument("--tiny", action="store_true", help="the smallest inputs, warm: shows that everything runs, measures nothing")
    return parser.parse_args()


class Evaluation:
    def __init__(self, arguments):
        self.arguments = arguments
        self.directory = os.path.abspath(arguments.directory)
        self.out = os.path.abspath(arguments.out)
        self.scale = 5 if arguments.full else 1
        self.tiny = arguments.tiny
        self.rows = []
        self.numbered = 0
        self.lines = ["# Objects in a key-value device and in files", ""]
        os.makedirs(self.directory, exist_ok=True)
        os.makedirs(self.out, exist_ok=True)

    # ---- running ------------------------------------------------------------

    def program(self, name, backend):
        return os.path.join(self.arguments.build, f"{name}_{backend}")

    def where(self, name, backend, options=""):
        """A store, or a directory, of that name."""
        if backend == "kv":
            return f"{os.path.join(self.directory, name)}.iso?create=yes{options}"
        return os.path.join(self.directory, name) + options

    def run(self, command, group=None, sample=None):
        """Runs a program; its numbers, with processor seconds and the most memory that it had."""
        begin = time.monotonic()

        def enter():
            if group:
                with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as procs:
                    procs.write(str(os.getpid()))

        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=enter,
        )
        sampler = Sampler(child.pid, sample, group) if sample else None
        output, errors = [], []
        readers = [threading.Thread(target=lambda: output.append(child.stdout.read()))]
        readers.append(threading.Thread(target=lambda: errors.append(child.stderr.read())))
        for reader in readers:
            reader.start()
        _, status, usage = os.wait4(child.pid, 0)
        for reader in readers:
            reader.join()
        child.returncode = os.waitstatus_to_exitcode(status)
        if sampler:
            sampler.end()
        if child.returncode != 0:
            raise SystemExit(f"error: {' '.join(command)}: {''.join(errors)}{child.returncode}")
        found = {}
        for line in "".join(output).splitlines():
            name, _, value = line.partition(" ")
            try:
                found[name] = float(value)
            except ValueError:
                found[name] = value
        found["run_s"] = time.monotonic() - begin
        found["cpu_s"] = usage.ru_utime + usage.ru_stime
        found["utilisation_percent"] = 100 * found["cpu_s"] / (found["run_s"] * PROCESSORS)
        found["max_rss_mib"] = usage.ru_maxrss / 1024
        found["major_faults"] = usage.ru_majflt
        return found

    def drive_limit(self, size, reads=True):
        """MiB/s that the drive gives for I/Os of so many bytes, now; None if it could not be measured."""
        duration, bytes_ = ("100ms", "16MiB") if self.tiny else ("2s", "256MiB")
        command = [self.arguments.isobath, "raw", "--json", "-q", "--duration", duration, "--bytes", bytes_]
        command += ["--scratch", os.path.join(self.directory, "limit.scratch")]
        command += ["--page", str((size + 4095) // 4096 * 4096), "--depth", "64", "--read", "100" if reads else "0"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"note: the drive's limit was not measured: {done.stderr.strip()}", file=sys.stderr)
            return None
        return rate_of(done.stdout)

    def count(self, objects):
        """So many objects; with --tiny a hundredth."""
        return max(20, objects // 100) if self.tiny else objects * self.scale

    def make_cold(self):
        if self.tiny:
            return
        os.sync()
        try:
            with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
                file.write("3")
            return "guest-cold"
        except OSError:
            return "cache not dropped"

    # ---- reporting ----------------------------------------------------------

    def table(self, title, rows, columns):
        self.lines += [f"## {title}", "", "| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
        for row in rows:
            self.lines.append("| " + " | ".join(show(row.get(column, "")) for column in columns) + " |")
        self.lines.append("")
        self.rows += [{"section": title, **row} for row in rows]
        self.write()
        print("\n".join(self.lines[-len(rows) - 4 :]), flush=True)

    def remark(self, text):
        self.lines += [text, ""]
        self.write()
        print(text, flush=True)

    def plot(self, name, charts):
        """Draws charts to an SVG beside the report."""
        with open(os.path.join(self.out, name), "w", encoding="utf-8") as file:
            file.write(plot_omp.svg(charts))
        self.lines += [f"![{name}]({name})", ""]
        self.write()

    def plot_latencies(self, name, rows):
        """Distributions of what each access took, of the rows in which each was timed; a chart for each number of threads."""
        charts = []
        for threads in sorted({row["threads"] for row in rows}):
            series = []
            for row in rows:
                if row["threads"] != threads or row["PDA"] != 1:
                    continue
                with open(os.path.join(self.out, row["latencies"]), encoding="utf-8") as file:
                    took = [float(line) for line in file]
                series.append((row["objects"], plot_omp.distribution(took)))
            charts.append(plot_omp.Chart(f"share of accesses, {threads} threads, PDA 1", series, high=1.0, unit="µs", is_log=True))
        self.plot(name, charts)

    def write(self):
        with open(os.path.join(self.out, "report.md"), "w", encoding="utf-8") as file:
            file.write("\n".join(self.lines))
        names = []
        for row in self.rows:
            names += [name for name in row if name not in names]
        with open(os.path.join(self.out, "results.csv"), "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(self.rows)

    # ---- sections -----------------------------------------------------------

    def access(self, backend, operation, size, count, threads, accesses, options="", passes=1):
        command = [self.program("access", backend), self.where(f"objects{size}", backend, options)]
        command += ["--operation", operation, "--size", str(size), "--count", str(count), "--passes", str(passes)]
        self.numbered += 1
        command += ["--latencies", os.path.join(self.out, f"{self.numbered:03}.us")]
        command += ["--part", str(1 if accesses == 1 else 4 * accesses)]
        command += [f"--isobath-omp-pc={threads}", f"--isobath-omp-pc-max={threads}"]
        command += [f"--isobath-omp-pda={accesses}", f"--isobath-omp-pda-max={accesses}"]
        return {"latencies": f"{self.numbered:03}.us", **self.run(command)}

    def remove(self, name):
        for path in (os.path.join(self.directory, name), os.path.join(self.directory, f"{name}.iso")):
            if os.path.isdir(path):
                shutil.rmtree(path)
            elif os.path.exists(path):
                os.remove(path)

    def objects(self):
        counts = (1, 2, 4, 8, 16, 32) if self.arguments.full else (2,) if self.tiny else (1, 4, 32)
        for size in SIZES:
            count = self.count(4000 if size < 100_000 else 600)
            columns = ["objects", "threads", "PDA", "objects_per_s", "mib_per_s", "p50_us", "p90_us", "p99_us", "cpu_s"]
            rows = []
            for threads in counts:
                for label, backend, options, accesses in STORES:
                    self.remove(f"objects{size}")
                    found = self.access(backend, "store", size, count, threads, accesses, options)
                    rows.append({**found, "objects": label, "threads": threads, "PDA": accesses})
            self.table(f"Stores of {size} bytes", rows, columns)
            self.plot_latencies(f"stores-{size}.svg", rows)
            self.note_limit(size, reads=False)
            self.remove(f"objects{size}")
            for _, backend, options, _ in (STORES[0], STORES[1]):
                self.access(backend, "store", size, count, 8, 1, options)
            for state in ("guest-cold", "warm"):
                rows = []
                for threads in counts:
                    for label, backend, options, accesses in LOADS[state]:
                        state_now = self.make_cold() if state == "guest-cold" else state
                        passes = 1 if state == "guest-cold" else 3
                        found = self.access(backend, "load", size, count, threads, accesses, options, passes)
                        rows.append({**found, "objects": label, "threads": threads, "PDA": accesses, "state": state_now})
                self.table(f"Loads of {size} bytes, {state}", rows, columns)
                self.plot_latencies(f"loads-{size}-{state}.svg", rows)
            self.note_limit(size)
            self.remove(f"objects{size}")

    def note_limit(self, size, reads=True):
        limit = self.drive_limit(size, reads)
        if limit:
            what = "reads" if reads else "writes without flushes"
            self.remark(f"The drive's own limit in that minute, random {what} of {size} bytes, 64 at a time: {limit:.0f} MiB/s.")

    def make_inputs(self, backend, options=""):
        """The programs' inputs; for each program its arguments. A run takes seconds: controllers measure every 50 ms."""
        graph = os.path.join(self.directory, "graph.txt")
        images = self.where("images", backend, options)
        self.remove("images")
        self.remove("graph")
        self.remove("matrix")
        self.run([self.program("generate", backend), images, "images", str(self.count(2000))])
        if not os.path.exists(graph):
            self.run([self.program("generate", backend), graph, "graph", "10" if self.tiny else "18"])
        matrix = self.where("matrix", backend, options)
        longer = max(1, self.arguments.longer)
        # The work grows with the cube of the tiles, and each is read again for each of a row and a column.
        tiles = 2 if self.tiny else round(20 * (2 if self.arguments.full else 1) * longer ** (1 / 3))
        self.run([self.program("generate", backend), matrix, "matrix", str(tiles), "--tile", "16" if self.tiny else "96"])
        programs = {
            "kmeans": [images, "--iterations", str(4 * longer), "--tolerance", "0"],
            "pagerank": [self.where("graph", backend, options), "--graph", graph, "--parts", "8" if self.tiny else "512"],
            "matmul": [matrix],
        }
        if longer > 1:
            programs["pagerank"] += ["--iterations", str(50 * longer), "--tolerance", "0"]
        return {name: programs[name] for name in self.arguments.programs.split(",")}

    def programs(self):
        rows, hashes = [], {}
        columns = ["program", "objects", "mode", "elapsed_s", "cpu_s", "utilisation_percent", "wait_s", "compute_s", "store_s"]
        columns += ["max_rss_mib"]
        for label, backend, options in PROGRAMS_ON:
            inputs = self.make_inputs(backend, options)
            for name, arguments in inputs.items():
                for mode in MODES:
                    self.make_cold()
                    command = [self.program(name, backend), *arguments, f"--isobath-omp-mode={mode}"]
                    found = {**self.run(command), "objects": label}
                    expected = hashes.setdefault(name, found["hash"])
                    if found["hash"] != expected:
                        raise SystemExit(f"error: {name} {mode} {backend}: other results than before")
                    rows.append({**found, "program": name, "mode": mode})
        self.table("Programs by mode, guest-cold (Table 1, Fig. 8)", rows, columns)
        self.remark(f"Utilisation is processor time by the time of the whole run and {PROCESSORS} processors.")

    def locks(self):
        if shutil.which("perf") is None:
            self.remark("Time in locks: not measured, there is no perf here.")
            return
        rows = []
        size, count = SIZES[0], self.count(1000)
        for label, backend, options, _ in (STORES[0], STORES[1]):
            for operation in ("store", "load"):
                if operation == "store":
                    self.remove(f"objects{size}")
                command = [self.program("access", backend)]
                command += [self.where(f"objects{size}", backend, options), "--operation", operation]
                command += ["--size", str(size), "--count", str(count), "--passes", "1" if operation == "store" else "5"]
                command += ["--isobath-omp-pc=32", "--isobath-omp-pc-max=32", "--isobath-omp-pda=1", "--isobath-omp-pda-max=1"]
                row = {"objects": label, "operation": operation, "threads": 32}
                row["lock_code_percent"] = self.time_in_lock_code(command)
                if operation == "store":
                    self.remove(f"objects{size}")
                row["kernel_lock_wait_s"] = self.kernel_lock_waits(command)
                if operation == "store":
                    self.remove(f"objects{size}")
                rows.append({**row, **self.futex_waits(command)})
            self.remove(f"objects{size}")
        columns = ["objects", "operation", "threads", "lock_code_percent", "kernel_lock_wait_s", "futex_calls", "futex_s", "run_s"]
        self.table("Locks (Fig. 7)", rows, columns)
        self.remark(
            "`lock_code_percent` is the share of the processors' time in functions of locks (`perf record`). The others are seconds of all "
            "threads together, each in a run of its own: `kernel_lock_wait_s` waiting for the kernel's locks (`perf lock`), `futex_s` in "
            "futex calls (`strace`, which slows them), where threads also wait for work, for I/O of others and for the end of a parallel "
            "region: an upper bound of what locks of the program and its libraries cost. `run_s` is how long that last run was."
        )

    def time_in_lock_code(self, command):
        """Percent of a program's processor time."""
        data = os.path.join(self.out, "perf.data")
        self.run(["perf", "record", "-q", "-e", "cpu-clock", "-o", data, "--", *command])
        report = ["perf", "report", "-i", data, "--stdio", "-q", "-F", "overhead,symbol", "--percent-limit", "0"]
        text = subprocess.run(report, capture_output=True, text=True, check=False).stdout
        os.remove(data)
        return lock_code_percent(text)

    def kernel_lock_waits(self, command):
        """Seconds that threads waited for locks of the kernel; "" where it does not tell."""
        data = os.path.join(self.out, "perf.data")
        record = ["perf", "lock", "record", "-o", data, "--", *command]
        waited = ""
        if subprocess.run(record, capture_output=True, check=False).returncode == 0:
            report = ["perf", "lock", "contention", "-i", data]
            done = subprocess.run(report, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                # Which of both it prints to depends on its version.
                waited = contention_seconds(done.stdout + done.stderr)
        if os.path.exists(data):
            os.remove(data)
        return waited

    def futex_waits(self, command):
        """Calls of futex, and seconds of all threads in them; nothing where there is no strace."""
        if shutil.which("strace") is None:
            return {}
        calls = os.path.join(self.out, "futex.txt")
        found = self.run(["strace", "-f", "-c", "-w", "-e", "trace=futex", "-o", calls, *command])
        with open(calls, encoding="utf-8") as file:
            seconds, count = futex_seconds(file.read())
        os.remove(calls)
        return {"futex_calls": count, "futex_s": seconds, "run_s": found["run_s"]}

    def memory(self):
        size, count = SIZES[1], self.count(3200)
        # A device needs some memory, however little it holds.
        limit = max(size * count // 4, 64 << 20) if self.tiny else size * count // 4
        group = control_group(limit)
        if group is None:
            self.remark("Under a memory limit: not measured, no control group could be made here.")
            return
        rows, charts = [], []
        try:
            for label, backend, options in (("device", "kv", "&pool=16MiB"), ("files, synced", "files", "")):
                self.remove(f"objects{size}")
                self.access(backend, "store", size, count, 8, 1, options)
                cold = None
                # Once cold, then three times each without and with the limit; of those the last one counts.
                for limited, passes in ((False, 1), (False, 3), (True, 3)):
                    self.make_cold()
                    command = [self.program("access", backend), self.where(f"objects{size}", backend, options)]
                    command += ["--operation", "load", "--size", str(size), "--count", str(count), "--passes", str(passes)]
                    command += ["--part", "32", "--isobath-omp-pc=4", "--isobath-omp-pc-max=4"]
                    sample = os.path.join(self.out, f"memory-{backend}-{'limited' if limited else 'free'}-{passes}.csv")
                    found = self.run(command, group=group if limited else None, sample=sample)
                    cold = cold or found["objects_per_s"]
                    row = {**found, "objects": label, "limit_mib": limit / 1048576 if limited else "", "passes": passes}
                    row["faults_per_object"] = found["major_faults"] / (count * passes)
                    if limited:
                        row["thrashing"] = thrashes(found["objects_per_s"], cold, row["faults_per_object"])
                    rows.append(row)
                    if passes > 1:
                        what = f"{label}, {f'limit {limit / 1048576:.0f} MiB' if limited else 'no limit'}"
                        charts += plot_omp.use_charts(sample, what)
                self.remove(f"objects{size}")
        finally:
            os.rmdir(group)
        title = f"Loads of {size * count / 1048576:.0f} MiB under a memory limit"
        columns = ["objects", "limit_mib", "passes", "objects_per_s", "mib_per_s", "cpu_s", "max_rss_mib", "major_faults", "thrashing"]
        self.table(title, rows, columns)
        self.plot("memory.svg", charts)
        self.remark(
            f"Thrashing: yes where a limited run has more than {FAULTS_PER_OBJECT} major faults for each loaded object, or gives less than "
            f"{THRASHING_SHARE:.0%} of what one cold pass without a limit gives."
        )

    def sensitivity(self):
        size, count = SIZES[0], self.count(2000)
        self.remove(f"objects{size}")
        self.access("kv", "store", size, count, 8, 1)
        rows = []
        for depth in (1, 2, 8, 64):
            self.make_cold()
            found = self.access("kv", "load", size, count, 2, 32, f"&pool=16MiB&queue_depth={depth}")
            rows.append({**found, "queue_depth": depth})
        self.table("Sensitivity to the queue depth, guest-cold", rows, ["queue_depth", "objects_per_s", "mib_per_s"])
        self.remove(f"objects{size}")
        inputs = self.make_inputs("kv")
        fixed = [(pc, pda) for pc in (1, 2, 3, 4) for pda in (1, 2, 4, 8, 16, 32, 64)]
        if self.tiny:
            fixed = [(1, 1), (2, 2)]
        for name, arguments in inputs.items():
            choices = {}
            for pc, pda in fixed:
                options = [f"--isobath-omp-pc={pc}", f"--isobath-omp-pc-max={pc}", f"--isobath-omp-pda={pda}"]
                choices[f"PC {pc}, PDA {pda}"] = options
            runs = {choice: [self.choice(name, arguments, options)] for choice, options in choices.items()}
            # The best of many single runs is the luckiest one, too: the three best run again, as often as the controllers.
            elapsed = lambda choice: statistics.median(found["elapsed_s"] for found in runs[choice])
            finalists = sorted(runs, key=elapsed)[:3]
            repeats = max(1, self.arguments.repeats)
            if repeats > 1:
                runs.update({choice: [] for choice in finalists})
            for controller in ("kv-ins", "kv-mod"):
                choices[controller] = [f"--isobath-omp-controller={controller}"]
                choices[controller].append(f"--isobath-omp-pc-max={max(pc for pc, _ in fixed)}")
                runs[controller] = []
            for at in range(repeats):
                for choice in [*finalists, "kv-ins", "kv-mod"]:
                    if len(runs[choice]) > at:
                        continue
                    log = os.path.join(self.out, f"{name}-{choice}-{at}.csv".replace(", ", "-").replace(" ", ""))
                    if os.path.exists(log):
                        os.remove(log)
                    runs[choice].append(self.choice(name, arguments, [*choices[choice], f"--isobath-omp-log={log}"]))
            best = min(elapsed(choice) for choice in finalists)
            rows = []
            for choice, found in runs.items():
                cpu = statistics.median(one["cpu_s"] for one in found)
                row = {"choice": choice, "runs": len(found), "elapsed_s": elapsed(choice), "cpu_s": cpu}
                rows.append({**row, "to_best_fixed": elapsed(choice) / best})
            self.table(f"{name}: fixed choices and controllers, guest-cold", rows, ["choice", "runs", "elapsed_s", "cpu_s", "to_best_fixed"])
            if not self.tiny:
                self.remark(edge_of(fixed, min(finalists, key=elapsed)))

    def choice(self, name, arguments, options):
        self.make_cold()
        return self.run([self.program(name, "kv"), *arguments, *options])


# Label, backend, options of the place, PDA.
STORES = [
    ("device", "kv", "", 1),
    ("files, synced", "files", "", 1),
    ("files, O_DIRECT and synced", "files", "?io=direct", 1),
    ("files, not durable", "files", "?io=buffered", 1),
    ("device", "kv", "", 16),
    ("files, synced", "files", "", 16),
]
# Label, backend, options of the place. Files are kept by the page cache once they were read; a device keeps objects where it is given memory.
PROGRAMS_ON = [
    ("device", "kv", ""),
    ("device, value_cache=1GiB", "kv", "&value_cache=1GiB"),
    ("files", "files", ""),
]
LOADS = {
    "guest-cold": [
        ("device", "kv", "&pool=16MiB", 1),
        ("files", "files", "", 1),
        ("files, O_DIRECT", "files", "?io=direct", 1),
        ("device", "kv", "&pool=16MiB", 16),
        ("files", "files", "", 16),
    ],
    # The pool keeps no chunks of large values; a cache of values does, and has room for all objects of --full.
    "warm": [
        ("device", "kv", "&pool=1GiB", 1),
        ("device, value_cache=640MiB", "kv", "&pool=64MiB&value_cache=640MiB", 1),
        ("files", "files", "", 1),
    ],
}


class Sampler:
    """Writes a process's processor seconds and memory over time, and its control group's memory with the page cache."""

    def __init__(self, pid, path, group):
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self.sample, args=(pid, path, group))
        self.thread.start()

    def sample(self, pid, path, group):
        begin, ticks = time.monotonic(), os.sysconf("SC_CLK_TCK")
        with open(path, "w", encoding="utf-8") as file:
            file.write("at_s,cpu_s,rss_mib,major_faults,group_mib\n")
            while not self.ends.wait(0.1):
                try:
                    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
                        fields = stat.read().rpartition(")")[2].split()
                except OSError:
                    return
                cpu = (int(fields[11]) + int(fields[12])) / ticks
                memory = int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1048576
                file.write(f"{time.monotonic() - begin:.2f},{cpu:.2f},{memory:.1f},{fields[9]},{used_by(group):.1f}\n")

    def end(self):
        self.ends.set()
        self.thread.join()


def control_group(limit):
    """A new control group of at most so many bytes; None where none can be made."""
    places = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
    for root, knob in places:
        group = os.path.join(root, f"evaluate-omp-{os.getpid()}")
        try:
            os.mkdir(group)
        except OSError:
            continue
        try:
            with open(os.path.join(group, knob), "w", encoding="ascii") as file:
                file.write(str(limit))
            return group
        except OSError:
            os.rmdir(group)
    return None


def used_by(group):
    """MiB that a control group uses, page cache included; 0 without one."""
    for name in ("memory.current", "memory.usage_in_bytes") if group else ():
        try:
            with open(os.path.join(group, name), encoding="ascii") as file:
                return int(file.read()) / 1048576
        except OSError:
            continue
    return 0.0


def lock_code_percent(text):
    """The share of functions of locks in what `perf report -F overhead,symbol` prints."""
    percent = 0.0
    for line in text.splitlines():
        share, _, symbol = line.strip().partition("%")
        if LOCK.search(symbol.lower()):
            percent += float(share)
    return percent


def contention_seconds(text):
    """The sum of the column `total wait` of `perf lock contention`."""
    units = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
    # Times contended, then total, longest and mean wait, each with its unit.
    line = re.compile(r"\s*\d+\s+([\d.]+)\s+(ns|us|ms|s|m)\s+[\d.]+\s+\w+\s+[\d.]+\s+\w+\s")
    found = [line.match(text) for text in text.splitlines()]
    return sum(float(match[1]) * units[match[2]] for match in found if match)


def futex_seconds(text):
    """Seconds and calls of futex in what `strace -c` prints."""
    for line in text.splitlines():
        fields = line.split()
        if fields and fields[-1] == "futex":
            return float(fields[1]), int(fields[3])
    return 0.0, 0


def thrashes(rate, cold, faults_per_object):
    return "yes" if faults_per_object > FAULTS_PER_OBJECT or rate < THRASHING_SHARE * cold else "no"


def edge_of(fixed, best):
    """Whether the search for the best fixed choice ended at the end of what it tried."""
    pc, pda = (int(part.split()[1]) for part in best.split(", "))
    ends = []
    if pda in (min(pda for _, pda in fixed), max(pda for _, pda in fixed)):
        ends.append("PDA")
    if pc in (min(pc for pc, _ in fixed), max(pc for pc, _ in fixed)):
        ends.append("PC")
    return f"The best fixed choice, {best}, is {'at the end of what was tried of ' + ' and '.join(ends) if ends else 'inside what was tried'}."


def rate_of(text):
    """MiB/s of the last measurement in `isobath raw --json`."""
    rate = None
    for line in text.splitlines():
        for name, value in flat(json.loads(line)):
            if name == "mb_per_s":
                rate = value * 1e6 / 1048576
    return rate


def flat(value, name=""):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from flat(inner, name)
    elif isinstance(value, (int, float)):
        yield name, value


def show(value):
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}"
    return str(value)


def main():
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    arguments = parse_arguments()
    evaluation = Evaluation(arguments)
    for section in arguments.only.split(","):
        if section not in ("objects", "programs", "locks", "memory", "sensitivity"):
            sys.exit(f"error: --only: {section} is no section")
        getattr(evaluation, section)()


if __name__ == "__main__":
    main()
