"""Transactions, retries and snapshots."""

import threading

import pytest
from isobath import (
    Conflict,
    InvalidArgument,
    ReadOnly,
    Store,
    Transaction,
    TransactionEnded,
    Tree,
)


def count(tree: Tree, key: bytes) -> int:
    return int(tree.get(key, b"0"))


def test_commits_or_rolls_back(store: Store, tree: Tree) -> None:
    other = store.create_tree("other")
    with store.transaction() as transaction:
        transaction[tree][b"a"] = b"1"
        transaction["other"][b"b"] = b"2"
        assert b"a" not in tree
        assert transaction.tree(tree)[b"a"] == b"1"
        assert list(transaction[tree]) == [b"a"]
        assert transaction[tree].transaction is transaction
        assert transaction[tree].store is store
    assert tree[b"a"] == b"1" and other[b"b"] == b"2"
    with pytest.raises(ZeroDivisionError), store.transaction() as transaction:
        transaction[tree][b"a"] = b"lost"
        1 // 0
    assert tree[b"a"] == b"1"
    view = transaction[tree]
    for use in (lambda: view[b"a"], lambda: view.get(b"a"), lambda: list(view.range())):
        with pytest.raises(TransactionEnded, match="the transaction has ended"):
            use()
    with pytest.raises(TransactionEnded):
        transaction.commit()


def test_savepoints(store: Store, tree: Tree) -> None:
    with store.transaction() as transaction:
        view = transaction[tree]
        view[b"a"] = b"1"
        place = transaction.savepoint()
        view[b"b"] = b"2"
        transaction.rollback_to(place)
    assert dict(tree) == {b"a": b"1"}
    with store.transaction() as other, pytest.raises(InvalidArgument, match="savepoint"):
        other.rollback_to(place)


def test_conflicts(store: Store, tree: Tree) -> None:
    with pytest.raises(Conflict, match='changed key "k" of tree "t"') as caught:
        with store.transaction() as transaction:
            transaction[tree][b"k"] = b"mine"
            tree[b"k"] = b"theirs"
    assert caught.value.retryable
    assert (caught.value.tree, caught.value.key) == ("t", b"k")


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
def test_write_skew(store: Store, tree: Tree, isolation: str) -> None:
    tree.put_many({b"a": b"1", b"b": b"1"})
    first = store.transaction(isolation=isolation)  # type: ignore[arg-type]
    second = store.transaction(isolation=isolation)  # type: ignore[arg-type]
    first[tree][b"a"] = first[tree][b"b"] + b"!"
    second[tree][b"b"] = second[tree][b"a"] + b"!"
    first.commit()
    if isolation == "snapshot":
        second.commit()
    else:
        with pytest.raises(Conflict):
            second.commit()


def test_transact_retries(store: Store, tree: Tree) -> None:
    calls = []

    def work(transaction: Transaction) -> int:
        calls.append(1)
        seen = count(transaction[tree], b"n")
        if len(calls) < 3:
            tree[b"n"] = b"%d" % (seen + 10)
        transaction[tree][b"n"] = b"%d" % (seen + 1)
        return seen

    assert store.transact(work) == 20
    assert tree[b"n"] == b"21" and len(calls) == 3
    calls.clear()
    with pytest.raises(Conflict):
        store.transact(work, attempts=2)
    assert len(calls) == 2
    with pytest.raises(ZeroDivisionError):
        store.transact(lambda transaction: transaction[tree].modify(b"n", lambda _: b"%d" % (1 // 0)))
    store.transact(lambda transaction: transaction[tree].update({b"n": b"5"}))
    assert tree[b"n"] == b"5"


def test_counters_of_threads(store: Store, tree: Tree) -> None:
    def add() -> None:
        for _ in range(50):
            store.transact(
                lambda transaction: transaction[tree].modify(
                    b"n", lambda old: b"%d" % (int(old or b"0") + 1)
                )
            )
            tree.modify(b"m", lambda old: b"%d" % (int(old or b"0") + 1))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tree[b"n"] == b"200" and tree[b"m"] == b"200"


def test_snapshots(store: Store, tree: Tree) -> None:
    tree[b"a"] = b"1"
    with store.snapshot() as snapshot:
        tree[b"a"] = b"2"
        tree[b"b"] = b"3"
        assert dict(snapshot[tree]) == {b"a": b"1"}
        assert snapshot[tree].get_many([b"a", b"b"]) == [b"1", None]
        with pytest.raises(ReadOnly, match="read-only"):
            snapshot[tree][b"a"] = b"4"
    assert dict(tree) == {b"a": b"2", b"b": b"3"}


def test_what_belongs_to_no_transaction(store: Store, tree: Tree) -> None:
    with Store.in_memory(pool_bytes=8 << 20, workers=1) as other, store.transaction() as transaction:
        with pytest.raises(InvalidArgument, match="no transaction"):
            transaction[tree].load({})
        with pytest.raises(InvalidArgument, match="another store"):
            transaction[other.create_tree("t")][b"a"]


def test_conflicts_that_work_met_elsewhere_are_not_retried(store: Store) -> None:
    tree = store.create_tree("t")
    calls = 0

    def work(transaction: Transaction) -> None:
        nonlocal calls
        calls += 1
        other, third = store.transaction(), store.transaction()
        other[tree][b"k"] = b"1"
        third[tree][b"k"] = b"2"
        other.commit()
        third.commit()

    with pytest.raises(Conflict):
        store.transact(work)
    assert calls == 1
