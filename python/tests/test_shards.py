"""Shards: one key space over several stores, and what happens when workers die."""

import asyncio
import itertools
import os
import pickle
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import zarr
from distributed import Client
from isobath import Closed, InvalidArgument, Store, StoreExists
from isobath.shards import Ring, ShardMissing, ShardMoved, Shards
from isobath.shards.zarr import ShardedStore, array, compute, persist
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype
from zarr.testing.store import StoreTests

from conftest import MACHINES, SMALL, machines, workers

#: What these tests' shards are opened with. Commits are synced: acknowledged ones must be there.
OPTIONS: Any = {**SMALL}


@pytest.fixture(scope="module")
def processes() -> Iterator[Client]:
    """Two workers in processes of their own."""
    with workers() as client:
        yield client


@pytest.fixture
def places(tmp_path: Path) -> list[Path]:
    return [tmp_path / f"{number}.iso" for number in range(3)]


@pytest.fixture
def shards(client: Client, places: list[Path]) -> Iterator[Shards]:
    with Shards.create(places, client, options=OPTIONS) as shards:
        yield shards


def test_the_ring_is_even_and_consistent() -> None:
    keys = [b"t/c/%d/%d" % (x, y) for x in range(100) for y in range(100)]
    for count in (1, 2, 3, 8):
        old, new = Ring(count), Ring(count + 1)
        found = Counter(map(old.shard_of, keys))
        assert set(found) == set(range(count))
        assert max(found.values()) < 1.5 * len(keys) / count
        moved = [key for key in keys if old.shard_of(key) != new.shard_of(key)]
        # Only to the new shard, and about its part.
        assert {new.shard_of(key) for key in moved} == {count}
        assert 0.5 < len(moved) / len(keys) * (count + 1) < 1.5
    for wrong in (0, -1, 10_000):
        with pytest.raises(InvalidArgument):
            Ring(wrong)


def test_a_mapping(shards: Shards) -> None:
    model = {b"%04d" % number: b"value %d" % number for number in range(500)}
    shards.put_many(model.items())
    assert len(shards) == 500 and dict(shards.scan()) == model
    assert list(shards) == sorted(model)
    assert {shards.ring.shard_of(key) for key in model} == {0, 1, 2}
    shards[b"0001"] = b"changed"
    assert shards[b"0001"] == b"changed" and b"0001" in shards and b"x" not in shards
    assert shards.get_many([b"0002", b"x", b"0003"]) == [b"value 2", None, b"value 3"]
    assert list(shards.scan("keys", b"001")) == [b"001%d" % number for number in range(10)]
    assert list(shards.scan("sizes", b"0001")) == [(b"0001", 7)]
    assert shards.count(b"01") == 100 and shards.remove_prefix(b"01") == 100
    assert shards.pop(b"0001") == b"changed"
    with pytest.raises(KeyError):
        shards[b"0001"]
    with pytest.raises(KeyError):
        del shards[b"0001"]
    assert not shards.discard(b"0001")
    other = pickle.loads(pickle.dumps(shards))
    assert other[b"0002"] == b"value 2" and other.owners() == shards.owners()
    assert shards.owner(b"0002") in shards.owners().values()
    shards.clear()
    assert len(shards) == 0 and list(shards) == []


def test_opening_again_in_any_order(client: Client, places: list[Path]) -> None:
    with Shards.create(places, client, options=OPTIONS) as shards:
        shards.put_many((b"%d" % number, b"v") for number in range(100))
        # While they are open, too.
        assert len(Shards.open(places[::-1], client, options=OPTIONS)) == 100
    with pytest.raises(Closed):
        shards[b"1"]
    moved = places[0].with_name("moved.iso")
    places[0].rename(moved)
    given = [places[2], moved, places[1]]
    with Shards.open(given, client, options=OPTIONS) as shards:
        assert [place.path for place in shards.places] == [
            str(moved),
            str(places[1]),
            str(places[2]),
        ]
        assert len(shards) == 100 and all(shards[b"%d" % number] == b"v" for number in range(100))


def test_impossible_requests_say_why(client: Client, places: list[Path], tmp_path: Path) -> None:
    Shards.create(places, client, options=OPTIONS).close()
    other = tmp_path / "other.iso"
    Shards.create([other], client, options=OPTIONS).close()
    plain = tmp_path / "plain.iso"
    Store.create(plain, **OPTIONS).close()

    def opened(*given: Any, **options: Any) -> Shards:
        return Shards.open(list(given), client, options=OPTIONS, **options)

    with pytest.raises(ShardMissing, match="shard 1 is missing"):
        opened(places[0], places[2])
    with pytest.raises(InvalidArgument, match="different key spaces"):
        opened(*places, other)
    with pytest.raises(ShardMissing, match="no shard"):
        opened(plain)
    with pytest.raises(ShardMissing, match="does not exist"):
        opened(places[0], places[1], tmp_path / "nothing.iso")
    with pytest.raises(ShardMissing, match="no worker that could have it"):
        opened(("elsewhere", other), patience=0)
    copy = tmp_path / "copy.iso"
    shutil.copy(places[0], copy)
    with pytest.raises((InvalidArgument, ShardMissing), match="same shard|is a copy"):
        opened(*places, copy)
    with pytest.raises(StoreExists):
        Shards.create([tmp_path / "new.iso", other], client, options=OPTIONS)
    assert not (tmp_path / "new.iso").exists()
    for wrong in ("path", [7], [(1, "path")]):
        with pytest.raises(TypeError):
            Shards.open(wrong, client)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        opened(other, other)
    with opened(other) as shards:
        with pytest.raises(TypeError):
            shards["text"]  # type: ignore[index]
        with pytest.raises(TypeError):
            shards[b"k"] = "text"  # type: ignore[assignment]
        with pytest.raises(InvalidArgument):
            shards[b"x" * 1025] = b""
        with pytest.raises(InvalidArgument):
            shards.scan("letters")


@pytest.fixture(scope="module")
def suite(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shards]:
    directory = tmp_path_factory.mktemp("shards")
    options: Any = {**OPTIONS, "durability": "none"}
    with Shards.create(
        [directory / "a.iso", directory / "b.iso"], client, options=options
    ) as shards:
        yield shards


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ImportError, match=r"isobath\[dask\]"):
        Shards.create(["a.iso"])


class TestShardedStore(StoreTests[ShardedStore, cpu.Buffer]):
    store_cls = ShardedStore
    buffer_cls = cpu.Buffer

    async def set(self, store: ShardedStore, key: str, value: Buffer) -> None:
        await asyncio.to_thread(store.shards.__setitem__, key.encode(), value.to_bytes())

    async def get(self, store: ShardedStore, key: str) -> Buffer:
        value = await asyncio.to_thread(store.shards.__getitem__, key.encode())
        return cpu.Buffer.from_bytes(value)

    @pytest.fixture
    def store_kwargs(self, suite: Shards) -> dict[str, Any]:
        suite.clear()
        return {"shards": suite}

    def test_store_repr(self, store: ShardedStore) -> None:
        assert repr(store) == f"ShardedStore('isobath-shards://{store.shards.id}/data')"

    def test_store_supports_writes(self, store: ShardedStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: ShardedStore) -> None:
        assert store.supports_listing


def _pid() -> int:
    return os.getpid()


def _kill_owner(client: Client, shards: Shards, shard: int) -> str:
    """Kills the worker that has a shard."""
    keys = (b"%d" % number for number in itertools.count())
    owner = shards.owner(next(key for key in keys if shards.ring.shard_of(key) == shard))
    os.kill(client.run(_pid)[owner], signal.SIGKILL)
    return owner


def _wait_for_workers(client: Client) -> None:
    for _ in range(600):
        if len(client.scheduler_info(n_workers=-1)["workers"]) == 2:
            return
        time.sleep(0.05)
    raise AssertionError("the workers have not come back")


def test_reads_run_where_chunks_lie_and_survive_a_killed_worker(
    processes: Client, places: list[Path]
) -> None:
    shards = Shards.create(places, processes, options=OPTIONS, tree="zarr")
    store = ShardedStore(shards)
    made: Any = zarr.create_array(store, name="a", shape=(60, 60), chunks=(10, 10), dtype="i8")
    values = numpy.arange(3600).reshape(60, 60)
    made[:] = values
    lazy = array(store, "a")
    assert lazy.chunks == ((10,) * 6,) * 2
    # Each chunk is read by its owner.
    kept = persist(lazy)
    compute(kept)
    owners = shards.owners()
    dask_client: Any = processes
    for (_, x, y), found in dask_client.who_has(dask_client.futures_of(kept)).items():
        assert owners[shards.ring.shard_of(b"a/c/%d/%d" % (x, y))] in found
    del kept
    assert compute(lazy.sum(), lazy[:10].max()) == (values.sum(), values[:10].max())
    assert (lazy + 1).sum().compute() == (values + 1).sum()
    # Everything acknowledged is there after a kill, and the worker that died is named.
    shards[b"acknowledged"] = b"before the kill"
    lost = _kill_owner(processes, shards, shards.ring.shard_of(b"acknowledged"))
    with pytest.warns(ShardMoved, match=lost):
        assert shards[b"acknowledged"] == b"before the kill"
    assert [move.lost_worker for move in shards.moves] == [lost] * len(shards.moves)
    assert (made[:] == values).all()
    # An array that was made before that names an owner which is gone.
    assert compute(lazy.sum()) == values.sum()
    _wait_for_workers(processes)
    shards.close()


def test_a_worker_is_killed_during_writes_and_a_computation(
    processes: Client, places: list[Path]
) -> None:
    _wait_for_workers(processes)
    shards = Shards.create(places, processes, options=OPTIONS, tree="zarr")
    store = ShardedStore(shards)
    made: Any = zarr.create_array(store, name="a", shape=(40, 40), chunks=(5, 5), dtype="i8")
    values = numpy.arange(1600).reshape(40, 40)
    made[:] = values
    total: Any = processes.submit(_sum_slowly, store)
    acknowledged = []
    lost = ""
    for number in range(200):
        key = b"%d" % number
        shards[key] = key
        acknowledged.append(key)
        if number == 100:
            lost = _kill_owner(processes, shards, 0)
    assert all(shards[key] == key for key in acknowledged)
    assert lost in {move.lost_worker for move in shards.moves}
    assert compute(array(store, "a").sum()) == values.sum()
    assert total.result(timeout=60) == values.sum()
    _wait_for_workers(processes)
    shards.close()


def _sum_slowly(store: ShardedStore) -> int:
    opened: Any = zarr.open_array(store, path="a", mode="r")
    total = 0
    for row in range(0, 40, 5):
        total += int(opened[row : row + 5].sum())
        time.sleep(0.05)
    return total


def test_a_shard_whose_file_is_gone_is_reported(processes: Client, places: list[Path]) -> None:
    _wait_for_workers(processes)
    shards = Shards.create(places, processes, options=OPTIONS, patience=0.5)
    shards.put_many((b"%d" % number, b"v") for number in range(50))
    gone = places[1].with_suffix(".gone")
    places[1].rename(gone)
    lost = _kill_owner(processes, shards, 1)
    with pytest.raises(ShardMissing, match="does not exist") as missing:
        len(shards)
    assert (missing.value.shard, missing.value.path) == (1, str(places[1]))
    assert missing.value.worker == lost and lost in str(missing.value)
    # A chunk that cannot be read is not an empty one.
    store = ShardedStore(shards)
    prototype = default_buffer_prototype()
    key = next(key for key in map(str, range(100)) if shards.ring.shard_of(key.encode()) == 1)
    with pytest.raises(ShardMissing):
        asyncio.run(store.get(key, prototype))
    # The others answer, and so does it when its file is back.
    assert shards.get_many([b"%d" % n for n in range(50) if shards.ring.shard_of(b"%d" % n) != 1])
    gone.rename(places[1])
    assert len(shards) == 50
    _wait_for_workers(processes)
    shards.close()


def test_a_shard_of_a_machine_that_is_gone_is_reported(tmp_path: Path) -> None:
    places = [(host, tmp_path / f"{host}.iso") for host in MACHINES]
    with machines(tmp_path) as client:
        shards = Shards.create(places, client, options=OPTIONS, patience=0.5)
        keys = [b"%d" % number for number in range(50)]
        for key in keys:
            shards[key] = key
        lost = _kill_owner(client, shards, 1)
        assert "127.0.0.2" in lost
        # The file is there, but on a drive that the other machine has not.
        by_shard: dict[int, list[bytes]] = {0: [], 1: []}
        for key in keys:
            by_shard[shards.ring.shard_of(key)].append(key)
        with pytest.raises(ShardMissing, match=r"on 127\.0\.0\.2") as missing:
            shards[by_shard[1][0]]
        assert (missing.value.shard, missing.value.worker) == (1, lost)
        assert missing.value.path == str(places[1][1]) and shards.moves == []
        with pytest.raises(ShardMissing):
            shards[by_shard[1][0]] = b"not acknowledged"
        assert shards.get_many(by_shard[0]) == by_shard[0]
        # The machine's other worker opens it if there is one.
        lost = _kill_owner(client, shards, 0)
        with pytest.warns(ShardMoved, match=lost):
            assert shards.get_many(by_shard[0]) == by_shard[0]
        assert "127.0.0.1" in shards.owner(by_shard[0][0]) and shards.owner(by_shard[0][0]) != lost
        with pytest.raises(ShardMissing):
            len(shards)
        shards.close()
    with Store.open(places[1][1], **SMALL) as store:
        assert sorted(store.tree("data").items()) == [(key, key) for key in sorted(by_shard[1])]


def test_a_stopped_worker_hands_its_shards_over(processes: Client, places: list[Path]) -> None:
    _wait_for_workers(processes)
    shards = Shards.create(places, processes, options=OPTIONS)
    shards.put_many((b"%d" % number, b"v") for number in range(50))
    stopped = shards.owners()[0]
    retire: Any = processes.retire_workers
    retire([stopped])
    # It answers until it has closed them.
    for _ in range(600):
        assert len(shards) == 50
        if stopped not in shards.owners().values():
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the worker has not stopped")
    assert len(shards) == 50
    shards.close()
