"""The examples in Python run at small size."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest
from distributed import Client
from isobath import Store

from conftest import SMALL, needs_command

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"


def example(name: str) -> Any:
    """A program as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("shards", [1, 2])
def test_kmeans(client: Client, tmp_path: Path, shards: int) -> None:
    program = example("kmeans")
    arguments = ["--tiles", "900", "--block", "200", "--clusters", "4", "--iterations", "5"]
    errors = program.main(
        [str(tmp_path / "tiles.iso"), "--shards", str(shards), *arguments], client
    )
    assert errors == sorted(errors, reverse=True) and errors[-1] < errors[0]


def test_sensors(tmp_path: Path) -> None:
    program = example("sensors")
    path = tmp_path / "sensors.iso"
    hour = program.main([str(path), "--sensors", "3", "--hours", "2", "--per-second", "0.1"])
    frame = program.measured(1, 2, 0.1, 1)
    expected = frame["2026-01-01 01:00":"2026-01-01 01:59:59"].astype("f4")
    expected.index = expected.index.as_unit("ns")
    pandas.testing.assert_frame_equal(hour, expected, check_names=False, check_freq=False)
    with Store.open(path, **SMALL) as store:
        tree = store.tree("sensors")
        assert program.sensors(tree) == ["sensor 000", "sensor 001", "sensor 002"]
        rest = program.between(tree, "sensor 002")
        assert rest.index[0] == pandas.Timestamp("2026-01-01 00:30")
        assert program.latest(tree, "sensor 002").name == rest.index[-1]
        assert program.latest(tree, "nothing") is None
        tree[program.key("old", pandas.Timestamp("1969-07-20"))] = program.VALUE.pack(1, 2, 3)
        tree[program.key("old", pandas.Timestamp("1970-07-20"))] = program.VALUE.pack(4, 5, 6)
        assert program.between(tree, "old")["temperature"].tolist() == [1, 4]


@needs_command
def test_a_sweep_of_cleaning_policies(client: Client, tmp_path: Path) -> None:
    program = example("cleaning_sweep")
    arguments = ["--device", "128MiB", "--writes", "2", "--fills", "2", "--skews", "2"]
    rows = program.main(
        [str(tmp_path / "sweep"), *arguments, "--policies", "greedy", "mdc"], client
    )
    assert len(rows) == 8
    assert (tmp_path / "sweep" / "heat-map.png").stat().st_size > 1000
    assert len(pandas.read_parquet(tmp_path / "sweep" / "results.parquet")) == 8
