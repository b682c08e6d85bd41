"""Reads of cached records from Python: Isobath beside Rust, LMDB and RocksDB.

    pip install ./python --config-settings build-args=--features=benchmarks lmdb rocksdict
    python python/benchmarks/reads.py

All stores are in memory or in the page cache, with 120-byte values. Each number is the best of
several rounds: other work of the machine only adds to it.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isobath import Store, _native

VALUE = bytes(range(120))
MANY = 1000


def timed(work: Callable[[], object]) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return run


def each(get: Callable[[bytes], object], keys: list[bytes]) -> Callable[[], object]:
    def work() -> None:
        for key in keys:
            get(key)

    return work


Contender = tuple[str, Callable[[], float], Callable[[], float]]
Records = list[tuple[bytes, bytes]]


def lmdb(
    place: Path, records: Records, keys: list[bytes], stack: contextlib.ExitStack
) -> list[Contender]:
    import lmdb  # type: ignore[import-not-found, import-untyped, unused-ignore]

    environment = stack.enter_context(lmdb.open(str(place / "lmdb"), map_size=1 << 30, sync=False))
    with environment.begin(write=True) as transaction:
        transaction.cursor().putmulti(records)
    reader = stack.enter_context(environment.begin())

    def get_alone(key: bytes) -> object:
        with environment.begin() as transaction:
            return transaction.get(key)

    def get_many_alone() -> object:
        with environment.begin() as transaction:
            return transaction.cursor().getmulti(keys)

    return [
        (
            "lmdb, one transaction",
            timed(each(reader.get, keys)),
            timed(lambda: reader.cursor().getmulti(keys)),
        ),
        ("lmdb, a transaction each", timed(each(get_alone, keys)), timed(get_many_alone)),
    ]


def rocksdb(
    place: Path, records: Records, keys: list[bytes], stack: contextlib.ExitStack
) -> list[Contender]:
    import rocksdict  # type: ignore[import-not-found, import-untyped, unused-ignore]

    database: Any = rocksdict.Rdict(str(place / "rocksdb"), rocksdict.Options(raw_mode=True))
    stack.callback(database.close)
    for key, value in records:
        database[key] = value
    database.flush()
    return [("rocksdict", timed(each(database.get, keys)), timed(lambda: database.get(keys)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    place = Path(tempfile.mkdtemp(dir=arguments.directory))
    records = [(b"key %012d" % n, VALUE) for n in range(arguments.records)]
    numbers = random.Random(1).sample(range(arguments.records), MANY)
    keys = [records[n][0] for n in numbers]
    contenders: list[Contender] = []
    native: Any = _native
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Store.create(place / "isobath", pool_bytes=256 << 20))
        tree = store.create_tree("t")
        tree.load(records)
        assert tree.get_many(keys) == [VALUE] * MANY
        contenders += [
            (
                "isobath, in Rust",
                lambda: native.rust_get(tree, keys, 1),
                lambda: native.rust_get_many(tree, keys, 1),
            ),
            ("isobath", timed(each(tree.get, keys)), timed(lambda: tree.get_many(keys))),
            ("a call that does nothing", timed(each(native.nothing, keys)), lambda: 0.0),
        ]
        with contextlib.suppress(ImportError):
            contenders += lmdb(place, records, keys, stack)
        with contextlib.suppress(ImportError):
            contenders += rocksdb(place, records, keys, stack)
        # In turns, so that what disturbs the machine disturbs all of them.
        times = [([get()], [many()]) for _, get, many in contenders]
        for _ in range(arguments.rounds):
            for (_, get, many), (gets, manys) in zip(contenders, times):
                gets.append(get())
                manys.append(many())
    shutil.rmtree(place)

    print(f"{'':26} {'get':>10} {'get_many of 1,000':>20}")
    for (name, _, _), (gets, manys) in zip(contenders, times):
        get_ns, many_ns = (min(seconds) / MANY * 1e9 for seconds in (gets, manys))
        print(f"{name:26} {get_ns:7.0f} ns {many_ns:14.0f} ns/key")


if __name__ == "__main__":
    main()
