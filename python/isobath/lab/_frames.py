"""JSON documents as DataFrames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from isobath._needs import module

if TYPE_CHECKING:
    from pandas import DataFrame


def pandas() -> Any:
    """The package pandas."""
    return module("pandas", "lab", "isobath.lab")


def flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A row: nested objects have their names in front, `latency_us_p99`; lists stay lists."""
    row: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, Mapping):
            row.update(flat(value, f"{prefix}{name}_"))
        else:
            row[prefix + name] = value
    return row


def scalars(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that are no lists, or lists of numbers."""
    return {name: value for name, value in row.items() if not _has_parts(value)}


def _has_parts(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(part, (list, dict)) for part in value)


def frame(rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """A DataFrame with a column for each name that any row has."""
    made: DataFrame = pandas().DataFrame(list(rows))
    return made
