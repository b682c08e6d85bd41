"""The file system: the suite that fsspec publishes, and what it leaves open."""

import io
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped, unused-ignore]
import pytest
from fsspec.tests.abstract import (  # type: ignore[import-untyped, unused-ignore]
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)
from isobath import Forked, InvalidArgument, ReadOnly, Store
from isobath.fsspec import IsobathFileSystem

from conftest import SMALL

QUICK: Any = {**SMALL, "durability": "none"}


@pytest.fixture
def fs() -> Iterator[IsobathFileSystem]:
    system = IsobathFileSystem(skip_instance_cache=True, **QUICK)
    yield system
    system.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[IsobathFileSystem, str]]:
    """A file system whose store is open during all tests of a suite, and a tree of that."""
    system = IsobathFileSystem(skip_instance_cache=True, **QUICK)
    yield system, f"{tmp_path_factory.mktemp('fsspec')}/store.iso/tree"
    system.close()


class Fixtures(AbstractFixtures):  # type: ignore[misc, unused-ignore]
    @pytest.fixture
    def fs(self, shared: tuple[IsobathFileSystem, str]) -> IsobathFileSystem:
        return shared[0]

    @pytest.fixture
    def fs_path(self, shared: tuple[IsobathFileSystem, str], tmp_path: Path) -> str:
        return f"{shared[1]}/{tmp_path.name}"

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class TestCopy(Fixtures, AbstractCopyTests):  # type: ignore[misc, unused-ignore]
    pass


class TestGet(Fixtures, AbstractGetTests):  # type: ignore[misc, unused-ignore]
    pass


class TestPut(Fixtures, AbstractPutTests):  # type: ignore[misc, unused-ignore]
    pass


class TestOpen(Fixtures, AbstractOpenTests):  # type: ignore[misc, unused-ignore]
    pass


class TestPipe(Fixtures, AbstractPipeTests):  # type: ignore[misc, unused-ignore]
    pass


@pytest.fixture
def root(tmp_path: Path) -> str:
    return f"{tmp_path}/store.iso"


def test_names_and_levels(fs: IsobathFileSystem, root: str) -> None:
    for name in ["a", "a-", "a/b", "a/c/d", "a0", "b/c", "ü/ö"]:
        fs.pipe(f"{root}/t/{name}", name.encode())

    def names(path: str) -> list[str]:
        return [name.removeprefix(f"{root}/t/") for name in fs.ls(path, detail=False)]

    assert names(f"{root}/t") == ["a", "a", "a-", "a0", "b", "ü"]
    assert names(f"{root}/t/a") == ["a/b", "a/c"]
    assert names(f"{root}/t/a/b") == ["a/b"]
    assert fs.ls(root, detail=False) == [f"{root}/t"]
    assert fs.info(f"{root}/t/a/c") == {
        "name": f"{root}/t/a/c",
        "size": 0,
        "type": "directory",
    }
    assert fs.info(f"{root}/t/b/c")["size"] == 3
    assert fs.find(f"{root}/t/a") == [f"{root}/t/a/b", f"{root}/t/a/c/d"]
    assert fs.find(f"{root}/t/b", withdirs=True) == [f"{root}/t/b", f"{root}/t/b/c"]
    assert fs.find(root, maxdepth=2) == [f"{root}/t/a", f"{root}/t/a-", f"{root}/t/a0"]
    assert fs.glob(f"{root}/t/a*") == [f"{root}/t/a", f"{root}/t/a-", f"{root}/t/a0"]
    assert fs.glob(f"{root}/t/**/d") == [f"{root}/t/a/c/d"]
    walked = {path: (directories, files) for path, directories, files in fs.walk(f"{root}/t/b")}
    assert walked == {f"{root}/t/b": ([], ["c"])}
    assert fs.exists(root) and fs.exists(f"{root}/t") and not fs.exists(f"{root}/u")
    assert fs.du(f"{root}/t/a") == 3 + 5


def test_files(fs: IsobathFileSystem, root: str) -> None:
    path = f"isobath://{root}/t/file"
    value = bytes(range(256)) * 5000
    with fs.open(path, "wb") as file:
        assert file.write(value) == len(value)
        assert not fs.exists(path)
    with fs.open(path, "ab") as file:
        file.write(b"end")
    with fs.open(path) as file:
        assert file.seek(-5, io.SEEK_END) == len(value) - 2
        assert file.read() == value[-2:] + b"end"
        file.seek(1000)
        assert file.read(10) == value[1000:1010]
    assert fs.cat_file(path, 5, 10) == value[5:10]
    assert fs.cat_file(path, -3) == b"end"
    assert fs.cat_file(path, end=-3) == value
    assert fs.cat_ranges([path, path], [0, 300_000], [2, 300_002]) == [value[:2], value[224:226]]
    with fs.open(path, "w") as file:
        file.write("text")
    with fs.open(path, "r") as file:
        assert file.read() == "text"
    assert fs.size(path) == 4
    with pytest.raises(RuntimeError), fs.open(path, "wb") as file:
        file.write(b"half")
        raise RuntimeError
    assert fs.cat(path) == b"text"
    fs.cp(path, f"{root}/u/copy")
    fs.mv(path, f"{root}/t/moved")
    assert not fs.exists(path)
    assert fs.cat([f"{root}/u/copy", f"{root}/t/moved"]) == {
        f"{root}/u/copy": b"text",
        f"{root}/t/moved": b"text",
    }
    first, second = fs.open(path, "xb"), fs.open(path, "xb")
    first.write(b"first")
    first.close()
    with pytest.raises(FileExistsError):
        second.close()
    assert fs.cat(path) == b"first"
    fs.rm(f"{root}/t", recursive=True)
    assert not fs.exists(f"{root}/t")
    assert fs.exists(f"{root}/u")


def test_a_transaction_shows_files_at_its_end(fs: IsobathFileSystem, root: str) -> None:
    with fs.transaction:
        with fs.open(f"{root}/t/a", "wb") as file:
            file.write(b"a")
        assert not fs.exists(f"{root}/t/a")
    assert fs.cat(f"{root}/t/a") == b"a"
    with pytest.raises(RuntimeError), fs.transaction:
        with fs.open(f"{root}/t/b", "wb") as file:
            file.write(b"b")
        raise RuntimeError
    assert not fs.exists(f"{root}/t/b")


def test_the_protocol_is_known(root: str, tmp_path: Path) -> None:
    system: Any = fsspec.filesystem("isobath", **QUICK)
    assert isinstance(system, IsobathFileSystem)
    with fsspec.open(f"isobath://{root}/t/a", "wb", **QUICK) as file:
        file.write(b"a")
    assert pickle.loads(pickle.dumps(system)).cat(f"{root}/t/a") == b"a"
    mapper: Any = fsspec.get_mapper(f"isobath://{root}/t", **QUICK)
    assert dict(mapper) == {"a": b"a"}
    # It shares the store with the program, which then closes it.
    system.close()
    with Store.open(root, **QUICK) as store:
        assert store.tree("t")[b"a"] == b"a"
        assert system.cat(f"{root}/t/a") == b"a"
        system.close()
    assert dict(mapper) == {"a": b"a"}
    system.close()


def test_a_forked_child_is_refused(fs: IsobathFileSystem, root: str) -> None:
    fs.pipe(f"{root}/t/a", b"a")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            fs.cat(f"{root}/t/a")
        except Forked:
            fs.close()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert fs.cat(f"{root}/t/a") == b"a"


def test_impossible_requests_say_why(fs: IsobathFileSystem, root: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fs.cat(f"{root}/t/a")
    with pytest.raises(FileNotFoundError):
        fs.ls(f"{tmp_path}/nothing/t")
    with pytest.raises(FileNotFoundError):
        fs.pipe(f"{tmp_path}/nothing/t/a", b"")
    assert not Path(root).exists()
    fs.pipe(f"{root}/t/a/b", b"b")
    for path in [f"{root}/t/x", f"{root}/u/a"]:
        with pytest.raises(FileNotFoundError):
            fs.open(path)
        with pytest.raises(FileNotFoundError):
            fs.rm(path)
    with pytest.raises(IsADirectoryError):
        fs.pipe(f"{root}/t", b"")
    with pytest.raises(IsADirectoryError):
        fs.rm(f"{root}/t/a")
    with pytest.raises(InvalidArgument):
        fs.cat(f"{root}/t/../u")
    with pytest.raises(InvalidArgument):
        fs.pipe(f"{root}/t/{'x' * 1025}", b"")
    with pytest.raises(InvalidArgument):
        fs.rm(root, recursive=True)
    with pytest.raises(ValueError):
        fs.open(f"{root}/t/a/b", "r+b")
    fs.close()
    reads = IsobathFileSystem(skip_instance_cache=True, read_only=True, **QUICK)
    assert reads.cat(f"{root}/t/a/b") == b"b"
    with pytest.raises(ReadOnly):
        reads.pipe(f"{root}/t/a/b", b"c")
    with pytest.raises(ReadOnly):
        reads.rm(f"{root}/t/a/b")
    reads.close()


def _all(fs: IsobathFileSystem, path: str) -> dict[str, bytes]:
    return {name.removeprefix(f"{path}/"): fs.cat_file(name) for name in fs.find(path)}


def test_moving_something_onto_itself_keeps_it(
    fs: IsobathFileSystem, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = f"{root}/t"
    for name in ["d/a", "d/b/c"]:
        fs.pipe(f"{tree}/{name}", name.encode())
    before = _all(fs, tree)
    monkeypatch.chdir(os.path.dirname(root))
    os.symlink(root, os.path.join(os.path.dirname(root), "link.iso"))
    for source, target in [
        (f"{tree}/d/a", f"{tree}/d"),
        (f"{tree}/d/a", f"{tree}/d/"),
        (f"{tree}/d/a", f"isobath://{tree}/d/a"),
        (f"{tree}/d/a", "store.iso/t/d/a"),
        (f"{tree}/d/a", "link.iso/t/d/a"),
        (f"{tree}/d/a", f"{tree}/d//a"),
        (f"{tree}/d/*", f"{tree}/d"),
    ]:
        fs.mv(source, target)
        assert _all(fs, tree) == before, (source, target)
    for source, target in [
        (f"{tree}/d", f"{tree}/d/"),
        (f"{tree}/d/", f"{tree}/d"),
        (f"{tree}/d", f"isobath://{tree}/d"),
        (f"{tree}/d/b", f"{tree}/d"),
        (f"{tree}/d", f"{tree}/"),
        ("store.iso/t", tree),
        ("link.iso/t/d/", f"{tree}/d"),
    ]:
        fs.rename(source, target, recursive=True)
        assert _all(fs, tree) == before, (source, target)
    fs.mv([f"{tree}/d/a"], [f"isobath://{tree}/d/a"])
    assert _all(fs, tree) == before
    with pytest.raises(FileNotFoundError):
        fs.mv(f"{tree}/d/x", f"{tree}/d/x/")


def test_moving_a_directory_below_itself_is_refused(fs: IsobathFileSystem, root: str) -> None:
    tree = f"{root}/t"
    for name in ["d/a", "d/b/c"]:
        fs.pipe(f"{tree}/{name}", name.encode())
    before = _all(fs, tree)
    for target in [f"{tree}/d/e", f"{tree}/d/b", f"{tree}/d/b/"]:
        with pytest.raises(InvalidArgument):
            fs.mv(f"{tree}/d", target, recursive=True)
    with pytest.raises(IsADirectoryError):
        fs.mv(f"{tree}/d", f"{tree}/e")
    assert _all(fs, tree) == before


def test_moving_removes_what_was_copied(fs: IsobathFileSystem, root: str) -> None:
    tree = f"{root}/t"
    fs.pipe({f"{tree}/d": b"file", f"{tree}/d/a": b"a", f"{tree}/d/d/a": b"da"})
    fs.mv(f"{tree}/d", f"{tree}/e")
    assert _all(fs, tree) == {"e": b"file", "d/a": b"a", "d/d/a": b"da"}
    # Each source is copied before it is overwritten.
    fs.mv(f"{tree}/d/d/", f"{tree}/d/", recursive=True)
    assert _all(fs, tree) == {"e": b"file", "d/a": b"da"}
    fs.mv(tree, f"{root}/u", recursive=True)
    assert not fs.exists(tree)
    assert _all(fs, f"{root}/u") == {"e": b"file", "d/a": b"da"}
    fs.pipe(f"{root}/u/f/e", b"other")
    with pytest.raises(InvalidArgument):
        fs.mv([f"{root}/u/e", f"{root}/u/f/e"], f"{root}/u/g/")
    with pytest.raises(InvalidArgument):
        fs.mv([f"{root}/u/e", f"{root}/u/f/e"], [f"{root}/u/f/e", f"{root}/u/e"])
    assert _all(fs, f"{root}/u") == {"e": b"file", "d/a": b"da", "f/e": b"other"}


def test_a_file_system_for_reading_refuses_changes(fs: IsobathFileSystem, root: str) -> None:
    path = f"{root}/t/a"
    fs.pipe(path, b"a")
    reads = IsobathFileSystem(skip_instance_cache=True, read_only=True, **QUICK)
    assert reads.cat(path) == b"a"
    changes: list[Callable[[], Any]] = [
        lambda: reads.pipe(path, b"b"),
        lambda: reads.pipe(f"{root}/u/a", b"b"),
        lambda: reads.open(path, "wb"),
        lambda: reads.open(path, "ab"),
        lambda: reads.open(path, "xb"),
        lambda: reads.rm(path),
        lambda: reads.rm_file(path),
        lambda: reads.rm(f"{root}/t", recursive=True),
        lambda: reads.rmdir(f"{root}/t"),
        lambda: reads.mkdir(f"{root}/u"),
        lambda: reads.makedirs(f"{root}/u"),
        lambda: reads.cp(path, f"{root}/t/b"),
        lambda: reads.mv(path, f"{root}/t/b"),
        lambda: reads.touch(path),
    ]
    for change in changes:
        with pytest.raises(ReadOnly):
            change()
    reads.close()
    assert _all(fs, f"{root}/t") == {"a": b"a"}
    assert fs.ls(root, detail=False) == [f"{root}/t"]


def test_piped_files_appear_at_the_end_of_a_transaction(fs: IsobathFileSystem, root: str) -> None:
    path = f"{root}/t/a"
    with fs.transaction:
        fs.pipe(path, b"a")
        assert not fs.exists(path)
    assert fs.cat(path) == b"a"
    with pytest.raises(ZeroDivisionError), fs.transaction:
        fs.pipe(path, b"b")
        raise ZeroDivisionError
    assert fs.cat(path) == b"a"


def test_removing_fails_before_it_begins(fs: IsobathFileSystem, root: str) -> None:
    tree = f"{root}/t"
    names = ["a", "d/a", "d/b/c", "d/b/e/f", "g"]
    fs.pipe({f"{tree}/{name}": name.encode() for name in names})
    before = _all(fs, tree)
    for other, recursive in [("x", True), ("d", False)]:
        with pytest.raises(OSError):
            fs.rm([f"{tree}/a", f"{tree}/{other}"], recursive=recursive)
        assert _all(fs, tree) == before
    with pytest.raises(InvalidArgument):
        fs.rm([f"{tree}/a", root], recursive=True)
    assert _all(fs, tree) == before
    fs.rm(f"{tree}/d", recursive=True, maxdepth=2)
    assert sorted(_all(fs, tree)) == ["a", "d/b/e/f", "g"]
    fs.rm([f"{tree}/d", f"{tree}/d/b", f"{tree}/d/b/e/f", f"{tree}/a", f"{tree}/a"], recursive=True)
    assert sorted(_all(fs, tree)) == ["g"]
    fs.pipe({f"{tree}/{name}": name.encode() for name in names})
    fs.rm(f"{tree}/**", recursive=True)
    assert not fs.exists(f"{tree}/d/a")


def test_blocks_and_checksums_follow_the_contents(fs: IsobathFileSystem, root: str) -> None:
    path = f"{root}/t/a"
    fs.pipe(path, b"one\ntwo\nsix\n")
    with fs.open(path) as file:
        assert file.size == 12
    assert fs.read_block(path, 1, 5) == b"ne\ntw"
    assert fs.read_block(path, 1, 5, delimiter=b"\n") == b"two\n"
    key, checksum = fs.ukey(path), fs.checksum(path)
    assert (fs.ukey(path), fs.checksum(path)) == (key, checksum)
    fs.pipe(path, b"one\nTWO\nsix\n")
    assert fs.ukey(path) != key and fs.checksum(path) != checksum
    assert fs.ukey(f"{root}/t") and fs.checksum(f"{root}/t")
    with pytest.raises(FileNotFoundError):
        fs.ukey(f"{root}/t/b")


def test_parts_are_read_while_the_value_is_replaced(fs: IsobathFileSystem, root: str) -> None:
    path = f"{root}/t/a"
    values = [bytes([number]) * (1 << 18) for number in range(2)]
    fs.pipe(path, values[0])
    is_over = threading.Event()

    def replace() -> None:
        while not is_over.is_set():
            for value in values:
                fs.pipe(path, value)

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        for _ in range(500):
            assert fs.cat_file(path, 1000, 200000) in [value[1000:200000] for value in values]
    finally:
        is_over.set()
        writer.join()


def test_keys_that_are_no_text(fs: IsobathFileSystem, root: str) -> None:
    with Store.create(root, **QUICK) as store:
        tree = store.create_tree("t")
        tree.update({b"d/\xff\xfe": b"raw", b"d/a": b"a"})
        store.create_tree("a/b")
    (odd,) = (name for name in fs.find(f"{root}/t") if not name.endswith("/a"))
    assert fs.cat(odd) == b"raw" and fs.size(odd) == 3
    assert len(fs.glob(f"{root}/t/d/*")) == 2
    assert len(fs.find(root)) == 2 and fs.ls(root, detail=False) == [f"{root}/t"]
    fs.mv(odd, f"{root}/t/text")
    assert fs.find(f"{root}/t") == [f"{root}/t/d/a", f"{root}/t/text"]


def test_nothing_is_found_where_nothing_is(
    fs: IsobathFileSystem, root: str, tmp_path: Path
) -> None:
    for path in [root, f"{root}/t", f"{tmp_path}/nothing/t"]:
        assert fs.find(path) == [] and fs.find(path, detail=True) == {}
        assert fs.find(path, maxdepth=1) == [] and fs.glob(f"{path}/*") == []
    assert not Path(root).exists()


def test_closing_closes_the_objects_of_other_threads(root: str) -> None:
    systems: list[Any] = []

    def use() -> None:
        systems.append(fsspec.filesystem("isobath", **QUICK))
        systems[-1].pipe(f"{root}/t/{len(systems)}", b"v")

    for _ in range(2):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    use()
    assert systems[0] is not systems[2]
    systems[0].close()
    # The file is free.
    with Store.open(root, **QUICK) as store:
        assert len(store.tree("t")) == 3
    assert systems[1].cat(f"{root}/t/1") == b"v"
    systems[1].close()


def test_a_tree_is_not_removed_beside_a_file_that_comes(fs: IsobathFileSystem, root: str) -> None:
    written: list[str] = []
    is_over = threading.Event()

    def write() -> None:
        number = 0
        while not is_over.is_set():
            path = f"{root}/t/{number}"
            fs.pipe(path, b"v")
            written.append(path)
            # A tree that was removed between had no file.
            assert fs.cat(path) == b"v"
            fs.rm(path)
            number += 1

    errors: list[BaseException] = []

    def run() -> None:
        try:
            write()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    removed = 0
    while len(written) < 200 and not errors:
        try:
            fs.rmdir(f"{root}/t")
            removed += 1
        except OSError:
            pass
    is_over.set()
    thread.join()
    assert errors == []


def test_a_move_is_seen_as_a_whole(fs: IsobathFileSystem, root: str) -> None:
    names = [f"d/{number}" for number in range(20)]
    fs.pipe({f"{root}/t/{name}": name.encode() for name in names})
    store = fs._store(root)
    counts = set()
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            with store.snapshot() as snapshot:
                counts.add(len(snapshot[store.tree("t")]))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(20):
            fs.mv(f"{root}/t/d", f"{root}/t/e", recursive=True)
            fs.mv(f"{root}/t/e", f"{root}/t/d", recursive=True)
    finally:
        is_over.set()
        thread.join()
    assert counts == {20}
    assert sorted(_all(fs, f"{root}/t")) == sorted(names)
