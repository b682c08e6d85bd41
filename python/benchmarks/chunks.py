"""Chunks of zarr arrays: Isobath beside LocalStore, ZipStore and LMDB.

    pip install ./python[zarr] lmdb
    python python/benchmarks/chunks.py --directory /mnt/drive

Each thread has an event loop of its own, and awaits one chunk after another as zarr does; LMDB has
no loop. Chunks are random bytes, and each is written once, in random order. A write has ended when
it is on the drive: LocalStore with an fsync of the file and its directory, LMDB with a commit for
each chunk; ZipStore cannot, so it is synced once at the end. Before cold reads all is closed, and
the page cache is emptied. The first rows are blocks of one file, past the page cache, each synced.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import mmap
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isobath.zarr import IsobathStore
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype
from zarr.storage import LocalStore, ZipStore

SIZES = [28 << 10, 225 << 10]
THREADS = [1, 8, 32]
PROTOTYPE = default_buffer_prototype()


class SyncedLocalStore(LocalStore):
    """Syncs each file, and the directory that names it."""

    async def set(self, key: str, value: Buffer) -> None:
        await super().set(key, value)
        path = self.root / key
        await asyncio.to_thread(_sync, [path, path.parent])


def _sync(paths: list[Path]) -> None:
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


class Zarr:
    """A store of zarr."""

    def __init__(self, name: str, make: Callable[[bool], Any]) -> None:
        self.name = name
        self._make = make

    def open(self, size: int, writes: bool) -> None:
        self._store = self._make(writes)
        asyncio.run(self._store._ensure_open())

    def close(self) -> None:
        self._store.close()

    def write(self, chunks: list[tuple[str, bytes]], start: Callable[[], object]) -> None:
        async def work() -> None:
            buffers = [(key, cpu.Buffer.from_bytes(value)) for key, value in chunks]
            start()
            for key, buffer in buffers:
                await self._store.set(key, buffer)

        asyncio.run(work())

    def read(self, chunks: list[tuple[str, bytes]], start: Callable[[], object]) -> None:
        async def work() -> None:
            start()
            for key, value in chunks:
                found = await self._store.get(key, PROTOTYPE)
                assert found is not None and len(found) == len(value)

        asyncio.run(work())


class Lmdb:
    """Plain LMDB, a transaction for each chunk."""

    name = "lmdb"

    def __init__(self, place: Path) -> None:
        self._place = place

    def open(self, size: int, writes: bool) -> None:
        import lmdb  # type: ignore[import-not-found, import-untyped, unused-ignore]

        self._lmdb: Any = lmdb.open(str(self._place / "lmdb"), map_size=4 << 30, max_readers=64)

    def close(self) -> None:
        self._lmdb.close()

    def write(self, chunks: list[tuple[str, bytes]], start: Callable[[], object]) -> None:
        start()
        for key, value in chunks:
            with self._lmdb.begin(write=True) as transaction:
                transaction.put(key.encode(), value)

    def read(self, chunks: list[tuple[str, bytes]], start: Callable[[], object]) -> None:
        start()
        for key, value in chunks:
            with self._lmdb.begin() as transaction:
                assert len(transaction.get(key.encode())) == len(value)


class Drive:
    """A file without the page cache, in blocks of the chunks' size."""

    name = "a file, synced"

    def __init__(self, place: Path, count: int) -> None:
        self._path = place / "drive"
        self._count = count

    def open(self, size: int, writes: bool) -> None:
        self._block = -(-size // 4096) * 4096
        if writes:
            # Blocks that a file gets while it is written to cost flushes of the file system.
            self._path.write_bytes(bytes(self._block * self._count))
            _sync([self._path])
        self._file = os.open(self._path, os.O_RDWR | os.O_DIRECT | os.O_DSYNC)

    def close(self) -> None:
        os.close(self._file)

    def _place(self, key: str) -> int:
        return int(key.rpartition("/")[2]) * self._block

    def write(self, chunks: list[tuple[str, bytes]], start: Callable[[], object]) -> None:
        block = mmap.mmap(-1, self._block)
        block.write(os.urandom(self._block))
        start()
        for key, _ in chunks:
            os.pwritev(self._file, [block], self._place(key))

    def read(self, chunks: list[tuple[str, bytes]], start: Callable[[], object]) -> None:
        block = mmap.mmap(-1, self._block)
        start()
        for key, _ in chunks:
            assert os.preadv(self._file, [block], self._place(key)) == self._block


def timed(work: Any, chunks: list[tuple[str, bytes]], threads: int) -> float:
    """Chunks in a second."""
    barrier = threading.Barrier(threads + 1)
    failed: list[BaseException] = []

    def run(part: list[tuple[str, bytes]]) -> None:
        try:
            work(part, barrier.wait)
        except BaseException as error:
            failed.append(error)
            barrier.abort()

    workers = [threading.Thread(target=run, args=(chunks[n::threads],)) for n in range(threads)]
    for worker in workers:
        worker.start()
    with contextlib.suppress(threading.BrokenBarrierError):
        barrier.wait()
    start = time.perf_counter()
    for worker in workers:
        worker.join()
    if failed:
        raise failed[0]
    return len(chunks) / (time.perf_counter() - start)


def empty_cache(place: Path) -> None:
    """Takes the files, and if possible their names, out of memory."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        for path in place.rglob("*"):
            if path.is_file():
                file = os.open(path, os.O_RDONLY)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(file)


def measure(contender: Any, size: int, threads: int, count: int, place: Path) -> list[float]:
    source = os.urandom(size + count)
    chunks = [(f"a/c/{n % 32}/{n}", source[n : n + size]) for n in range(count)]
    random.Random(1).shuffle(chunks)
    contender.open(size, True)
    rates = [timed(contender.write, chunks, threads)]
    contender.close()
    random.Random(2).shuffle(chunks)
    empty_cache(place)
    contender.open(size, False)
    rates += [timed(contender.read, chunks, threads) for _ in ("cold", "warm")]
    contender.close()
    return rates


def contenders(place: Path, count: int) -> list[Any]:
    isobath = place / "isobath.iso"
    zip_mode = {True: "w", False: "r"}
    return [
        Drive(place, count),
        Zarr("IsobathStore", lambda _: IsobathStore(isobath, options={"pool_bytes": 64 << 20})),
        Zarr("LocalStore, fsync", lambda _: SyncedLocalStore(place / "local")),
        Zarr(
            "ZipStore",
            lambda writes: ZipStore(
                place / "store.zip",
                mode=zip_mode[writes],  # type: ignore[arg-type, unused-ignore]
                read_only=not writes,
            ),
        ),
        Lmdb(place),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--bytes", type=int, default=32 << 20, help="of each run")
    arguments = parser.parse_args()
    columns = [f"{what} {n}" for what in ("write", "cold", "warm") for n in THREADS]
    print(f"chunks a second; columns say the number of threads, {arguments.bytes >> 20} MiB a run\n")
    print("| KiB | | " + " | ".join(columns) + " |")
    print("| --- | --- |" + " --- |" * len(columns))
    for size in SIZES:
        for number in range(5):
            name, rates = "", []
            for threads in THREADS:
                place = Path(tempfile.mkdtemp(dir=arguments.directory))
                try:
                    count = max(arguments.bytes // size, 2 * threads)
                    contender = contenders(place, count)[number]
                    rates.append(measure(contender, size, threads, count, place))
                    name = contender.name
                finally:
                    shutil.rmtree(place)
            shown = [f"{run[at]:,.0f}" for at in range(3) for run in rates]
            print(f"| {size >> 10} | {name} | " + " | ".join(shown) + " |", flush=True)


if __name__ == "__main__":
    main()
