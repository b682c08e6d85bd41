"""Drives: raw I/O, profiles, cost models and what they predict."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isobath import _native
from isobath._errors import InvalidArgument
from isobath._needs import module
from isobath._store import PathLike
from isobath.lab._command import documents, words
from isobath.lab._frames import flat, frame, pandas

if TYPE_CHECKING:
    from pandas import DataFrame

_FORMAT = "isobath-device-profile"


def raw(*, command: PathLike | None = None, **options: Any) -> DataFrame:
    """`isobath raw`: a row for each combination of the lists that it is given.

    Without `file`, `memory` or `scratch` it makes a file of 1 GiB in this directory, measures it,
    and removes it.
    """
    pandas()
    return frame(map(flat, documents("raw", *words(options), command=command)))


def probe(
    path: PathLike,
    *,
    output: PathLike | None = None,
    command: PathLike | None = None,
    **options: Any,
) -> Profile:
    """`isobath probe`: measures the drive under a path.

    `output` is the file of the profile. ^C keeps what was measured there, and `resume=True` goes
    on. Without it the profile is in memory alone.
    """
    pandas()
    with contextlib.ExitStack() as stack:
        if output is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="isobath-probe-"))
            file = Path(directory) / "profile.json"
        else:
            file = Path(output)
        where = os.fspath(path)
        documents("probe", where, f"--output={file}", *words(options), command=command)
        profile = Profile.read(file)
    if output is None:
        profile.path = None
    return profile


class Profile:
    """A drive as `isobath probe` measured it: `docs/probe.md` has the fields of `data`."""

    def __init__(self, text: str, path: Path | None = None) -> None:
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InvalidArgument(f"{path or 'the text'} is no profile: {error}") from error
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise InvalidArgument(f"{path or 'the text'} is no profile of `isobath probe`")
        #: The JSON.
        self.text = text
        #: The JSON as a dictionary.
        self.data: dict[str, Any] = data
        #: Its file, if it has one.
        self.path = path

    @classmethod
    def read(cls, path: PathLike) -> Profile:
        """The profile in a file."""
        path = Path(path)
        return cls(path.read_text(), path)

    @classmethod
    def of(cls, profile: Profile | PathLike) -> Profile:
        """A profile, or the one in a file."""
        return profile if isinstance(profile, Profile) else cls.read(profile)

    def save(self, path: PathLike) -> None:
        """Writes it to a file."""
        Path(path).write_text(self.text)
        self.path = Path(path)

    @property
    def points(self) -> DataFrame:
        """The measured points; `regime_name` and `usable` say which models are fitted to."""
        rows = [flat(point) for point in self.data["points"]]
        regimes = self.data["regimes"]
        for row in rows:
            regime = regimes[row["regime"]]
            row["regime_name"], row["usable"] = regime["name"], regime["usable"]
        return frame(rows)

    @property
    def regimes(self) -> DataFrame:
        """The levels of the drive, and when they were met."""
        return frame(self.data["regimes"])

    @property
    def sentinels(self) -> DataFrame:
        """The rates of the sentinels over time."""
        return frame(map(flat, self.data["sentinels"]))

    @functools.cached_property
    def predictor(self) -> _native.Predictor:
        """The models that are fitted to it, which takes a second or more."""
        return _native.Predictor(self.text)

    def __repr__(self) -> str:
        where = self.data["target"]["path"]
        return f"<isobath.lab.Profile of {where}, {len(self.data['points'])} points>"

    def __getstate__(self) -> dict[str, Any]:
        return {"text": self.text, "data": self.data, "path": self.path}


@contextlib.contextmanager
def _file_of(profile: Profile | PathLike) -> Iterator[str]:
    """A file of a profile, for the command."""
    if not isinstance(profile, Profile):
        yield os.fspath(profile)
        return
    # Its file may have changed since it was read.
    with tempfile.NamedTemporaryFile("w", prefix="isobath-", suffix=".json") as file:
        file.write(profile.text)
        file.flush()
        yield file.name


class Models:
    """The cost models of a drive, as `isobath model` fits them."""

    def __init__(self, profile: Profile, document: dict[str, Any]) -> None:
        #: The profile that they are fitted to.
        self.profile = profile
        #: What the command printed.
        self.data = document

    @property
    def table(self) -> DataFrame:
        """A row for each model: R², errors on held-out points and on the largest k and I/Os."""
        rows = []
        for model in self.data["models"]:
            row = flat({name: model.get(name) for name in ("kind", "chosen", "r_squared")})
            row |= _errors("held_out", model.get("held_out"))
            row |= _errors("unseen", model.get("unseen"))
            for beyond in model.get("extrapolation", ()):
                row |= _errors(f"largest_{beyond['beyond']}", beyond["error"])
            row["failure"] = model.get("failure")
            rows.append(row)
        return frame(rows)

    @property
    def coefficients(self) -> DataFrame:
        """The fitted numbers of all models."""
        return frame(
            {"kind": model["kind"]} | coefficient
            for model in self.data["models"]
            for coefficient in model.get("coefficients", ())
        )

    @property
    def residuals(self) -> DataFrame:
        """Each point over what the chosen model predicted before it had seen it."""
        rows = (
            residual["sample"] | {"ratio": residual["ratio"]} for residual in self.data["residuals"]
        )
        return frame(map(flat, rows))

    @property
    def lines(self) -> DataFrame:
        """Table 2 of paper 000 for this drive: setup and transfer costs by k, and R²."""
        names = ["operation", "concurrency", "setup_us", "transfer_us", "r_squared"]
        rows: DataFrame = pandas().DataFrame(self.profile.predictor.lines(), columns=names)
        return rows

    @property
    def chosen(self) -> str | None:
        """The name of the model that predictions are made with."""
        for model in self.data["models"]:
            if model["chosen"]:
                return str(model["kind"])
        return None

    def predict(self, concurrency: Any, **where: Any) -> DataFrame:
        """As `isobath.lab.predict`."""
        return predict(self.profile, concurrency, **where)


def _errors(name: str, error: dict[str, Any] | None) -> dict[str, Any]:
    error = error or {}
    return {f"{name}_{part}": error.get(part) for part in ("median", "p90")}


def model(
    profile: Profile | PathLike, *, command: PathLike | None = None, **options: Any
) -> Models:
    """`isobath model`: fits every cost model to a profile."""
    pandas()
    with _file_of(profile) as file:
        (document,) = documents("model", file, *words(options), command=command)
    return Models(Profile.of(profile), document)


def predict(
    profile: Profile | PathLike,
    concurrency: Any,
    *,
    io_pages: Any = 1.0,
    random_share: Any = 1.0,
    read_share: Any = 1.0,
    kind: str | None = None,
) -> DataFrame:
    """What a drive does at points that were not measured: a row for each, without the command.

    Arguments are numbers or arrays, which are broadcast: I/Os in flight, pages of 4 KiB in each,
    shares (0 to 1) of random ones and of reads. `kind` is a model's name, else the chosen one.
    `low_pages_per_s` to `high_pages_per_s` is the interval of 90%; `caution` says what lies outside
    of the measured range.
    """
    numpy = module("numpy", "lab", "isobath.lab")
    numbers = numpy.broadcast_arrays(
        *(
            numpy.asarray(one, dtype=float)
            for one in (concurrency, random_share, io_pages, read_share)
        )
    )
    columns = [array.ravel() for array in numbers]
    points = [(float(k), float(r), float(p), float(w)) for k, r, p, w in zip(*columns)]
    predicted = Profile.of(profile).predictor.predict(kind, points)
    names = ["concurrency", "random_share", "io_pages", "read_share"]
    rows: DataFrame = pandas().DataFrame(points, columns=names, dtype=float)
    results = [
        "pages_per_s",
        "low_pages_per_s",
        "high_pages_per_s",
        "extrapolated_doublings",
        "caution",
    ]
    for at, name in enumerate(results):
        rows[name] = [point[at] for point in predicted]
    rows["mb_per_s"] = rows["pages_per_s"] * 4096 / 1e6
    # Little's law.
    rows["latency_us"] = rows["concurrency"] * rows["io_pages"] / rows["pages_per_s"] * 1e6
    return rows


def best_node_pages(
    record_count: float, page_entries: float, setup_us: float, transfer_us: float
) -> int:
    """Pages of a B-tree's node with the cheapest point query (paper 000, section 2.2).

    An access takes `setup_us`, and `transfer_us` for each page.
    """
    return _native.best_node_pages(record_count, page_entries, setup_us, transfer_us)


def printed_lsm_us(
    *,
    read_setup_us: float,
    read_transfer_us: float,
    write_setup_us: float,
    write_transfer_us: float,
    fanout: float | None,
    data_bytes: float,
    file_bytes: float,
    l0_files: float = 4,
    block_bytes: float = 4096,
    record_bytes: float = 128,
    scan_bytes: float = 0,
) -> dict[str, float]:
    """An LSM tree by equations 9 to 12 of paper 000 as printed: µs of insert, query and scan.

    Without a fanout there is a single level. They rank numbers of threads well, and fanouts badly.
    """
    insert, query, scan = _native.printed_lsm_us(
        (data_bytes, file_bytes, l0_files, block_bytes, record_bytes),
        (read_setup_us, read_transfer_us, write_setup_us, write_transfer_us),
        fanout,
        scan_bytes,
    )
    return {"insert_us": insert, "query_us": query, "scan_us": query + scan}
