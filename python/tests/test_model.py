"""Random operations of a tree, transactions included, against a dictionary."""

from typing import Any

from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from isobath import Conflict, Store, Transaction

from conftest import SMALL

KEYS = st.binary(max_size=3)
VALUES = st.one_of(st.binary(max_size=8), st.integers(500, 3000).map(bytes))


class Model(RuleBasedStateMachine):
    """`outside` is what the store has, `inside` what the transaction sees while one is open."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store.in_memory(**SMALL)
        self.tree = self.store.create_tree("t")
        self.outside: dict[bytes, bytes] = {}
        self.inside: dict[bytes, bytes] | None = None
        self.began: dict[bytes, bytes] = {}
        self.written: set[bytes] = set()
        self.transaction: Transaction | None = None

    def both(self, is_inside: bool) -> tuple[Any, dict[bytes, bytes]]:
        if is_inside and self.transaction is not None and self.inside is not None:
            return self.transaction[self.tree], self.inside
        return self.tree, self.outside

    def note(self, model: dict[bytes, bytes], *keys: bytes) -> None:
        if model is self.inside:
            self.written.update(keys)

    @rule(key=KEYS, value=VALUES, inside=st.booleans())
    def put(self, key: bytes, value: bytes, inside: bool) -> None:
        tree, model = self.both(inside)
        tree[key] = value
        model[key] = value
        self.note(model, key)

    @rule(key=KEYS, inside=st.booleans())
    def pop(self, key: bytes, inside: bool) -> None:
        tree, model = self.both(inside)
        if key in model:
            self.note(model, key)
        assert tree.pop(key, None) == model.pop(key, None)

    @rule(records=st.dictionaries(KEYS, VALUES, max_size=6), inside=st.booleans())
    def put_many(self, records: dict[bytes, bytes], inside: bool) -> None:
        tree, model = self.both(inside)
        tree.put_many(records)
        model.update(records)
        self.note(model, *records)

    @rule(keys=st.lists(KEYS, max_size=6), inside=st.booleans())
    def get_many(self, keys: list[bytes], inside: bool) -> None:
        tree, model = self.both(inside)
        assert tree.get_many(keys) == [model.get(key) for key in keys]

    @rule(start=st.none() | KEYS, stop=st.none() | KEYS, reverse=st.booleans(), inside=st.booleans())
    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool, inside: bool) -> None:
        tree, model = self.both(inside)
        wanted = sorted(
            (item for item in model.items() if self.has(item[0], start, stop)), reverse=reverse
        )
        assert list(tree.range(start, stop, reverse=reverse)) == wanted
        assert list(tree.keys(start, stop, reverse=reverse)) == [key for key, _ in wanted]
        assert tree.count(start, stop) == len(wanted)

    @rule(start=KEYS, stop=KEYS, inside=st.booleans())
    def remove_range(self, start: bytes, stop: bytes, inside: bool) -> None:
        tree, model = self.both(inside)
        gone = [key for key in model if self.has(key, start, stop)]
        assert tree.remove_range(start, stop) == len(gone)
        for key in gone:
            del model[key]
        self.note(model, *gone)

    @rule(key=KEYS, old=st.none() | VALUES, new=st.none() | VALUES, inside=st.booleans())
    def swap(self, key: bytes, old: bytes | None, new: bytes | None, inside: bool) -> None:
        tree, model = self.both(inside)
        matches = model.get(key) == old
        assert tree.compare_and_swap(key, old, new) == matches
        if matches and new is not None:
            model[key] = new
            self.note(model, key)
        elif matches and old is not None:
            del model[key]
            self.note(model, key)

    @staticmethod
    def has(key: bytes, start: bytes | None, stop: bytes | None) -> bool:
        return (start is None or key >= start) and (stop is None or key < stop)

    @precondition(lambda self: self.transaction is None)
    @rule()
    def begin(self) -> None:
        self.transaction = self.store.transaction()
        self.inside = dict(self.outside)
        self.began = dict(self.outside)
        self.written = set()

    @precondition(lambda self: self.transaction is not None)
    @rule(commits=st.booleans())
    def end(self, commits: bool) -> None:
        transaction, inside = self.transaction, self.inside
        assert transaction is not None and inside is not None
        self.transaction = self.inside = None
        if not commits:
            transaction.rollback()
            return
        unchanged = all(self.began.get(key) == self.outside.get(key) for key in self.written)
        try:
            transaction.commit()
        except Conflict as conflict:
            assert conflict.tree == "t"
            return
        assert unchanged, "another change of a written key is a conflict"
        for key in self.written:
            if key in inside:
                self.outside[key] = inside[key]
            else:
                self.outside.pop(key, None)

    @invariant()
    def same(self) -> None:
        assert dict(self.tree.items()) == self.outside
        if self.transaction is not None:
            assert dict(self.transaction[self.tree].items()) == self.inside

    def teardown(self) -> None:
        if self.transaction is not None:
            self.transaction.rollback()
        self.store.close()


TestModel = Model.TestCase
TestModel.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
