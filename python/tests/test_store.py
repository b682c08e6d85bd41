"""Stores: opening, closing, pickling, forking, looking after them."""

import copy
import dataclasses
import gc
import io
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import isobath
import pytest
from conftest import SMALL
from isobath import (
    Closed,
    Corruption,
    Error,
    Forked,
    InvalidArgument,
    NoSpace,
    NoSuchTree,
    NotAStore,
    Options,
    Poisoned,
    ReadOnly,
    Stats,
    Store,
    StoreExists,
    StoreInUse,
    StoreNotFound,
    Tree,
    TreeDropped,
    TreeExists,
)


@pytest.mark.parametrize("system, machine", [("Darwin", "arm64"), ("Linux", "riscv64")])
def test_other_platforms_are_refused(system: str, machine: str) -> None:
    program = f"""
import platform
platform.system, platform.machine = lambda: {system!r}, lambda: {machine!r}
import isobath
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    sentence = f"isobath runs on Linux, on x86-64 and aarch64, and not on {system} on {machine}"
    assert ended.stderr.endswith(f"ImportError: {sentence}\n")


def test_opens_and_closes(path: Path) -> None:
    with Store.create(path, **SMALL) as store:
        assert store.paths == [path]
        tree = store.create_tree("t")
        tree[b"a"] = b"1"
        assert repr(store) == f"<isobath.Store {path}>" and "'t'" in repr(tree)
    assert store.closed
    store.close()
    uses = (
        lambda: tree[b"a"],
        lambda: tree.__setitem__(b"a", b""),
        lambda: list(tree),
        lambda: len(tree),
        lambda: tree.get_many([b"a"]),
        lambda: tree.put_many({b"a": b""}),
        lambda: tree.load({b"a": b""}),
        lambda: tree.open(b"a"),
        lambda: tree.open(b"a", "wb").close(),
        lambda: store.tree("t"),
        lambda: store.trees(),
        lambda: store.transaction(),
        lambda: store.snapshot(),
        lambda: store.check(),
        lambda: store.sync(),
    )
    for use in uses:
        with pytest.raises(Closed, match="the store is closed"):
            use()
    with Store.open(path, **SMALL) as store:
        assert store.tree("t")[b"a"] == b"1"
    with Store.open_or_create(path, **SMALL) as store:
        assert store.trees() == ["t"]


def test_a_tree_keeps_its_store_open(path: Path) -> None:
    tree = Store.create(path, **SMALL).create_tree("t")
    tree[b"a"] = b"1"
    keys = tree.keys().__iter__()
    assert tree.store.trees() == ["t"]
    del tree
    gc.collect()
    assert list(keys) == [b"a"]
    del keys
    gc.collect()
    # Forgetting the last object has closed it.
    Store.open(path, **SMALL).close()


def test_a_cycle_is_collected(path: Path) -> None:
    class Library(Store):
        books: Tree
        cursor: object

    library = Library.create(path, **SMALL)
    library.books = library.create_tree("books")
    library.cursor = iter(library.books)
    del library
    gc.collect()
    Store.open(path, **SMALL).close()


def test_a_full_store_still_reads(path: Path) -> None:
    with Store.create(path, volume_limit_bytes=8 << 20, segment_bytes=1 << 16, **SMALL) as store:
        tree = store.create_tree("t")
        with pytest.raises(NoSpace, match="no space for a change") as caught:
            for n in range(1000):
                tree[b"%04d" % n] = bytes(100_000)
        assert isinstance(caught.value, OSError)
        stored = len(tree)
        assert 0 < stored < 1000 and len(tree[b"0000"]) == 100_000
        assert b"%04d" % stored not in tree
        tree.clear()
        tree[b"again"] = bytes(100_000)


def test_corruption_is_named(path: Path) -> None:
    with Store.create(path, **SMALL) as store:
        tree = store.create_tree("t")
        tree.put_many((b"%06d" % n, b"value %d" % n) for n in range(50_000))
    data = path.read_bytes()
    assert b"value 25000" in data
    path.write_bytes(data.replace(b"value 25000", b"VALUE 25000"))
    with Store.open(path, **SMALL) as store:
        report = store.check()
        assert not report.is_sound and "corrupt" in report.problems[0]
        with pytest.raises(Corruption, match="restore from a backup"):
            list(store.tree("t").items())


def test_trees(store: Store) -> None:
    tree = store.create_tree("t")
    with pytest.raises(TreeExists, match='a tree named "t" exists already'):
        store.create_tree("t")
    with pytest.raises(NoSuchTree, match='^there is no tree named "no"; '):
        store.tree("no")
    with pytest.raises(KeyError):
        store.tree("no")
    with pytest.raises(ValueError, match="a tree's name has 1 to"):
        store.create_tree("")
    assert store.open_or_create_tree("u").name == "u"
    assert store.trees() == ["t", "u"]
    store.drop_tree("t")
    with pytest.raises(TreeDropped):
        tree[b"a"]


def test_errors_of_opening(path: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound, match="does not exist"):
        Store.open(path)
    with pytest.raises(FileNotFoundError):
        Store.open(path)
    with Store.create(path, **SMALL):
        with pytest.raises(StoreInUse, match="is in use by"):
            Store.open(path, **SMALL)
    with pytest.raises(StoreExists, match="exists already"):
        Store.create(path, **SMALL)
    other = tmp_path / "other"
    other.write_bytes(b"not a store" * 1000)
    with pytest.raises(NotAStore, match="is not an Isobath store"):
        Store.open(other)
    with pytest.raises(NotAStore, match="is a directory"):
        Store.open(tmp_path)
    with pytest.raises(InvalidArgument, match="option workers"):
        Store.in_memory(workers=1000)
    with pytest.raises(ValueError, match="'synced', 'none'"):
        Store.in_memory(durability="often")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="durability"):
        Store.in_memory(durability=-1.0)
    with pytest.raises(TypeError, match="no option pool"):
        Store.in_memory(pool=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Store.in_memory(workers="many")  # type: ignore[arg-type]
    assert issubclass(Poisoned, Error) and not issubclass(Error, OSError)


def test_impossible_paths_and_options_say_why(path: Path, tmp_path: Path) -> None:
    for wrong in (5, None, b"s.iso", [b"s.iso"], [5]):
        for call in (Store.open, Store.create, Store.open_or_create, Store.changes_beside):
            with pytest.raises(TypeError, match="a path is a str or os.PathLike"):
                call(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a path is a str or os.PathLike"):
            Store.restore(wrong, path)  # type: ignore[arg-type]
    for empty in ("", [], ["a\0b"], [str(path), ""]):
        with pytest.raises(InvalidArgument, match="path"):
            Store.create(empty)
    with pytest.raises(InvalidArgument, match="are the same file"):
        Store.open([tmp_path / "a", tmp_path / "a"])
    for value in (-1, 1 << 70):
        with pytest.raises(InvalidArgument, match=f"option pool_bytes: {value} is out of range"):
            Store.in_memory(pool_bytes=value)
    with pytest.raises(TypeError, match="option pool_bytes: 'str'"):
        Store.in_memory(pool_bytes="8MiB")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="cannot open .*it does not exist"):
        Store.restore(tmp_path / "none.backup", path, **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_store_is_corrupt(path: Path) -> None:
    Store.create(path, **SMALL).close()
    os.truncate(path, path.stat().st_size // 3)
    with pytest.raises(Corruption, match="is truncated"):
        Store.open(path, **SMALL)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_what_a_user_may_not_open_is_a_permission_error(path: Path) -> None:
    Store.create(path, **SMALL).close()
    path.chmod(0o600)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            Store.open(path, **SMALL)
        except PermissionError as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read().startswith("AccessDenied: no permission to access")
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("option", Options.__annotations__)
def test_options_are_known(option: str) -> None:
    arguments: Any = {option: object()}
    with pytest.raises(TypeError) as caught:
        Store.in_memory(**arguments)
    assert "there is no option" not in str(caught.value)


def test_large_trees_have_overlays(path: Path) -> None:
    with Store.create(path, overlays=True, **SMALL) as store:
        tree = store.create_tree("t")
        tree.load((f"{n:08}".encode(), bytes(500)) for n in range(40_000))
        for n in range(0, 40_000, 7):
            tree[f"{n:08}".encode()] = b"new"
        deadline = time.monotonic() + 60
        while store.stats().overlaid_trees == 0 and time.monotonic() < deadline:
            tree[b"00000001"] = b"newer"
        assert store.stats().overlaid_trees == 1
        assert (tree[b"00000007"], len(tree)) == (b"new", 40_000)
    with Store.open(path, **SMALL) as store:
        assert store.tree("t")[b"00000007"] == b"new"


def test_read_only(path: Path) -> None:
    with Store.create(path, **SMALL) as store:
        store.create_tree("t")[b"a"] = b"1"
        with Store.open(path, read_only=True, **SMALL) as reader:
            assert reader.tree("t")[b"a"] == b"1"
            with pytest.raises(ReadOnly):
                reader.tree("t")[b"a"] = b"2"


def test_durability(path: Path) -> None:
    with Store.create(path, durability=0.01, **SMALL) as store:
        tree = store.create_tree("t")
        tree[b"a"] = b"1"
        with store.transaction(durability="none") as transaction:
            transaction[tree][b"b"] = b"2"
        before = store.stats().checkpoints
        store.sync()
        assert store.stats().checkpoints > before


def test_statistics(store: Store, tree: Tree) -> None:
    tree[b"a"] = b"1"
    stats = store.stats()
    assert isinstance(stats, Stats) and dataclasses.is_dataclass(stats)
    assert stats.commits >= 1 and stats.workers == 1
    # A number that the engine has and the dataclass has not would be a TypeError.
    assert {field.name for field in dataclasses.fields(Stats)} == set(store.numbers())
    assert 'isobath_commits_total{store="people"}' in store.openmetrics({"store": "people"})
    assert tree.stats().records == 1 and tree.stats().is_exact
    assert tree.estimate_len() == 1


def test_looking_after_a_store(path: Path, tmp_path: Path) -> None:
    first, second, copy_path = (tmp_path / name for name in ("1.backup", "2.backup", "copy.iso"))
    with Store.create(path, **SMALL) as store:
        tree = store.create_tree("t")
        tree.put_many((b"%d" % n, b"v" * 100) for n in range(2000))
        report = store.check()
        assert report.is_sound and report.records == 2000
        assert store.backup(first) == first.stat().st_size
        tree[b"later"] = b"1"
        store.backup(second, since=first)
        with pytest.raises(StoreExists):
            store.backup(second)
        tree.clear()
        assert store.compact().bytes_after > 0
    Store.restore([first, second], copy_path, **SMALL)
    with Store.open(copy_path, **SMALL) as store:
        assert len(store.tree("t")) == 2001


class Bar:
    """What `tqdm` is to the package."""

    def __init__(self) -> None:
        self.total: int | None = None
        self.steps: list[int] = []

    def update(self, n: int, /) -> None:
        assert self.total is not None
        self.steps.append(n)


def test_progress(path: Path, tmp_path: Path) -> None:
    backup, copy_path = tmp_path / "backup", tmp_path / "copy.iso"
    with Store.create(path, durability="none", **SMALL) as store:
        store.create_tree("t").load((b"%06d" % n, bytes(1000)) for n in range(60_000))
        calls = (
            lambda bar: store.check(progress=bar),
            lambda bar: store.backup(backup, progress=bar),
            lambda bar: Store.restore(backup, copy_path, progress=bar, **SMALL),
        )
        for call in calls:
            bar = Bar()
            call(bar)
            # More than the last report, and no more than there is.
            assert len(bar.steps) > 1 and min(bar.steps) > 0
            assert sum(bar.steps) == bar.total

        class Full(Bar):
            def update(self, n: int, /) -> None:
                raise BrokenPipeError

        with pytest.raises(BrokenPipeError):
            store.backup(tmp_path / "second", progress=Full())
        assert not (tmp_path / "second").exists()


def test_pickles_by_path(path: Path) -> None:
    with Store.create(path, **SMALL) as store:
        tree = store.create_tree("t")
        tree[b"a"] = b"1"
        pickled = pickle.dumps(tree)
        assert pickle.loads(pickled).store is store
        assert copy.deepcopy(store) is store
        with store.transaction() as transaction:
            for part in (transaction, transaction[tree]):
                with pytest.raises(TypeError, match="cannot be pickled"):
                    pickle.dumps(part)
    again = pickle.loads(pickled)
    assert again.store is not store and again[b"a"] == b"1"
    again.store.close()
    with pytest.raises(TypeError, match="no path"):
        pickle.dumps(Store.in_memory(**SMALL))
    conflict = isobath.Conflict("sentence", "t", b"k")
    assert pickle.loads(pickle.dumps(conflict)).key == b"k"


def read(tree: Tree) -> bytes:
    return tree[b"a"]


def test_workers_open_their_own(path: Path) -> None:
    with Store.create(path, **SMALL) as store:
        store.create_tree("t")[b"a"] = b"1"
        with Store.open(path, read_only=True, **SMALL) as reader:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                assert pool.apply(read, (reader.tree("t"),)) == b"1"


def test_a_forked_child_is_refused(path: Path) -> None:
    with Store.create(path, **SMALL) as store:
        tree = store.create_tree("t")
        tree[b"a"] = b"1"
        stream = tree.open(b"a")
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            answer = "nothing was raised"
            try:
                try:
                    tree[b"a"]
                except Forked as error:
                    answer = str(error)
                    try:
                        tree[b"a"] = b"2"
                    except Forked:
                        answer += "; refused"
                    try:
                        stream.read()
                    except Forked:
                        answer += "; its stream, too"
                del store, tree
                gc.collect()
            finally:
                os.write(writer, answer.encode())
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            answer = pipe.read()
        assert os.waitpid(child, 0)[1] == 0
        assert answer.startswith("the store was opened before this process was forked")
        assert answer.endswith("; refused; its stream, too")
        assert tree[b"a"] == b"1"


def test_a_program_that_does_not_close(path: Path) -> None:
    program = f"""
import isobath
store = isobath.Store.create({str(path)!r}, pool_bytes=8 << 20, workers=1)
tree = store.create_tree("t")
tree[b"a"] = b"1"
keep = store, tree
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    with Store.open(path, **SMALL) as store:
        assert store.stats().recovered_log_bytes == 0, "the end of the program closed it"
        assert store.tree("t")[b"a"] == b"1"


def test_closing_beside_threads(path: Path) -> None:
    store = Store.create(path, durability="none", **SMALL)
    tree = store.create_tree("t")
    tree.put_many((b"%d" % n, b"") for n in range(100))
    ended: list[str] = []

    def use() -> None:
        try:
            while True:
                tree[b"%d" % len(list(tree))] = b"v"
        except Closed as error:
            ended.append(str(error))

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    store.close()
    for thread in threads:
        thread.join()
    assert ended == ["the store is closed"] * 4


def test_a_store_of_another_process(path: Path) -> None:
    program = f"""
import isobath
with isobath.Store.create({str(path)!r}, pool_bytes=8 << 20, workers=1) as store:
    store.create_tree("t")[b"a"] = b"1"
    print("open", flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(StoreInUse, match=rf"store\.iso is in use by .*{other.pid}"):
            Store.open(path, **SMALL)
        with pytest.raises(StoreInUse):
            Store.open(path, open_timeout=0.1, **SMALL)
        with Store.open(path, read_only=True, **SMALL) as reader:
            assert reader.tree("t")[b"a"] == b"1"
        other.communicate("\n")
    Store.open(path, **SMALL).close()


WAITING: dict[str, Callable[[Store, Tree, Path], object]] = {
    "put": lambda store, tree, path: tree.__setitem__(b"k", b"v"),
    "put_many": lambda store, tree, path: tree.put_many(
        (b"%d" % n, bytes(9000)) for n in range(500)
    ),
    "get_many": lambda store, tree, path: tree.get_many([b"%06d" % n for n in range(40_000)]),
    "count": lambda store, tree, path: tree.count(),
    "remove_range": lambda store, tree, path: tree.remove_range(stop=b"03"),
    "writer": lambda store, tree, path: shutil.copyfileobj(
        io.BytesIO(bytes(8 << 20)), tree.open(b"k", "wb")
    ),
    "transaction": lambda store, tree, path: store.transact(
        lambda transaction: transaction[tree].put_many((b"%d" % n, b"v") for n in range(500))
    ),
    "check": lambda store, tree, path: store.check(),
    "compact": lambda store, tree, path: store.compact(),
    "backup": lambda store, tree, path: store.backup(path, overwrite=True),
    "sync": lambda store, tree, path: store.sync(),
    "changes": lambda store, tree, path: store.changes(store.log_position()).take(timeout=0.2),
}


@pytest.mark.parametrize("call", WAITING)
def test_calls_that_wait_let_other_threads_run(path: Path, tmp_path: Path, call: str) -> None:
    begun, ended = threading.Event(), threading.Event()
    ran = 0
    # A thread that runs Python code gives the GIL to others only after that time: they run
    # meanwhile if the calls give it to them.
    interval = sys.getswitchinterval()
    with Store.create(path, **SMALL) as store:
        tree = store.create_tree("t")
        tree.load((b"%06d" % n, b"v" * 100) for n in range(40_000))

        def work() -> None:
            begun.set()
            deadline = time.monotonic() + 20
            try:
                while ran < 3 and time.monotonic() < deadline:
                    WAITING[call](store, tree, tmp_path / "backup")
            finally:
                ended.set()

        thread = threading.Thread(target=work)
        sys.setswitchinterval(1000)
        try:
            thread.start()
            begun.wait()
            while not ended.is_set():
                ran += 1
                time.sleep(0)
        finally:
            sys.setswitchinterval(interval)
            thread.join()
    assert ran >= 3


def test_a_thread_that_waits_lets_others_run(path: Path) -> None:
    store = Store.create(path, **SMALL)
    opened: list[Store] = []
    started = threading.Event()

    def wait() -> None:
        started.set()
        opened.append(Store.open(path, open_timeout=60, **SMALL))

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait()
    # Only if this thread runs can the other one end.
    store.close()
    thread.join()
    opened[0].close()
