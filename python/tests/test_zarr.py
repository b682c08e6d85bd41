"""The zarr store: the suites that zarr publishes, and what they leave open."""

import asyncio
import multiprocessing
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
import zarr
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from isobath import Closed, InvalidArgument, Store, StoreNotFound
from isobath.zarr import IsobathStore
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine
from zarr.testing.store import StoreTests

from conftest import SMALL

#: Commits of these tests need not be on a drive.
QUICK: Any = {**SMALL, "durability": "none"}


@pytest.fixture
def file(path: Path) -> Path:
    """A store that has the tree."""
    with Store.create(path, **QUICK) as store:
        store.create_tree("zarr")
    return path


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store that is open during all tests of a suite."""
    with Store.create(tmp_path_factory.mktemp("zarr") / "store.iso", **QUICK) as store:
        yield store


class TestIsobathStore(StoreTests[IsobathStore, cpu.Buffer]):
    store_cls = IsobathStore
    buffer_cls = cpu.Buffer

    async def set(self, store: IsobathStore, key: str, value: Buffer) -> None:
        store.tree()[key.encode()] = value.to_bytes()

    async def get(self, store: IsobathStore, key: str) -> Buffer:
        return cpu.Buffer.from_bytes(store.tree()[key.encode()])

    @pytest.fixture
    def store_kwargs(self, shared: Store) -> dict[str, Any]:
        tree = shared.create_tree(f"suite {len(shared.trees())}")
        return {"path": shared.paths[0], "tree": tree.name}

    def test_store_repr(self, store: IsobathStore) -> None:
        assert repr(store) == f"IsobathStore('isobath://{store.path}/{store.tree_name}')"

    def test_store_supports_writes(self, store: IsobathStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: IsobathStore) -> None:
        assert store.supports_listing


@pytest.mark.filterwarnings("ignore:The data type")
@pytest.mark.parametrize("machine", [ZarrStoreStateMachine, ZarrHierarchyStateMachine])
def test_state_machines(machine: Any, file: Path) -> None:
    store = IsobathStore(file, options=QUICK)
    is_default = settings.get_current_profile_name() in ("default", "ci")
    few = settings(
        settings.get_profile("quick" if is_default else settings.get_current_profile_name()),
        stateful_step_count=20,
        suppress_health_check=list(HealthCheck),
    )
    make: Any = lambda: machine(store)
    run_state_machine_as_test(make, settings=few)
    store.close()


def test_arrays_are_there_after_closing(path: Path) -> None:
    with IsobathStore(path, options=QUICK) as store:
        array = zarr.create_array(store, shape=(100, 100), chunks=(10, 10), dtype="i4", name="a")
        array[:] = numpy.arange(10_000).reshape(100, 100)
        sharded: Any = zarr.create_array(
            store, shape=(64,), chunks=(4,), shards=(32,), dtype="i4", name="b/sharded"
        )
        sharded[:] = numpy.arange(64)
    store = IsobathStore(path, read_only=True)
    group: Any = zarr.open_group(store, mode="r")
    assert sorted(group) == ["a", "b"]
    assert (group["a"][:] == numpy.arange(10_000).reshape(100, 100)).all()
    # A chunk of a shard is a part of a value.
    assert (group["b/sharded"][8:12] == numpy.arange(8, 12)).all()
    with pytest.raises(ValueError, match="read-only"):
        group["a"][0, 0] = 1
    store.close()


def test_parts_of_large_values(file: Path) -> None:
    value = bytes(range(256)) * 5000
    prototype = default_buffer_prototype()
    with IsobathStore(file, options=QUICK) as store:
        store.set_sync("k", cpu.Buffer.from_bytes(value))
        requests: list[tuple[ByteRequest, bytes]] = [
            (RangeByteRequest(1_000_000, 1_000_010), value[1_000_000:1_000_010]),
            (RangeByteRequest(1_279_000, 2_000_000), value[1_279_000:]),
            (OffsetByteRequest(1_279_990), value[1_279_990:]),
            (OffsetByteRequest(2_000_000), b""),
            (SuffixByteRequest(3), value[-3:]),
            (SuffixByteRequest(2_000_000), value),
            (SuffixByteRequest(0), b""),
        ]
        for request, expected in requests:
            got = store.get_sync("k", byte_range=request)
            assert got is not None and got.to_bytes() == expected, request
            got = asyncio.run(store.get("k", prototype, request))
            assert got is not None and got.to_bytes() == expected, request
        assert store.get_sync("nothing", byte_range=SuffixByteRequest(3)) is None


def test_two_stores_of_a_process_share_one(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.iso"
    link.symlink_to(file)
    one, two = IsobathStore(file, options=QUICK), IsobathStore(link, tree="other")
    assert one.tree().store is two.tree().store
    assert pickle.loads(pickle.dumps(two)).tree().store is one.tree().store
    reader = IsobathStore(file, tree="other", read_only=True)
    two.set_sync("k", cpu.Buffer.from_bytes(b"v"))
    assert reader.get_sync("k") is not None
    reader.close()
    one.close()
    assert two.get_sync("k") is not None
    store = two.tree().store
    two.close()
    assert store.closed
    # What the program has opened itself stays open.
    with Store.open(file, **QUICK) as own:
        three = IsobathStore(file)
        assert three.tree().store is own
        three.close()
        assert not own.closed


def test_an_unpickled_store_outlives_the_leases(file: Path) -> None:
    leased = IsobathStore(file, options=QUICK)
    own = pickle.loads(pickle.dumps(leased.tree().store))
    leased.close()
    assert own.trees() == ["zarr"]
    own.close()


def _written(store: IsobathStore) -> int:
    array: Any = zarr.open_array(store, path="a", mode="r")
    return int(array[:].sum())


def test_another_process_opens_its_own(file: Path) -> None:
    with IsobathStore(file, options=QUICK) as store:
        array: Any = zarr.create_array(store, name="a", shape=(8,), chunks=(2,), dtype="i4")
        array[:] = 1
    reader = IsobathStore(file, read_only=True, options=QUICK)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_written, (reader,)) == 8


def test_impossible_requests_say_why(file: Path, tmp_path: Path) -> None:
    store = IsobathStore(file, options=QUICK)
    one = cpu.Buffer.from_bytes(b"1")
    for key in ["x" * 1025, "a/../b", ".."]:
        with pytest.raises(InvalidArgument):
            store.set_sync(key, one)
        with pytest.raises(ValueError):
            asyncio.run(store.get(key, default_buffer_prototype()))
    with pytest.raises(TypeError):
        store.set_sync("k", b"1")  # type: ignore[arg-type]
    store.close()
    store.close()
    with pytest.raises(Closed):
        store.get_sync("k")
    with pytest.raises(Closed):
        asyncio.run(store.set("k", one))
    with pytest.raises(StoreNotFound):
        IsobathStore(tmp_path / "none.iso", read_only=True).tree()
    # A store that was closed by its other user.
    with Store.open(file, **QUICK) as own:
        late = IsobathStore(file)
        late.tree()
    with pytest.raises(Closed):
        late.get_sync("k")
    late.close()


def test_many_threads(file: Path) -> None:
    store = IsobathStore(file, options=QUICK)

    def work(number: int) -> None:
        array: Any = zarr.create_array(
            store, name=f"a{number}", shape=(64,), chunks=(4,), dtype="i4"
        )
        array[:] = number
        assert (array[:] == number).all()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(16)))
    # Chunks of zeros are not stored.
    assert len(store.tree().keys(prefix=b"a")) == 16 + 15 * 16
    store.close()
