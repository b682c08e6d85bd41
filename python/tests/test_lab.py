"""The laboratory: frames, predictions, figures, and what goes wrong."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
from isobath import InvalidArgument, lab
from isobath.lab import figures
from isobath.lab._command import words

from conftest import needs_command

DOCS = Path(__file__).parents[2] / "docs"
SMALL_RUN: Any = {"records": 5_000, "pool": "8MiB", "duration": 0.2, "memory_device": True}


@pytest.fixture(scope="module")
def profile() -> lab.Profile:
    return lab.Profile.read(DOCS / "examples" / "profile.json")


def drawn(figure: Any) -> int:
    """The charts of a figure that have something."""
    figure.draw_without_rendering()
    return sum(axes.has_data() for axes in figure.axes)


def test_options_are_keywords() -> None:
    assert words({"sort_buffer": [0, 16], "from_": "tasks", "fill": numpy.float64(0.5)}) == [
        "--sort-buffer=0,16",
        "--from=tasks",
        "--fill=0.5",
    ]
    assert words({"duration": 0.25, "warm_up": timedelta(seconds=1), "json": True}) == [
        "--duration=250000us",
        "--warm-up=1000000us",
        "--json",
    ]
    assert words({"paper": False, "seed": None, "file": [Path("a"), "b,c"]}) == [
        "--file=a",
        "--file=b,c",
    ]
    for wrong in [object(), b"bytes", {"a": 1}, [True]]:
        with pytest.raises(TypeError):
            words({"option": wrong})
    with pytest.raises(ValueError):
        words({"option": []})


@needs_command
def test_simulations() -> None:
    rows = lab.sim_clean(
        policy=["greedy", "mdc"],
        workload=["uniform", "zipf:0.99"],
        fill=[0.6, 0.8],
        device="128MiB",
    )
    assert len(rows) == 8
    assert set(rows["policy"]) == {"greedy", "mdc"}
    # A policy may run out of space: its row says so.
    assert (rows["wamp_steady_ratio"].notna() | rows["error"].notna()).all()
    assert drawn(figures.cleaning(rows)) == 2 + 2
    assert drawn(figures.cleaning(rows[:1])) == 3
    assert len(
        figures.heat_map(rows, "fill_ratio", "workload", "wamp_steady_ratio", by="policy").axes
    )
    with pytest.raises(InvalidArgument, match="no column wamp_steady_ratio"):
        figures.cleaning(rows[["policy", "workload", "fill_ratio"]])
    overlay = lab.sim_overlay(design=["in-place", "overlays:0.25"], records=20_000, updates=2)
    assert overlay.set_index("design")["written_ratio"]["overlays:0.25"] < 10
    tables = lab.sim_analysis()
    assert set(tables) == {"equation-4", "hot-cold"}
    assert drawn(figures.analysis(tables)) == 2
    bounds = lab.sim_analysis(workload=["uniform", "zipf:0.99"], fill=[0.7, 0.8])
    assert set(bounds) == {"bound"} and drawn(figures.analysis(bounds)) == 2
    with pytest.raises(InvalidArgument, match="no table rows"):
        figures.analysis({"rows": tables["hot-cold"]})


def test_cost_maps() -> None:
    # The shape of paper 002's Figure 7c: one side is fast with little data, the other takes little
    # space.
    runs = pandas.DataFrame(
        [["lsm", 100.0, 4000.0], ["lsm", 200.0, 3000.0], ["btree", 100.0, 1500.0],
         ["btree", 350.0, 1000.0]],
        columns=["engine", "data_bytes", "operations_per_s"],
    )  # fmt: skip
    axes = figures.cost_map(runs, "lsm", "btree").axes[0]
    counts = [text.get_text() for text in axes.texts]
    assert len(counts) == 64
    # 437.5 bytes at 5,000/s, 3,500 bytes at 5,000/s, 437.5 bytes at 40,000/s.
    assert (counts[0], counts[7], counts[56]) == ("3/5", "18/10", "10/27")
    offered = runs.assign(setting_rate_per_s=[math.nan, math.nan, 5.0, 5.0])
    with pytest.raises(InvalidArgument, match="no run of engine 'btree'"):
        figures.cost_map(offered, "lsm", "btree")


@needs_command
def test_measurements(tmp_path: Path) -> None:
    rows = lab.raw(memory=True, bytes="16MiB", depth=[1, 8], duration=0.05, warm_up=0)
    assert list(rows["depth"]) == [1, 8] and (rows["ios_per_s"] > 0).all()
    assert drawn(figures.raw(rows)) == 4
    one = lab.bench(**SMALL_RUN)
    assert len(one.runs) == 1 and one.runs["operations_per_s"][0] > 0
    assert one.samples["operations"].is_monotonic_increasing
    assert one.latencies["share"].max() == 1
    assert drawn(figures.benchmark(one)) >= 3
    both = lab.bench(
        "compare", "isobath", "null", records=2_000, pool="8MiB", duration=0.2, repeats=1,
        no_drive=True, out=tmp_path / "out", path=tmp_path / "b.iso",
    )  # fmt: skip
    assert len(both.runs) >= 2 and len(both.ratios) == 1
    kept = lab.read_campaign(tmp_path / "out")
    assert len(kept.runs) == len(both.runs)
    assert len((one + kept).runs) == 1 + len(kept.runs)
    with pytest.raises(FileNotFoundError):
        lab.read_campaign(tmp_path)


@needs_command
def test_a_probe_keeps_its_profile(profile: lab.Profile, tmp_path: Path) -> None:
    # The notebook of paper 000 probes a drive.
    saved = lab.Profile(profile.text)
    saved.save(tmp_path / "saved.json")
    assert lab.Profile.read(tmp_path / "saved.json").data == profile.data
    with pytest.raises(lab.CommandFailed, match="exists"):
        lab.probe(tmp_path, output=tmp_path / "saved.json", quick=True, size="64MiB")
    with pytest.raises(lab.CommandRefused, match="too small"):
        lab.probe(tmp_path, seeded=1, size="1MiB")


@needs_command
def test_models_and_advice(profile: lab.Profile, tmp_path: Path) -> None:
    models = lab.model(profile)
    assert models.chosen in set(models.table["kind"])
    assert models.table["held_out_median"].notna().any()
    assert not models.coefficients.empty and not models.residuals.empty and not models.lines.empty
    assert drawn(figures.model(models)) == 6
    assert drawn(figures.probe(profile)) >= 4
    # The command's residuals are this package's predictions of the same points, cross-validated.
    row = models.residuals.iloc[0]
    near = models.predict(
        row["point_concurrency"], io_pages=row["point_io_pages"], read_share=row["point_read_share"],
        random_share=row["point_random_share"],
    )  # fmt: skip
    assert 0.5 < near["pages_per_s"][0] / (row["ratio"] * row["throughput_pages_per_s"]) < 2
    workload = DOCS / "workloads" / "read-mostly.toml"
    advice = lab.advise(profile, workload)
    assert list(advice.predicted["engine"]) == ["Isobath", "RocksDB"]
    assert drawn(figures.advice(advice)) == 6
    assert {"workers", "pool_bytes", "cleaning_policy"} <= set(advice.options)
    assert lab.advise(profile, tomllib.loads(workload.read_text())).data == advice.data
    assert not advice.settings.empty and not advice.constants.empty
    with pytest.raises(lab.CommandFailed, match="key_bytes"):
        lab.advise(profile, {"data": {"record_count": 1}, "operations": {"clients": "many"}})


def test_predictions(profile: lab.Profile) -> None:
    rows = lab.predict(profile, [1, 8, 4096], io_pages=[[1], [4]])
    assert len(rows) == 6
    assert (rows["low_pages_per_s"] <= rows["pages_per_s"]).all()
    assert rows["caution"].isna().tolist() == [True, True, False] * 2
    assert rows["pages_per_s"][1] > rows["pages_per_s"][0]
    kinds = [kind for kind, _, _ in profile.predictor.kinds()]
    for kind in kinds:
        assert lab.predict(profile, 2.0, kind=kind)["pages_per_s"][0] > 0
    with pytest.raises(InvalidArgument, match="no model"):
        lab.predict(profile, 1, kind="oracle")
    with pytest.raises(ValueError):
        lab.predict(profile, "many")
    with pytest.raises(InvalidArgument):
        lab.Profile("{}")
    with pytest.raises(InvalidArgument):
        lab.Profile("no JSON")
    assert lab.best_node_pages(1e9, 100, 100, 1) == 16
    costs: Any = {
        "read_setup_us": 1,
        "read_transfer_us": 1,
        "write_setup_us": 1,
        "write_transfer_us": 1,
    }
    several = lab.printed_lsm_us(fanout=4, data_bytes=1e9, file_bytes=1e7, **costs)
    one = lab.printed_lsm_us(fanout=None, data_bytes=1e9, file_bytes=1e7, **costs)
    assert one["query_us"] < several["query_us"] and one["insert_us"] > several["insert_us"]


@needs_command
def test_failures_have_the_commands_sentences(tmp_path: Path) -> None:
    with pytest.raises(lab.CommandRefused, match="unknown cleaning policy") as refused:
        lab.sim_clean(policy="none")
    assert refused.value.exit_code == 2
    with pytest.raises(ValueError, match="--bogus"):
        lab.sim_clean(bogus=1)
    with pytest.raises(lab.CommandFailed, match="nothing.json") as failed:
        lab.model(tmp_path / "nothing.json")
    assert failed.value.exit_code == 3
    with pytest.raises(lab.CommandFailed):
        lab.raw(file=tmp_path / "nothing")


def test_a_command_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(lab.CommandNotFound, match="cargo build"):
        lab.sim_clean(command=tmp_path / "isobath")
    plain = tmp_path / "plain"
    plain.write_text("")
    with pytest.raises(FileNotFoundError):
        lab.sim_clean(command=plain)
    monkeypatch.setenv("ISOBATH_COMMAND", str(plain))
    with pytest.raises(lab.CommandNotFound):
        lab.find()
    monkeypatch.delenv("ISOBATH_COMMAND")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(lab.CommandNotFound, match="PATH"):
        lab.find()
    # One that is killed, and one that prints no JSON.
    script = tmp_path / "isobath"
    script.write_text("#!/bin/sh\nkill -9 $$\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(lab.CommandFailed, match="SIGKILL"):
        lab.sim_clean()
    script.write_text("#!/bin/sh\necho broken >&2; exit 3\n")
    with pytest.raises(lab.CommandFailed, match="broken"):
        lab.sim_clean()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"isobath\[lab\]"):
        lab.sim_clean()


@pytest.fixture
def sigint() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def children() -> list[str]:
    found = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True
    )
    return [line for line in found.stdout.splitlines() if " raw " in line]


@needs_command
@pytest.mark.usefixtures("sigint")
def test_an_interrupt_ends_the_child(tmp_path: Path) -> None:
    def interrupt() -> None:
        for _ in range(600):
            if children():
                break
            time.sleep(0.05)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    scratch = tmp_path / "scratch"
    with pytest.raises(KeyboardInterrupt):
        lab.raw(scratch=scratch, bytes="16MiB", duration=60)
    thread.join()
    assert children() == []
    assert not scratch.exists()


def test_frames_are_of_pandas(profile: lab.Profile) -> None:
    assert isinstance(profile.points, pandas.DataFrame)
    assert set(profile.points["usable"]) <= {True, False}
    assert not profile.regimes.empty and not profile.sentinels.empty
