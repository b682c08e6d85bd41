"""Simulations of cleaning and of overlays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isobath._store import PathLike
from isobath.lab._command import documents, words
from isobath.lab._frames import frame, pandas

if TYPE_CHECKING:
    from pandas import DataFrame


def sim_clean(*, command: PathLike | None = None, **options: Any) -> DataFrame:
    """`isobath sim clean`: a row for each policy, workload, fill factor and sort buffer.

    `wamp_series_ratio` and `emptiness_histogram_count` are lists. A run that was impossible has a
    sentence in `error`, and no measurements.
    """
    pandas()
    return frame(documents("sim", "clean", *words(options), command=command))


def sim_overlay(*, command: PathLike | None = None, **options: Any) -> DataFrame:
    """`isobath sim overlay`: a row for each design, workload and space."""
    pandas()
    return frame(documents("sim", "overlay", *words(options), command=command))


def sim_analysis(*, command: PathLike | None = None, **options: Any) -> dict[str, DataFrame]:
    """`isobath sim analysis`: its tables by name.

    Without workloads these are `equation-4` (Table 1 of paper 003) and `hot-cold` (Table 2), with
    workloads or traces `bound`.
    """
    pandas()
    tables: dict[str, list[dict[str, Any]]] = {}
    for row in documents("sim", "analysis", *words(options), command=command):
        tables.setdefault(row.pop("table", "rows"), []).append(row)
    return {name: frame(rows) for name, rows in tables.items()}
