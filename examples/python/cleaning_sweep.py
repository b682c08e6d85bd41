"""A sweep of 500 simulations of cleaning policies on 2 workers, as a heat map.

    pip install 'isobath[lab,dask]'
    cargo build --release -p isobath-cli && export ISOBATH_COMMAND=target/release/isobath
    python examples/python/cleaning_sweep.py sweep --workers 2

5 policies, 10 fill factors and 10 skews are 500 points. The sweep may be killed at any time; the
same command goes on with it. DIRECTORY gets results.parquet and heat-map.png.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy
import pandas
from distributed import Client
from isobath.lab import figures
from isobath.lab.sweep import sweep

POLICIES = ["age", "greedy", "cost-benefit", "mdc", "life-table"]


def main(arguments: list[str] | None = None, client: Client | None = None) -> pandas.DataFrame:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="256MiB", help="size of the simulated device")
    # So that a device of this size has 512 of them: with few, policies run out of free ones.
    parser.add_argument("--segment", default="512KiB", help="size of a segment")
    parser.add_argument("--writes", type=float, default=10, help="length in device sizes")
    parser.add_argument("--fills", type=int, default=10)
    parser.add_argument("--skews", type=int, default=10)
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    given = parser.parse_args(arguments)
    grid = {
        "policy": given.policies,
        "fill": numpy.linspace(0.5, 0.9, given.fills).round(3),
        "workload": [f"zipf:{skew:.2f}" for skew in numpy.linspace(0, 1.35, given.skews)],
    }
    begun = time.perf_counter()
    rows = sweep(
        "sim_clean",
        grid,
        given.directory,
        fixed={"device": given.device, "segment": given.segment, "writes": given.writes},
        workers=given.workers,
        client=client,
        errors="report",
    )
    print(f"{len(rows)} simulations in {time.perf_counter() - begun:.0f} s")
    rows["skew"] = rows["workload"].str.removeprefix("zipf:").astype(float)
    measured = rows.dropna(subset="wamp_steady_ratio")
    if len(measured) < len(rows):
        # They are blank in the map.
        failed = rows.drop(measured.index)
        print(f"{len(failed)} of them failed, the first: {failed['error'].iloc[0]}")
    best = rows.loc[measured.groupby(["fill", "skew"])["wamp_steady_ratio"].idxmin()]
    print(best["policy"].value_counts().to_string())
    drawn = figures.heat_map(rows, "skew", "fill", "wamp_steady_ratio", by="policy", title="Wamp,")
    drawn.savefig(given.directory / "heat-map.png")
    return rows


if __name__ == "__main__":
    main()
