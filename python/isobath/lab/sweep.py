"""Grids of simulations, model fits and benchmarks, on the workers of Dask.

>>> from isobath.lab.sweep import sweep
>>> rows = sweep(
...     "sim_clean",
...     {"policy": ["greedy", "mdc"], "fill": [0.7, 0.8, 0.9], "seed": range(10)},
...     "cleaning-sweep",
...     fixed={"device": "512MiB", "workload": "zipf:0.99"},
... )

Finished points are kept in the directory; a sweep that was killed or interrupted goes on when it is
called again. Needs `pip install isobath[lab,dask]`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import socket
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from isobath._errors import InvalidArgument
from isobath._needs import module
from isobath._store import Options, PathLike, Store
from isobath._types import Progress
from isobath.lab._bench import run_row
from isobath.lab._command import (
    CommandNotFound,
    LabError,
    documents,
    end_children,
    work,
    words,
)
from isobath.lab._frames import flat, frame, pandas, scalars

if TYPE_CHECKING:
    from distributed import Client
    from pandas import DataFrame

__all__ = ["SweepFailed", "Task", "read", "sweep"]

#: What runs at each point: the name of one of the laboratory's functions, or a function of the
#: point's parameters that returns a row (a dictionary), a list of rows, or a DataFrame.
Task = str | Callable[..., Any]

_POINTS = "points.iso"
_RESULTS = "results.parquet"
#: The store of finished points is small.
_OPTIONS: Options = {"pool_bytes": 8 << 20, "workers": 1}
#: Points that are with the scheduler at a time, at least, and per thread of the workers.
_AHEAD = 32
_AHEAD_PER_THREAD = 4
#: Seconds in which workers that have left may come back.
_WORKERS_SECONDS = 60


class SweepFailed(LabError):
    """Some points of a sweep failed. The others are kept; calling it again runs the failed ones."""

    def __init__(
        self, sentence: str, failures: list[tuple[dict[str, Any], str]], results: Any = None
    ) -> None:
        super().__init__(sentence)
        #: The points that failed, and why.
        self.failures = failures
        #: The rows of the others: a DataFrame.
        self.results = results


def sweep(
    task: Task,
    grid: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]],
    directory: PathLike,
    *,
    fixed: Mapping[str, Any] | None = None,
    client: Client | str | None = None,
    workers: int | None = None,
    exclusive: bool | None = None,
    command: PathLike | None = None,
    errors: str = "raise",
    progress: Progress | None = None,
) -> DataFrame:
    """Runs a task at each point of a grid, and returns all rows.

    `task` is `"sim_clean"`, `"sim_overlay"`, `"model"`, `"raw"` or `"bench"`, or a function. `grid`
    has the values of each parameter, all combinations of which are points, or is a list of points.
    `fixed` are parameters of all points. Rows have the parameters, the results, and `machine`,
    `worker` and `sweep_seconds`; they are in `results.parquet` of the directory, too.

    `client` is one of Dask, or the address of a scheduler; by default `workers` processes on this
    machine (one per core) do the work. With `exclusive` a machine runs one point at a time, and no
    other exclusive one beside it: so `raw` and `bench` do by default.

    Failed points raise `SweepFailed` at the end, once the others have finished; with
    `errors="report"` they are rows that have a sentence in `error`. ^C ends what is running; what
    has finished is kept.
    """
    pandas()
    module("pyarrow", "lab", "isobath.lab.sweep")
    if errors not in ("raise", "report"):
        raise InvalidArgument(f"errors is 'raise' or 'report', not {errors!r}")
    if isinstance(task, str) and task not in _TASKS:
        known = ", ".join(sorted(_TASKS))
        raise InvalidArgument(f"no task is called {task!r}; there are {known}, and functions")
    if not isinstance(task, str) and not callable(task):
        raise TypeError(f"the task is a name or a function, not {type(task).__name__}")
    if exclusive is None:
        exclusive = task in ("raw", "bench")
    points = _points(task, grid, dict(fixed or {}))
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    with Store.open_or_create(place / _POINTS, **_OPTIONS) as store:
        kept = store.open_or_create_tree("points")
        missing = [key for key, old in zip(points, kept.get_many(points)) if old is None]
        if progress is not None:
            progress.total = len(points)
            progress.update(len(points) - len(missing))
        failures: dict[bytes, str] = {}
        if missing:
            with _connected(client, workers) as connected:
                unfinished = _Work(connected, task, exclusive, command)
                for key, outcome in unfinished.run({key: points[key] for key in missing}):
                    if isinstance(outcome, str):
                        failures[key] = outcome
                    else:
                        kept[key] = json.dumps({"point": points[key]} | outcome).encode()
                    if progress is not None:
                        progress.update(1)
        rows = []
        for (key, point), value in zip(points.items(), kept.get_many(points)):
            if value is not None:
                rows += _rows(json.loads(value))
            elif errors == "report":
                rows.append(_parameters(point) | {"error": failures[key]})
    results = frame(rows)
    _write(results, place / _RESULTS)
    if failures and errors == "raise":
        failed = [(points[key], sentence) for key, sentence in failures.items()]
        first, why = failed[0]
        sentence = f"{len(failed)} of {len(points)} points failed; the first, {first}: {why}"
        raise SweepFailed(sentence, failed, results)
    return results


def read(directory: PathLike) -> DataFrame:
    """The rows of all points that a sweep has finished, while it runs or after it was killed."""
    pandas()
    with Store.open(Path(directory) / _POINTS, **(_OPTIONS | {"read_only": True})) as store:
        kept = store.tree("points")
        return frame(row for value in kept.values() for row in _rows(json.loads(value)))


# Points.


def _points(
    task: Task,
    grid: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]],
    fixed: dict[str, Any],
) -> dict[bytes, dict[str, Any]]:
    """The points by their keys: a hash of the task and all parameters."""
    if isinstance(grid, Mapping):
        for name, values in grid.items():
            if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
                raise TypeError(f"the grid's {name} is a list of values, not {values!r}")
        names = list(grid)
        combinations = itertools.product(*(list(values) for values in grid.values()))
        found = [dict(zip(names, values)) for values in combinations] if names else []
    else:
        found = [dict(point) for point in grid]
    if not found:
        raise InvalidArgument("the grid has no points")
    name = task if isinstance(task, str) else f"{task.__module__}.{task.__qualname__}"
    points = {}
    for given in found:
        point = {key: _plain(key, value) for key, value in (fixed | given).items()}
        text = json.dumps([name, point], sort_keys=True)
        points[hashlib.blake2b(text.encode(), digest_size=16).hexdigest().encode()] = point
    return points


def _plain(name: str, value: Any) -> Any:
    """A value that JSON has."""
    value = value.item() if hasattr(value, "item") and not isinstance(value, str) else value
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(name, part) for key, part in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray)):
        return [_plain(name, part) for part in value]
    raise TypeError(f"the parameter {name} is no number, text or list: {type(value).__name__}")


def _parameters(point: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: ",".join(map(str, value)) if isinstance(value, list) else value
        for name, value in point.items()
    }


def _rows(kept: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a finished point; what a result says of a parameter goes first."""
    about = {name: kept[name] for name in ("machine", "worker", "sweep_seconds")}
    parameters = _parameters(kept["point"])
    return [parameters | row | about for row in kept["rows"]]


def _write(results: DataFrame, path: Path) -> None:
    """Replaces a Parquet file, wholly or not at all."""
    arrow = module("pyarrow", "lab", "isobath.lab.sweep")
    parquet = module("pyarrow.parquet", "lab", "isobath.lab.sweep")
    try:
        table = arrow.Table.from_pandas(results, preserve_index=False)
    except (arrow.ArrowInvalid, arrow.ArrowTypeError):
        # A column of several types is one of texts.
        texts = results.copy()
        for name in texts.columns[texts.dtypes == object]:
            texts[name] = [None if _is_missing(value) else str(value) for value in texts[name]]
        table = arrow.Table.from_pandas(texts, preserve_index=False)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        parquet.write_table(table, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _is_missing(value: object) -> bool:
    return value is None or value != value


# The work on the client's side.


@contextlib.contextmanager
def _connected(client: Client | str | None, workers: int | None) -> Iterator[Client]:
    distributed = module("distributed", "dask", "isobath.lab.sweep")
    if client is None:
        count = workers or os.cpu_count() or 1
        dask = module("dask", "dask", "isobath.lab.sweep")
        # A worker has no second point waiting that another one could run.
        one_each = {"distributed.scheduler.worker-saturation": 1.0}
        with (
            dask.config.set(one_each),
            distributed.LocalCluster(
                n_workers=count, threads_per_worker=1, dashboard_address=None
            ) as cluster,
            distributed.Client(cluster) as made,
        ):
            from isobath.lab._workers import IgnoresInterrupts

            made.register_plugin(IgnoresInterrupts())
            yield made
    elif isinstance(client, str):
        with distributed.Client(client) as made:
            yield made
    elif isinstance(client, distributed.Client):
        yield client
    else:
        raise TypeError(f"the client is one of Dask or an address, not {type(client).__name__}")


class _Work:
    """The points of a sweep that are not finished, with the workers."""

    def __init__(
        self, client: Client, task: Task, exclusive: bool, command: PathLike | None
    ) -> None:
        self._client = client
        self._task = task
        self._exclusive = exclusive
        self._command = None if command is None else os.path.abspath(command)
        self._name = f"isobath-sweep-{uuid.uuid4().hex[:12]}"
        self._running: dict[Any, tuple[bytes, Any]] = {}
        #: The machines that have an exclusive point.
        self._machines: dict[Any, str] = {}

    def run(self, points: Mapping[bytes, dict[str, Any]]) -> Iterator[tuple[bytes, Any]]:
        """The outcomes of all points as they finish: a dictionary, or why there is none."""
        distributed = module("distributed", "dask", "isobath.lab.sweep")
        waiting = deque(points.items())
        completed = distributed.as_completed(loop=self._client.loop)
        try:
            while waiting or self._running:
                self._submit(waiting, completed)
                future = next(completed)
                key, _ = self._running.pop(future.key)
                self._machines.pop(future.key, None)
                yield key, self._outcome(future)
        except BaseException:
            self._end()
            raise
        finally:
            completed.clear()

    def _submit(self, waiting: deque[tuple[bytes, dict[str, Any]]], completed: Any) -> None:
        machines = self._workers()
        if self._exclusive:
            busy = set(self._machines.values())
            free = [machine for machine in machines if machine not in busy]
        else:
            threads = sum(count for found in machines.values() for _, count in found)
            ahead = max(_AHEAD, _AHEAD_PER_THREAD * threads) - len(self._running)
            free = [""] * ahead
        for machine in free:
            if not waiting:
                return
            key, point = waiting.popleft()
            options: dict[str, Any] = {}
            if self._exclusive:
                addresses = [address for address, _ in machines[machine]]
                # Elsewhere if the machine is lost: the lock of a machine is with its tasks.
                options = {"workers": addresses, "allow_other_workers": True}
            future = self._client.submit(
                _run,
                self._task,
                point,
                self._exclusive,
                self._command,
                self._name,
                key=f"{self._name}-{key.decode()}",
                pure=False,
                **options,
            )
            self._running[future.key] = key, future
            if self._exclusive:
                self._machines[future.key] = machine
            completed.add(future)

    def _workers(self) -> dict[str, list[tuple[str, int]]]:
        """The workers' addresses and threads, by machine."""
        found = self._client.scheduler_info(n_workers=-1)["workers"]
        if not found:
            self._client.wait_for_workers(1, timeout=_WORKERS_SECONDS)
            found = self._client.scheduler_info(n_workers=-1)["workers"]
        machines: dict[str, list[tuple[str, int]]] = {}
        for address, about in found.items():
            host = about.get("host") or urlsplit(address).hostname or address
            machines.setdefault(host, []).append((address, about.get("nthreads", 1)))
        return machines

    def _outcome(self, future: Any) -> dict[str, Any] | str:
        if future.status == "finished":
            outcome: dict[str, Any] = future.result()
            failure = outcome.get("failure")
            if outcome.get("kind") == CommandNotFound.__name__:
                raise CommandNotFound(failure)
            return outcome if failure is None else str(failure)
        if future.status == "cancelled":
            return "Dask has lost it: the scheduler is gone, or it was cancelled"
        return _sentence(future.exception())

    def _end(self) -> None:
        """Ends what is waiting or running. A worker that answers no more is left alone."""
        with contextlib.suppress(Exception):
            cancel: Any = self._client.cancel
            cancel([future for _, future in self._running.values()], force=True)
            self._client.run(_stop, self._name)


# The work on a worker's side.


def _sentence(error: BaseException | None) -> str:
    return str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"


#: Works that were ended.
_STOPPED: set[str] = set()


def _stop(name: str) -> int:
    _STOPPED.add(name)
    return end_children(name)


def _run(
    task: Task, point: dict[str, Any], exclusive: bool, command: str | None, name: str
) -> dict[str, Any]:
    """A point, on a worker."""
    with contextlib.ExitStack() as stack:
        descriptor = stack.enter_context(_machine(name)) if exclusive else None
        stack.enter_context(work(name, descriptor))
        if name in _STOPPED:
            raise LabError("the sweep was ended")
        begun = time.perf_counter()
        try:
            if isinstance(task, str):
                rows = _TASKS[task](dict(point), command)
            else:
                rows = _of_function(task(**point))
        except Exception as error:
            # An answer: Dask would log a traceback for each.
            return {"failure": _sentence(error), "kind": type(error).__name__}
        seconds = time.perf_counter() - begun
    return {
        "rows": rows,
        "machine": socket.gethostname(),
        "worker": _address(),
        "sweep_seconds": seconds,
    }


def _address() -> str:
    from distributed import get_worker

    try:
        return str(get_worker().address)
    except ValueError:
        return ""


@contextlib.contextmanager
def _machine(name: str) -> Iterator[int]:
    """This machine for one point alone. Its command has the lock, too: the worker may be killed."""
    path = os.path.join(tempfile.gettempdir(), f"isobath-benchmark-{os.getuid()}.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if name in _STOPPED:
                    raise LabError("the sweep was ended") from None
                time.sleep(0.05)
        yield descriptor
    finally:
        os.close(descriptor)


def _of_function(found: Any) -> list[dict[str, Any]]:
    if hasattr(found, "to_dict") and hasattr(found, "columns"):
        found = found.to_dict("records")
    if isinstance(found, Mapping):
        found = [found]
    if not isinstance(found, Sequence) or not all(isinstance(row, Mapping) for row in found):
        raise TypeError(f"a task returns a row, rows, or a DataFrame, not {type(found).__name__}")
    return [{str(name): _plain(str(name), value) for name, value in row.items()} for row in found]


def _simulated(verb: str) -> Callable[[dict[str, Any], str | None], list[dict[str, Any]]]:
    def run(point: dict[str, Any], command: str | None) -> list[dict[str, Any]]:
        # Workers are the parallelism.
        options = {"threads": 1} | point
        return documents("sim", verb, *words(options), command=command)

    return run


def _modelled(point: dict[str, Any], command: str | None) -> list[dict[str, Any]]:
    profile = point.pop("profile", None)
    if not isinstance(profile, str):
        raise InvalidArgument("the task `model` needs the parameter profile: a file's path")
    (document,) = documents("model", profile, *words(point), command=command)
    rows = []
    for model in document["models"]:
        row = scalars(flat(model))
        row.pop("coefficients", None)
        row.pop("extrapolation", None)
        rows.append(row | {"coefficients_count": len(model["coefficients"])})
    return rows


def _raw(point: dict[str, Any], command: str | None) -> list[dict[str, Any]]:
    return [flat(row) for row in documents("raw", *words(point), command=command)]


def _bench(point: dict[str, Any], command: str | None) -> list[dict[str, Any]]:
    verb = str(point.pop("verb", "run"))
    directory = point.pop("directory", None)
    found = documents("bench", verb, *words(point), command=command, directory=directory)
    return [run_row(one) if "setting" in one else scalars(flat(one)) for one in found]


_TASKS: dict[str, Callable[[dict[str, Any], str | None], list[dict[str, Any]]]] = {
    "bench": _bench,
    "model": _modelled,
    "raw": _raw,
    "sim_clean": _simulated("clean"),
    "sim_overlay": _simulated("overlay"),
}
