"""What a second worker gives a sweep, beside two bare processes.

    pip install ./python[lab,dask]
    ISOBATH_COMMAND=target/release/isobath python python/benchmarks/sweeps.py

Each turn runs the same simulations with one worker and with two, and with as many bare processes.
Starting the workers is not counted. The processors bound all of it: two bare processes show what
the second one gives.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask
import distributed
from isobath.lab import find
from isobath.lab.sweep import sweep

POINT: Any = {"policy": "life-table", "workload": "zipf:0.99", "fill": 0.8}


def swept(workers: int, points: int, fixed: Any, options: Any) -> float:
    """Seconds of a sweep."""
    cluster: Any = distributed.LocalCluster
    client: Any = distributed.Client
    with cluster(n_workers=workers, dashboard_address=None, **options) as made, client(made) as one:
        # What a worker imports is not part of it.
        with tempfile.TemporaryDirectory() as place:
            small = fixed | {"device": "64MiB", "writes": 1}
            sweep("sim_clean", {"seed": range(2 * workers)}, place, fixed=small, client=one)
        with tempfile.TemporaryDirectory() as place:
            begun = time.perf_counter()
            sweep("sim_clean", {"seed": range(points)}, place, fixed=fixed, client=one)
            return time.perf_counter() - begun


def bare(processes: int, points: int, fixed: Any) -> float:
    """Seconds of the commands alone."""
    words = [f"--{name}={value}" for name, value in fixed.items()]

    def run(seed: int) -> None:
        command = [find(), "sim", "clean", "--threads=1", "--json", f"--seed={seed}", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    with ThreadPoolExecutor(processes) as pool:
        begun = time.perf_counter()
        list(pool.map(run, range(points)))
        return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=30)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device", default="512MiB")
    parser.add_argument("--writes", type=int, default=10)
    parser.add_argument("--saturation", type=float, default=1.0, help="tasks per thread of a worker")
    parser.add_argument("--threads", type=int, default=1, help="of one worker, instead of workers")
    arguments = parser.parse_args()
    fixed = POINT | {"device": arguments.device, "writes": arguments.writes}
    print(f"{'':14} {'1':>8} {'2':>8} {'2 over 1':>9}")
    with dask.config.set({"distributed.scheduler.worker-saturation": arguments.saturation}):
        for _ in range(arguments.turns):
            points = arguments.points
            one = swept(1, points, fixed, {"threads_per_worker": 1})
            if arguments.threads > 1:
                two = swept(1, points, fixed, {"threads_per_worker": arguments.threads})
            else:
                two = swept(2, points, fixed, {"threads_per_worker": 1})
            print(f"{'a sweep':14} {one:6.2f} s {two:6.2f} s {one / two:9.2f}")
            one, two = bare(1, points, fixed), bare(2, points, fixed)
            print(f"{'bare processes':14} {one:6.2f} s {two:6.2f} s {one / two:9.2f}", flush=True)


if __name__ == "__main__":
    main()
