"""Reads of cached records from Python: Isobath beside Rust, LMDB and RocksDB.

    pip install ./python --config-settings build-args=--features=benchmarks lmdb rocksdict
    python python/benchmarks/reads.py

All stores are in memory or in the page cache, with 120-byte values. Each number is the best of
several rounds: other work of the machine only adds to it.
"""

from __future__ import annotations

import argparse
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


def best(seconds: Callable[[], float], rounds: int) -> float:
    return min(seconds() for _ in range(rounds))


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    rounds = arguments.rounds
    place = Path(tempfile.mkdtemp(dir=arguments.directory))
    records = [(b"key %012d" % n, VALUE) for n in range(arguments.records)]
    numbers = random.Random(1).sample(range(arguments.records), MANY)
    keys = [records[n][0] for n in numbers]
    results: list[tuple[str, float, float]] = []

    def result(name: str, get: Callable[[], float], many: Callable[[], float]) -> None:
        results.append((name, best(get, rounds) / MANY, best(many, rounds) / MANY))

    native: Any = _native
    with Store.create(place / "isobath", pool_bytes=256 << 20) as store:
        tree = store.create_tree("t")
        tree.load(records)
        assert tree.get_many(keys) == [VALUE] * MANY
        result("isobath, in Rust", lambda: native.rust_get(tree, keys, 1),
               lambda: native.rust_get_many(tree, keys, 1))
        result("isobath", timed(each(tree.get, keys)), timed(lambda: tree.get_many(keys)))
        result("a call that does nothing", timed(each(native.nothing, keys)), lambda: 0.0)

    try:
        import lmdb  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        print("lmdb is not installed")
    else:
        with lmdb.open(str(place / "lmdb"), map_size=1 << 30, sync=False) as environment:
            with environment.begin(write=True) as transaction:
                transaction.cursor().putmulti(records)
            with environment.begin() as transaction:
                many = timed(lambda: transaction.cursor().getmulti(keys))
                result("lmdb, one transaction", timed(each(transaction.get, keys)), many)

            def fresh(key: bytes) -> object:
                with environment.begin() as transaction:
                    return transaction.get(key)

            result("lmdb, a transaction each", timed(each(fresh, keys)), many)

    try:
        import rocksdict  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        print("rocksdict is not installed")
    else:
        database: Any = rocksdict.Rdict(str(place / "rocksdb"), rocksdict.Options(raw_mode=True))
        for key, value in records:
            database[key] = value
        database.flush()
        result("rocksdict", timed(each(database.get, keys)), timed(lambda: database.get(keys)))
        database.close()
    shutil.rmtree(place)

    print(f"{'':26} {'get':>10} {'get_many of 1,000':>20}")
    for name, get, many_each in results:
        print(f"{name:26} {get * 1e9:7.0f} ns {many_each * 1e9:14.0f} ns/key")


if __name__ == "__main__":
    main()
