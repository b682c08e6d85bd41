"""Large values, and values as files."""

import gc
import io
import shutil
from pathlib import Path

import pytest
from conftest import SMALL
from isobath import Closed, InvalidArgument, ReadOnly, Store, Tree, ValueReplaced, ValueWriter


def pattern(length: int) -> bytes:
    return (b"0123456789abcdef" * (length // 16 + 1))[:length]


@pytest.mark.parametrize("length", [0, 1, 1000, 4096, 1 << 20, 5_000_001])
def test_files(tree: Tree, length: int) -> None:
    value = pattern(length)
    with tree.open(b"k", "wb") as file:
        assert isinstance(file, io.IOBase) and file.writable()
        shutil.copyfileobj(io.BytesIO(value), file)
        assert b"k" not in tree
    assert tree[b"k"] == value
    assert tree.size(b"k") == length
    with tree.open(b"k") as source:
        assert source.raw.length == length  # type: ignore[attr-defined]
        assert source.read(10) == value[:10]
        rest = bytearray(length)
        assert source.readinto(rest) == max(length - 10, 0)
        assert source.read() == b""
    assert value[10:] == rest[: max(length - 10, 0)]
    with pytest.raises(ValueError):
        source.read()


def test_writers_that_do_not_finish(tree: Tree) -> None:
    with pytest.raises(ZeroDivisionError), tree.open(b"k", "wb") as file:
        file.write(pattern(1 << 20))
        1 // 0
    file = tree.open(b"k", "wb")
    file.write(pattern(1 << 20))
    del file
    gc.collect()
    file = tree.open(b"k", "wb")
    assert isinstance(file, ValueWriter)
    file.write(b"1")
    file.discard()
    file.close()
    assert b"k" not in tree
    with pytest.raises(ValueError, match="closed"):
        file.write(b"2")
    with pytest.raises(ValueError, match="mode"):
        tree.open(b"k", "r+")  # type: ignore[call-overload]


def test_streams_say_what_is_wrong(path: Path) -> None:
    with Store.create(path, **SMALL) as store:
        tree = store.create_tree("t")
        tree[b"k"] = pattern(1 << 20)
        source, file = tree.open(b"k"), tree.open(b"w", "wb")
        with pytest.raises(io.UnsupportedOperation):
            file.read()
        with pytest.raises(io.UnsupportedOperation):
            source.write(b"")
        with pytest.raises(TypeError):
            file.write("text")  # type: ignore[arg-type]
        file.close()
    with pytest.raises(Closed):
        source.read()
    with pytest.raises(Closed):
        source.seek(5)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_writer_that_cannot_be_made_leaves_nothing(path: Path) -> None:
    with Store.create(path, **SMALL) as store:
        tree = store.create_tree("t")
        with pytest.raises(InvalidArgument):
            tree.open(bytes(1025), "wb")
        with Store.open(path, read_only=True, **SMALL) as reader, pytest.raises(ReadOnly):
            reader.tree("t").open(b"k", "wb")
    gc.collect()


def test_in_transactions(store: Store, tree: Tree) -> None:
    value = pattern(1 << 20)
    with store.transaction() as transaction:
        view = transaction[tree]
        with view.open(b"k", "wb") as file:
            file.write(value)
        with view.open(b"k") as source:
            assert source.read() == value
        with pytest.raises(ZeroDivisionError), view.open(b"j", "wb") as file:
            file.write(b"lost")
            1 // 0
    assert dict(tree) == {b"k": value}
    with store.snapshot() as snapshot, snapshot[tree].open(b"k") as source:
        tree[b"k"] = b"other"
        assert source.read() == value


def test_views(store: Store, tree: Tree) -> None:
    value = pattern(1 << 20)
    tree.put_many({b"k": value, b"empty": b""})
    view = tree.view(b"k")
    assert view is not None and view.readonly and view == value
    with store.snapshot() as snapshot:
        empty = snapshot[tree].view(b"empty")
        assert empty is not None and bytes(empty) == b""
    assert tree.view(b"no") is None
    tree[b"k"] = b"other"
    assert view[5:9] == value[5:9], "a view outlives its value"
    with pytest.raises(TypeError):
        view[0] = 1
    tree[b"copy"] = view
    del view
    gc.collect()
    assert tree[b"copy"] == value


def test_a_value_that_is_replaced(tree: Tree) -> None:
    tree[b"k"] = pattern(20 << 20)
    with tree.open(b"k") as source:
        source.read(10)
        tree[b"k"] = b"other"
        with pytest.raises(ValueReplaced, match="read it again"):
            source.read()


def test_a_stream_keeps_its_store_open(path: Path) -> None:
    with Store.create(path, **SMALL) as store:
        store.create_tree("t")[b"k"] = bytes(100_000)
    with Store.open(path, **SMALL).tree("t").open(b"k") as stream:
        gc.collect()
        assert stream.read() == bytes(100_000)
    with Store.open(path, **SMALL).tree("t").open(b"l", "wb") as writer:
        gc.collect()
        writer.write(b"written")
    with Store.open(path, **SMALL) as store:
        assert store.tree("t")[b"l"] == b"written"


def test_first_and_last_read_one_value(tree: Tree) -> None:
    assert tree.first() is None and tree.last() is None
    tree.update({b"a": b"1", b"b": bytes(100_000), b"c": b"3"})
    assert tree.first() == (b"a", b"1") and tree.last() == (b"c", b"3")
    with pytest.raises(TypeError):
        tree.size(5)  # type: ignore[arg-type]


def test_parts_and_places(tree: Tree) -> None:
    for value in [b"", b"short", bytes(range(256)) * 4000]:
        tree[b"k"] = value
        for start in [None, 0, 3, -3, 1_000_000, -2_000_000, 2_000_000]:
            for stop in [None, 0, 4, -1, 1_023_000, 2_000_000]:
                assert tree.part(b"k", start, stop) == value[start:stop], (start, stop)
        with tree.open(b"k") as file:
            assert file.seekable()
            for place in [0, 2, 900_000, 5, 2_000_000, 1]:
                assert file.seek(place) == place
                assert file.read(7) == value[place : place + 7]
            assert file.seek(0, 2) == len(value)
            with pytest.raises(ValueError):
                file.seek(-1)
    assert tree.part(b"nothing") is None
    with tree.store.snapshot() as snapshot:
        del tree[b"k"]
        assert snapshot[tree].part(b"k", 1, 3) == b"\1\2"
