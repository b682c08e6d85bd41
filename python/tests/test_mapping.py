"""A tree as an ordered mapping."""

import array
import re
import threading
from collections.abc import ItemsView, KeysView, Mapping, MutableMapping, ValuesView

import pytest
from isobath import InvalidArgument, MAX_KEY_BYTES, Store, Tree


def fill(tree: Tree, count: int) -> None:
    tree.put_many((b"%06d" % n, b"v%d" % n) for n in range(count))


def test_is_a_mutable_mapping(tree: Tree) -> None:
    assert isinstance(tree, MutableMapping)
    assert not tree
    tree[b"b"] = b"2"
    tree[b"a"] = b"1"
    tree[b""] = b""
    assert tree
    assert len(tree) == 3
    assert b"a" in tree and b"c" not in tree
    assert tree[b"a"] == b"1" and tree[b""] == b""
    assert tree.get(b"c") is None and tree.get(b"c", 5) == 5
    assert list(tree) == [b"", b"a", b"b"]
    assert list(reversed(tree)) == [b"b", b"a", b""]
    assert tree == {b"": b"", b"a": b"1", b"b": b"2"}
    assert tree != {b"a": b"1"} and tree != {b"": b"", b"a": b"1", b"b": b"3"}
    assert tree != 5
    assert dict(tree) == {b"": b"", b"a": b"1", b"b": b"2"}
    match tree:
        case {b"a": value}:
            assert value == b"1"
        case _:
            pytest.fail("a mapping matches")
    del tree[b"a"]
    assert tree.pop(b"b") == b"2"
    assert tree.pop(b"b", None) is None
    assert tree.setdefault(b"d", b"4") == b"4"
    assert tree.setdefault(b"d", b"5") == b"4"
    assert tree.popitem() == (b"d", b"4")
    tree.update({b"x": b"1"})
    tree.update([(b"y", b"2")])
    tree.clear()
    assert len(tree) == 0
    with pytest.raises(KeyError, match="empty"):
        tree.popitem()


@pytest.mark.parametrize("access", ["item", "delete", "pop", "open", "size"])
def test_missing_keys_are_key_errors(tree: Tree, access: str) -> None:
    with pytest.raises(KeyError) as caught:
        match access:
            case "item":
                tree[b"no"]
            case "delete":
                del tree[b"no"]
            case "pop":
                tree.pop(b"no")
            case "open":
                tree.open(b"no")
            case "size":
                tree.size(b"no")
    assert caught.value.args == (b"no",)


def test_views(tree: Tree) -> None:
    fill(tree, 100)
    keys, values, items = tree.keys(), tree.values(), tree.items()
    assert isinstance(keys, KeysView)
    assert isinstance(values, ValuesView)
    assert isinstance(items, ItemsView)
    assert len(keys) == len(values) == len(items) == 100
    assert keys & {b"000003", b"x"} == {b"000003"}
    assert (b"000003", b"v3") in items and (b"000003", b"v4") not in items
    assert b"v7" in values and b"w" not in values
    part = tree.keys(b"000010", b"000013")
    assert list(part) == [b"000010", b"000011", b"000012"]
    assert list(reversed(part)) == [b"000012", b"000011", b"000010"]
    assert b"000011" in part and b"000013" not in part
    assert list(tree.values(prefix=b"00009", reverse=True))[:2] == [b"v99", b"v98"]
    tree[b"000010x"] = b""
    assert len(part) == 4, "views see changes"


def test_ranges(tree: Tree) -> None:
    fill(tree, 3000)
    model = [(b"%06d" % n, b"v%d" % n) for n in range(3000)]
    assert list(tree.range()) == model
    assert list(tree.range(reverse=True)) == model[::-1]
    assert list(tree.range(b"000100", b"000200")) == model[100:200]
    assert list(tree.range(b"000100", b"000200", reverse=True)) == model[100:200][::-1]
    assert list(tree.range(b"000200", b"000100")) == []
    assert list(tree.prefix(b"0020")) == model[2000:2100]
    assert list(tree.range(b"002050", prefix=b"0020")) == model[2050:2100]
    assert list(tree.sizes(b"000009", b"000011")) == [(b"000009", 2), (b"000010", 3)]
    assert tree.first() == model[0] and tree.last() == model[-1]
    assert tree.count(b"000100", b"000200") == 100
    assert tree.remove_range(b"000100", b"000200") == 100
    assert tree.remove_range(prefix=b"0020") == 100
    assert len(tree) == 2800


def test_keys_read_no_values(store: Store) -> None:
    tree = store.create_tree("large")
    for n in range(16):
        tree[b"%d" % n] = bytes(100_000)
    before = store.stats().bytes_read
    assert len(list(tree.keys())) == 16
    assert dict(tree.sizes()).popitem() == (b"9", 100_000)
    assert store.stats().bytes_read == before


def test_iterating_is_safe_beside_changes(tree: Tree) -> None:
    fill(tree, 2000)
    seen = 0
    for key in tree.keys(stop=b"a"):
        del tree[key]
        tree[b"a" + key] = b""
        seen += 1
    assert seen == 2000
    fill(tree, 2000)
    iterator = tree.range()
    first = [next(iterator) for _ in range(10)]
    tree.clear()
    tree[b"zz"] = b"last"
    rest = list(iterator)
    assert first[0][0] == b"000000" and rest[-1] == (b"zz", b"last")


def test_one_iterator_of_many_threads(tree: Tree) -> None:
    fill(tree, 5000)
    iterator = tree.keys().__iter__()
    seen: list[bytes] = []

    def take() -> None:
        seen.extend(iterator)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [b"%06d" % n for n in range(5000)]


def test_many(tree: Tree) -> None:
    fill(tree, 10_000)
    keys = [b"%06d" % n for n in range(0, 20_000, 7)]
    assert tree.get_many(keys) == [tree.get(key) for key in keys]
    assert tree.get_many(iter([])) == []
    with pytest.raises(TypeError, match="bytes"):
        tree.get_many([b"a", "b"])  # type: ignore[list-item]
    count = len(tree)
    with pytest.raises(InvalidArgument):
        tree.put_many([(b"new", b""), (b"k" * (MAX_KEY_BYTES + 1), b"")])
    assert len(tree) == count, "all or none"
    with pytest.raises(TypeError, match="pair"):
        tree.put_many([b"ab"])  # type: ignore[list-item]


def test_load(store: Store, tree: Tree) -> None:
    class Bar:
        total = None
        n = 0

        def update(self, n: int, /) -> None:
            self.n += n

    bar = Bar()
    records = {b"%06d" % (n * 7919 % 50_000): b"%d" % n for n in range(50_000)}
    assert tree.load(records, progress=bar) == 50_000
    assert bar.n == bar.total == 50_000
    assert tree == records
    assert tree.load([(b"000001x", b"between")]) == 1
    with pytest.raises(ZeroDivisionError):
        tree.load((b"%d" % (1 // (5 - n)), b"") for n in range(10))
    assert len(tree) == 50_001


def test_changes_in_one_step(tree: Tree) -> None:
    assert tree.compare_and_swap(b"k", None, b"1")
    assert not tree.compare_and_swap(b"k", None, b"2")
    assert tree.compare_and_swap(b"k", b"1", b"2")
    assert tree.modify(b"k", lambda old: b"%d" % (int(old or b"0") + 1)) == b"3"
    assert tree.modify(b"k", lambda old: None) is None
    assert b"k" not in tree
    with pytest.raises(ZeroDivisionError):
        tree.modify(b"k", lambda old: b"%d" % (1 // 0))
    with pytest.raises(TypeError):
        tree.modify(b"k", lambda old: "text")  # type: ignore[type-var]
    assert tree.discard(b"k") is False
    fill(tree, 3)
    assert tree.pop_first() == (b"000000", b"v0")
    assert tree.pop_last() == (b"000002", b"v2")
    # What a function does to the same key makes it run again.
    calls = []

    def change(old: bytes | None) -> bytes:
        calls.append(old)
        if len(calls) == 1:
            tree[b"000001"] = b"other"
        return (old or b"") + b"!"

    assert tree.modify(b"000001", change) == b"other!"
    assert calls == [b"v1", b"other"]


def test_buffers(tree: Tree) -> None:
    tree[bytearray(b"k")] = memoryview(b"value")[1:]
    tree[b"n"] = array.array("H", [1, 2])
    assert tree[memoryview(b"k")] == b"alue"
    assert tree[b"n"] == array.array("H", [1, 2]).tobytes()
    with pytest.raises(BufferError, match="contiguous"):
        tree[b"s"] = memoryview(b"abcdef")[::2]
    assert bytearray(b"k") in tree


@pytest.mark.parametrize("wrong", ["text", 5, None, ["a"], 1.5])
def test_wrong_types(tree: Tree, wrong: object) -> None:
    sentence = re.escape(f"keys and values are bytes or another buffer, not {type(wrong).__name__}")
    with pytest.raises(TypeError, match=sentence):
        tree[wrong]  # type: ignore[index]
    with pytest.raises(TypeError, match=sentence):
        tree[b"k"] = wrong  # type: ignore[assignment]
    with pytest.raises(TypeError, match=sentence):
        wrong in tree
    with pytest.raises(TypeError, match=sentence):
        tree.get(wrong)  # type: ignore[call-overload]
    assert len(tree) == 0
    assert not isinstance(wrong, Mapping)


def test_keys_over_the_limit(tree: Tree) -> None:
    tree[b"k" * MAX_KEY_BYTES] = b""
    with pytest.raises(ValueError, match="the key has 1025 bytes; at most 1024 are possible"):
        tree[b"k" * (MAX_KEY_BYTES + 1)] = b""


def test_items_of_a_range_have_the_records_of_the_range(store: Store) -> None:
    tree = store.create_tree("ranges")
    tree.update({b"a": b"1", b"m": b"2"})
    assert (b"m", b"2") in tree.items() and (b"m", b"1") not in tree.items()
    assert (b"m", b"2") not in tree.items(stop=b"m") and b"m" not in tree.keys(stop=b"m")
    missing: object = (b"missing", None)
    assert missing not in tree.items()
