"""Advice: settings for a workload on a profiled drive."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from isobath._store import PathLike
from isobath.lab._command import documents, words
from isobath.lab._drive import Profile, _file_of
from isobath.lab._frames import flat, frame, pandas

if TYPE_CHECKING:
    from pandas import DataFrame

_ENGINES = {"isobath": "Isobath", "rocksdb": "RocksDB"}


class Advice:
    """What `isobath advise` says of a workload."""

    def __init__(self, document: dict[str, Any]) -> None:
        #: The workload, as it was understood.
        self.workload: dict[str, Any] = document["workload"]
        #: What the command printed.
        self.data: dict[str, Any] = document["advice"]

    @property
    def predicted(self) -> DataFrame:
        """A row for each engine: rates with their interval, latencies, amplification, years."""
        rows = []
        for name, title in _ENGINES.items():
            row = {"engine": title} | flat(self.data[name]["predicted"])
            low, high = row.pop("operations_per_s_range", (None, None))
            row |= {"operations_per_s_low": low, "operations_per_s_high": high}
            rows.append(row)
        return frame(rows)

    @property
    def settings(self) -> DataFrame:
        """A row for each setting: engine, value, and why."""
        return frame(
            {"engine": title} | reason
            for name, title in _ENGINES.items()
            for reason in self.data[name]["reasons"]
        )

    @property
    def constants(self) -> DataFrame:
        """The CPU constants, and where they come from."""
        return frame(self.data["constants"])

    @property
    def options(self) -> dict[str, Any]:
        """The settings of Isobath for `isobath.Store`."""
        found = self.data["isobath"]["settings"]
        options = {name: found[name] for name in _OPTIONS if found.get(name) is not None}
        if "cleaning" in found:
            options["cleaning_policy"] = str(found["cleaning"]).replace("_", "-")
        return options


_OPTIONS = (
    "workers",
    "depth_per_worker",
    "tasks_per_worker",
    "segment_bytes",
    "fill_factor",
    "pool_bytes",
)


def advise(
    profile: Profile | PathLike,
    workload: Mapping[str, Any] | PathLike,
    *,
    command: PathLike | None = None,
    **options: Any,
) -> Advice:
    """`isobath advise`: settings and predictions for a workload.

    The workload is a TOML file, or its tables as dictionaries (`docs/advise.md` has the fields).
    """
    pandas()
    with _file_of(profile) as file:
        if not isinstance(workload, Mapping):
            arguments = [str(workload), *words(options)]
            (document,) = documents("advise", file, *arguments, command=command)
            return Advice(document)
        with tempfile.NamedTemporaryFile("w", prefix="isobath-", suffix=".toml") as written:
            written.write(_toml(workload))
            written.flush()
            arguments = [written.name, *words(options)]
            (document,) = documents("advise", file, *arguments, command=command)
            return Advice(document)


def _toml(workload: Mapping[str, Any]) -> str:
    lines = []
    for name, table in workload.items():
        if not isinstance(table, Mapping):
            raise TypeError(f"the workload's {name} is a dictionary, not {type(table).__name__}")
        lines.append(f"[{name}]")
        # Strings, numbers and booleans are the same in JSON.
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"
