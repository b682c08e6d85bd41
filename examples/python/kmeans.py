"""K-means over image tiles with dask.array: tiles are chunks of a zarr array in a store.

    pip install 'isobath[dask,zarr]'
    python examples/python/kmeans.py tiles.iso --tiles 1000000 --workers 2

A tile is an image of 16 x 16 pixels (a digit's segment, a cell, a galaxy); here they are drawn
around a few prototypes, so that the clusters are known. Each iteration of Lloyd's algorithm is one
computation: every block of tiles finds its nearest centres and gives sums and counts.

With several shards (`--shards 2`) the tiles are in as many stores, and each block is read by the
worker that has it.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array
import numpy
import zarr
from distributed import Client, LocalCluster
from isobath.shards import Shards
from isobath.shards.zarr import ShardedStore, array, compute

SIDE = 16
OPTIONS: Any = {"pool_bytes": 64 << 20}


def prototypes(clusters: int, seed: int) -> Any:
    """The images that the tiles are drawn around."""
    return numpy.random.default_rng(seed).uniform(0, 255, (clusters, SIDE * SIDE))


def written(store: ShardedStore, tiles: int, block: int, clusters: int, seed: int) -> None:
    """Draws the tiles, block by block on the workers."""
    centres = prototypes(clusters, seed)

    def drawn(block_info: Any = None) -> Any:
        place = block_info[None]
        draw = numpy.random.default_rng([seed, *place["chunk-location"]])
        count = place["chunk-shape"][0]
        chosen = draw.integers(clusters, size=count)
        noise = draw.normal(0, 12, (count, SIDE * SIDE))
        return numpy.clip(centres[chosen] + noise, 0, 255).astype("u1")

    blocks = tuple(min(block, tiles - start) for start in range(0, tiles, block))
    dask_array: Any = dask.array
    lazy = dask_array.map_blocks(drawn, chunks=(blocks, (SIDE * SIDE,)), dtype="u1")
    into: Any = zarr.create_array(
        store,
        name="tiles",
        shape=lazy.shape,
        chunks=(block, SIDE * SIDE),
        dtype="u1",
        overwrite=True,
    )
    # Blocks are chunks: no two workers write to one.
    dask_array.store(lazy, into, lock=False)


def assigned(tiles: Any, centres: Any) -> Any:
    """A block's part of an iteration: for each centre count, sum of its tiles, and error."""
    tiles = tiles.astype("f4")
    centres = centres.astype("f4")
    distances = (centres**2).sum(1) - 2 * tiles @ centres.T
    nearest = distances.argmin(1)
    is_in = (nearest == numpy.arange(len(centres))[:, None]).astype("f4")
    errors = (tiles**2).sum(1) + distances.min(1)
    parts = [is_in.sum(1, keepdims=True), is_in @ tiles, (is_in @ errors)[:, None]]
    return numpy.concatenate(parts, axis=1, dtype="f8")[None]


def clustered(tiles: Any, clusters: int, iterations: int, seed: int) -> tuple[Any, list[float]]:
    """The centres, and the mean squared error after each iteration."""
    draw = numpy.random.default_rng(seed + 1)
    # k-means++ on the first block: centres far from each other.
    sample = compute(tiles[: tiles.chunks[0][0]]).astype("f8")
    centres = sample[draw.integers(len(sample), size=1)]
    while len(centres) < clusters:
        distances = ((sample[:, None] - centres[None]) ** 2).sum(2).min(1)
        chosen = draw.choice(len(sample), p=distances / distances.sum())
        centres = numpy.concatenate([centres, sample[chosen : chosen + 1]])
    errors = []
    for _ in range(iterations):
        parts = tiles.map_blocks(
            assigned,
            centres,
            chunks=((1,) * tiles.numblocks[0], (clusters,), (SIDE * SIDE + 2,)),
            new_axis=2,
            dtype="f8",
        )
        sums = compute(parts.sum(0))
        counts = numpy.maximum(sums[:, :1], 1)
        centres = numpy.where(sums[:, :1] > 0, sums[:, 1:-1] / counts, centres)
        errors.append(float(sums[:, -1].sum() / len(tiles)))
    return centres, errors


@contextlib.contextmanager
def connected(workers: int, client: Client | None = None) -> Iterator[Client]:
    """A client: the given one, or that of workers on this machine."""
    if client is not None:
        yield client
        return
    cluster: Any = LocalCluster
    made: Any = Client
    with (
        cluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as local,
        made(local) as own,
    ):
        yield own


def main(arguments: list[str] | None = None, client: Client | None = None) -> list[float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("store", type=Path, help="a new store; with shards a new directory")
    parser.add_argument("--tiles", type=int, default=20_000)
    parser.add_argument("--block", type=int, default=2_000, help="tiles of a chunk")
    parser.add_argument("--clusters", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    places = [given.store]
    if given.shards > 1:
        given.store.mkdir(parents=True)
        places = [given.store / f"{number}.iso" for number in range(given.shards)]
    with connected(given.workers, client) as own:
        with Shards.create(places, own, tree="zarr", options=OPTIONS) as shards:
            store = ShardedStore(shards)
            begun = time.perf_counter()
            written(store, given.tiles, given.block, given.clusters, given.seed)
            print(f"{given.tiles} tiles written in {time.perf_counter() - begun:.1f} s")
            begun = time.perf_counter()
            centres, errors = clustered(
                array(store, "tiles"), given.clusters, given.iterations, given.seed
            )
            print(f"{given.iterations} iterations in {time.perf_counter() - begun:.1f} s")
    for number, error in enumerate(errors, 1):
        print(f"iteration {number}: mean squared error of a pixel {error / SIDE**2:.1f}")
    known = prototypes(given.clusters, given.seed)
    found = ((known[:, None] - centres[None]) ** 2).mean(2).min(1)
    print(f"{(found < 10).sum()} of {given.clusters} prototypes were found")
    return errors


if __name__ == "__main__":
    main()
