"""Benchmarks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isobath._errors import InvalidArgument
from isobath._store import PathLike
from isobath.lab._command import documents, words
from isobath.lab._frames import flat, frame, pandas, scalars

if TYPE_CHECKING:
    from pandas import DataFrame

#: Columns that name a run in the tables of its parts.
_OF_RUN = {
    "row": "row",
    "round": "round",
    "setting_engine": "engine",
    "setting_workload": "workload",
    "config_hash": "config_hash",
}


class Benchmark:
    """The runs of a benchmark, as `isobath bench` prints them or a campaign keeps them."""

    def __init__(self, found: Iterable[dict[str, Any]]) -> None:
        everything = list(found)
        #: The records of the runs.
        self.records = [one for one in everything if "setting" in one]
        #: Other documents, such as the ratios of `bench compare`.
        self.others = [one for one in everything if "setting" not in one]

    @property
    def runs(self) -> DataFrame:
        """A row for each run, with the columns of `records.csv`; ratios and rates are numbers."""
        return frame(run_row(record) for record in self.records)

    @property
    def operations(self) -> DataFrame:
        """A row for each run and kind of operation."""
        return self._parts(lambda record: record["calls"])

    @property
    def samples(self) -> DataFrame:
        """The runs over time: a row for each sample, cumulative since the run's beginning.

        `operations_per_s` and write amplification are those since the sample before.
        """
        rows = self._parts(lambda record: record["series"]["samples"])
        if rows.empty:
            return rows
        runs = rows.groupby("run")
        seconds = runs["seconds"].diff().fillna(rows["seconds"])
        operations = runs["operations"].diff().fillna(rows["operations"])
        rows["operations_per_s"] = operations / seconds.where(seconds > 0)
        written = rows["user_bytes"].where(rows["user_bytes"] > 0)
        rows["wa_a"] = rows["host_bytes"] / written
        sent = rows["host_bytes"].where(rows["host_bytes"] > 0)
        rows["wa_d"] = pandas().to_numeric(rows["nand_bytes"]) / sent
        return rows

    @property
    def latencies(self) -> DataFrame:
        """The distribution of the calls' latencies: the share of calls at or below each."""
        return self._parts(
            lambda record: (
                {"latency_us": latency, "share": share}
                for latency, share in record.get("latency_cdf") or ()
            )
        )

    @property
    def ratios(self) -> DataFrame:
        """The ratios of `bench compare` with their intervals of 95%, and what they allow to say."""
        return frame(one for one in self.others if "ratio" in one)

    def _parts(self, of: Callable[[dict[str, Any]], Iterable[dict[str, Any]]]) -> DataFrame:
        rows = []
        for number, record in enumerate(self.records):
            row = flat(record)
            names = {"run": number} | {name: row.get(key) for key, name in _OF_RUN.items()}
            rows += [names | flat(part) for part in of(record)]
        return frame(rows)

    def __add__(self, other: Benchmark) -> Benchmark:
        everything = [*self.records, *self.others, *other.records, *other.others]
        return Benchmark(everything)

    def __repr__(self) -> str:
        return f"<isobath.lab.Benchmark of {len(self.records)} runs>"


def run_row(record: dict[str, Any]) -> dict[str, Any]:
    """A run as a row: what has parts of its own is left out."""
    row = scalars(flat(record))
    row["engine"], row["workload"] = row.get("setting_engine"), row.get("setting_workload")
    return row


def bench(
    verb: str = "run",
    *arguments: str,
    command: PathLike | None = None,
    directory: PathLike | None = None,
    **options: Any,
) -> Benchmark:
    """`isobath bench VERB`: one run by default; `bench("compare", "isobath", "redb", repeats=5)`.

    An engine makes its files in `directory`, or where `path` says, and removes them.
    """
    pandas()
    printed = documents(
        "bench", verb, *map(str, arguments), *words(options), command=command, directory=directory
    )
    return Benchmark(one for one in printed if isinstance(one, dict))


def read_campaign(directory: PathLike) -> Benchmark:
    """The runs that `out=DIRECTORY` of a benchmark has kept."""
    records = []
    path = Path(directory) / "records.jsonl"
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise InvalidArgument(f"{path}, line {number}: {error}") from error
        records.append(record.get("record", record))
    return Benchmark(records)
