"""One key space, and arrays of zarr, over the stores of several machines.

>>> from distributed import Client
>>> from isobath.shards import Shards
>>> client = Client("scheduler:8786")
>>> shards = Shards.create([("node1", "/nvme/a.iso"), ("node2", "/nvme/a.iso")], client)
>>> shards[b"key"] = b"value"

Consistent hashing of keys says which shard a key belongs to. One worker of Dask has each shard
open; if it dies, another one opens the file where it can. `isobath.shards.zarr.ShardedStore` keeps
arrays there, and `isobath.shards.zarr.array` computes on them where their chunks lie.
Needs `pip install isobath[dask]`.
"""

from isobath.shards._errors import ShardMissing, ShardMoved
from isobath.shards._ring import Ring
from isobath.shards._shards import Move, Place, Shards

__all__ = ["Move", "Place", "Ring", "ShardMissing", "ShardMoved", "Shards"]
