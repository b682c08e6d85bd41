"""Sweeps: grids on the workers of Dask, what is kept, what goes wrong."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dask
import pandas
import pytest
from distributed import Client
from isobath import InvalidArgument, StoreInUse
from isobath.lab import CommandNotFound
from isobath.lab.sweep import SweepFailed, read, sweep

from conftest import MACHINES, machines, needs_command, workers

SMALL: Any = {"device": "128MiB", "writes": 2}
DOCS = Path(__file__).parents[2] / "docs"


@needs_command
def test_a_grid_of_simulations(client: Client, tmp_path: Path) -> None:
    grid: dict[str, Any] = {"policy": ["greedy", "mdc"], "fill": [0.6, 0.8], "seed": range(2)}
    rows = sweep("sim_clean", grid, tmp_path, fixed=SMALL, client=client)
    assert len(rows) == 8
    assert rows["worker"].nunique() == 2
    assert set(rows["machine"]) == {os.uname().nodename}
    assert sorted(set(zip(rows["policy"], rows["fill_ratio"]))) == [
        ("greedy", 0.6), ("greedy", 0.8), ("mdc", 0.6), ("mdc", 0.8),
    ]  # fmt: skip
    kept = pandas.read_parquet(tmp_path / "results.parquet")
    assert kept["wamp_steady_ratio"].tolist() == rows["wamp_steady_ratio"].tolist()
    assert len(read(tmp_path)) == 8
    # A larger grid runs what is new; the results of the old points are those of before.
    before = dict(zip(rows["seed"], rows["seconds"]))
    grid["seed"] = range(3)
    more = sweep("sim_clean", grid, tmp_path, fixed=SMALL, client=client)
    assert len(more) == 12
    assert [dict(zip(more["seed"], more["seconds"])).get(seed) for seed in (0, 1)] == [
        before[0], before[1],
    ]  # fmt: skip


@needs_command
def test_other_tasks_of_the_laboratory(client: Client, tmp_path: Path) -> None:
    profile = DOCS / "examples" / "profile.json"
    rows = sweep("model", [{"profile": profile}], tmp_path / "models", client=client)
    assert rows["chosen"].sum() == 1
    rows = sweep(
        "sim_overlay", {"design": ["in-place", "overlays:0.25"]}, tmp_path / "overlays",
        fixed={"records": 20_000, "updates": 1}, client=client,
    )  # fmt: skip
    assert len(rows) == 2
    rows = sweep(
        "raw", {"depth": [1, 4]}, tmp_path / "raw",
        fixed={"memory": True, "duration": 0.05, "warm_up": 0, "bytes": "16MiB"}, client=client,
    )  # fmt: skip
    assert list(rows["depth"]) == [1, 4]


@needs_command
def test_a_machine_runs_one_benchmark_at_a_time(client: Client, tmp_path: Path) -> None:
    rows = sweep(
        "bench", {"seed": [1, 2, 3]}, tmp_path,
        fixed={"memory_device": True, "records": 2_000, "pool": "8MiB", "duration": 0.2}, client=client,
    )  # fmt: skip
    assert len(rows) == 3 and (rows["operations_per_s"] > 0).all()
    assert set(rows["machine"]) == {os.uname().nodename}
    spans = sweep(_span, {"number": range(4)}, tmp_path / "spans", exclusive=True, client=client)
    spans = spans.sort_values("begun")
    assert (spans["begun"].iloc[1:].to_numpy() >= spans["ended"].iloc[:-1].to_numpy()).all()


def _span(number: int) -> dict[str, float]:
    begun = time.time()
    time.sleep(0.05)
    return {"begun": begun, "ended": time.time()}


def _place(number: int) -> dict[str, Any]:
    return _span(number) | {"lock": tempfile.gettempdir()}


def test_each_machine_runs_one_benchmark_at_a_time(tmp_path: Path) -> None:
    with machines(tmp_path) as client:
        kept = tmp_path / "kept"
        rows = sweep(_place, {"number": range(12)}, kept, exclusive=True, client=client)
    assert sorted(path.name for path in kept.iterdir()) == ["points.iso", "results.parquet"]
    # One row a point, and its worker is on the machine that it names.
    assert sorted(rows["number"]) == list(range(12)) and rows.columns.is_unique
    pandas.testing.assert_frame_equal(pandas.read_parquet(kept / "results.parquet"), rows)
    hosts = rows["lock"].map(os.path.basename)
    assert hosts.tolist() == rows["worker"].map(lambda worker: urlsplit(worker).hostname).tolist()
    assert set(hosts) == set(MACHINES)
    both = []
    for _, found in rows.sort_values("begun").groupby(hosts):
        begun, ended = found["begun"].to_numpy(), found["ended"].to_numpy()
        assert (begun[1:] >= ended[:-1]).all()
        both.append((begun, ended))
    # The machines do not wait for each other.
    (begun, ended), (others_begun, others_ended) = both
    overlaps = (begun[:, None] < others_ended) & (others_begun < ended[:, None])
    assert overlaps.any()


COMMAND = """#!/bin/sh
# A benchmark that takes a while to end, whatever happens to its worker.
trap '' TERM INT
echo "begun $(date +%s.%N)" >> {log}
if [ ! -e {log}.killed ]; then
    touch {log}.killed
    kill -KILL $PPID
    sleep 1
fi
sleep 0.2
echo "ended $(date +%s.%N)" >> {log}
echo '{{"result": 1}}'
"""


def test_the_benchmark_of_a_killed_worker_ends_before_the_next(tmp_path: Path) -> None:
    log, command = tmp_path / "log", tmp_path / "isobath"
    command.write_text(COMMAND.format(log=log))
    command.chmod(0o700)
    with workers() as client:
        rows = sweep("raw", {"depth": [1, 2, 3]}, tmp_path / "kept", command=command, client=client)
    assert sorted(rows["depth"]) == [1, 2, 3] and (rows["result"] == 1).all()
    said = [line.split() for line in log.read_text().splitlines()]
    # The first of them has no result: its point ran again.
    assert [word for word, _ in said] == ["begun", "ended"] * 4
    times = [float(seconds) for _, seconds in said]
    assert times == sorted(times)


def _kills(number: int, mark: str | None = None) -> dict[str, int]:
    """Kills its worker at negative numbers: each time, or once if there is a mark."""
    if number < 0 and not (mark and os.path.exists(mark)):
        if mark:
            Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"square": number**2}


def test_a_point_whose_worker_dies_runs_again_and_is_named(tmp_path: Path) -> None:
    grid = {"number": [1, -2, 3]}
    with workers() as client:
        fixed = {"mark": str(tmp_path / "mark")}
        rows = sweep(_kills, grid, tmp_path / "once", fixed=fixed, client=client)
        assert sorted(rows["square"]) == [1, 4, 9]
        with pytest.raises(SweepFailed, match="1 of 3 points failed") as failed:
            sweep(_kills, grid, tmp_path / "always", client=client)
    ((point, sentence),) = failed.value.failures
    assert point == {"number": -2}
    assert "KilledWorker" in sentence and "tcp://127.0.0.1:" in sentence
    assert sorted(failed.value.results["square"]) == [1, 9]


def _mixed(number: int) -> dict[str, Any]:
    return {"result": number if number < 2 else "many"}


def test_a_column_of_several_types_is_kept_as_text(client: Client, tmp_path: Path) -> None:
    sweep(_mixed, {"number": [1, 2]}, tmp_path, client=client)
    kept = pandas.read_parquet(tmp_path / "results.parquet")
    assert kept["result"].tolist() == ["1", "many"] and kept["number"].tolist() == [1, 2]


def _root(number: int) -> list[dict[str, Any]]:
    if number < 0:
        raise ValueError("no root")
    return [{"root": number**0.5, "sign": sign} for sign in (1, -1)]


def test_points_that_fail(client: Client, tmp_path: Path) -> None:
    grid = {"number": [1, -1, 4]}
    with pytest.raises(SweepFailed, match="1 of 3 points failed.*no root") as failed:
        sweep(_root, grid, tmp_path, client=client)
    assert failed.value.failures == [({"number": -1}, "ValueError: no root")]
    assert len(failed.value.results) == 4
    assert len(pandas.read_parquet(tmp_path / "results.parquet")) == 4
    rows = sweep(_root, grid, tmp_path, client=client, errors="report")
    assert rows["error"].notna().sum() == 1 and len(rows) == 5


def test_a_schedulers_address(client: Client, tmp_path: Path) -> None:
    assert client.scheduler is not None
    rows = sweep(_root, {"number": [1, 4]}, tmp_path, client=client.scheduler.address)
    assert sorted(rows["root"]) == [1, 1, 2, 2]
    # The scheduler and the workers are not the sweep's to close.
    assert client.submit(int, "7").result(timeout=30) == 7
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}), pytest.raises(OSError):
        sweep(_root, {"number": [9]}, tmp_path, client="tcp://127.0.0.1:1")
    assert len(read(tmp_path)) == 4


def test_impossible_requests_say_why(client: Client, tmp_path: Path) -> None:
    wrong: list[tuple[Any, Any, dict[str, Any], type[Exception]]] = [
        ("sim_dirty", {"seed": [1]}, {}, InvalidArgument),
        (7, {"seed": [1]}, {}, TypeError),
        (_root, {}, {}, InvalidArgument),
        (_root, {"number": []}, {}, InvalidArgument),
        (_root, {"number": 3}, {}, TypeError),
        (_root, {"number": "34"}, {}, TypeError),
        (_root, {"number": [object()]}, {}, TypeError),
        (_root, {"number": [1]}, {"errors": "ignore"}, InvalidArgument),
        (_root, {"number": [1]}, {"client": 7}, TypeError),
    ]
    for task, grid, options, error in wrong:
        with pytest.raises(error):
            sweep(task, grid, tmp_path, **({"client": client} | options))
    with pytest.raises(CommandNotFound):
        sweep("sim_clean", {"seed": [1]}, tmp_path, client=client, command=tmp_path / "isobath")


SCRIPT = """
import json, signal, sys
from isobath.lab.sweep import sweep
if __name__ == "__main__":
    # It is ignored in what a shell runs in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    grid = {"policy": ["life-table"], "seed": range(400)}
    rows = sweep("sim_clean", grid, sys.argv[1], fixed=json.loads(sys.argv[2]), workers=2)
    print(len(rows))
"""


def _started(tmp_path: Path) -> subprocess.Popen[str]:
    """A sweep of 400 points in a process of its own, of which some have finished."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    arguments = [sys.executable, str(script), str(tmp_path / "kept"), json.dumps(SMALL)]
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    for _ in range(1200):
        if process.poll() is not None:
            raise AssertionError(process.communicate())
        if (tmp_path / "kept" / "points.iso").exists() and _finished(tmp_path) >= 3:
            return process
        time.sleep(0.05)
    raise AssertionError("no point has finished")


def _finished(tmp_path: Path) -> int:
    try:
        return len(read(tmp_path / "kept"))
    except Exception:
        # The tree is not there yet.
        return 0


@needs_command
def test_a_killed_sweep_goes_on(client: Client, tmp_path: Path) -> None:
    process = _started(tmp_path)
    with pytest.raises(StoreInUse):
        sweep("sim_clean", {"seed": [1]}, tmp_path / "kept", client=client)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    finished = read(tmp_path / "kept")
    assert 3 <= len(finished) < 400
    grid = {"policy": ["life-table"], "seed": finished["seed"].tolist() + [1000]}
    rows = sweep("sim_clean", grid, tmp_path / "kept", fixed=SMALL, client=client)
    assert len(rows) == len(finished) + 1
    assert set(finished["seconds"]) <= set(rows["seconds"])


@needs_command
def test_an_interrupted_sweep_keeps_what_has_finished(client: Client, tmp_path: Path) -> None:
    process = _started(tmp_path)
    # As a terminal does, to all processes of the group.
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0 and "KeyboardInterrupt" in said
    assert 3 <= len(read(tmp_path / "kept")) < 400
