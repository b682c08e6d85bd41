"""Consistent hashing."""

from __future__ import annotations

import bisect
import hashlib

from isobath._errors import InvalidArgument

#: Points of each shard on the ring: shards differ by some 6% in keys.
_POINTS = 256
#: More shards than clusters have machines.
_COUNT_MAX = 4096


class Ring:
    """Assigns keys to shards. With another shard, only the keys of that one move."""

    def __init__(self, count: int, points: int = _POINTS) -> None:
        if not 1 <= count <= _COUNT_MAX:
            raise InvalidArgument(f"there are 1 to {_COUNT_MAX} shards, not {count}")
        #: The number of shards.
        self.count = count
        #: Points of each shard.
        self.points = points
        places = sorted(
            (_hash(b"%d/%d" % (shard, point)), shard)
            for shard in range(count)
            for point in range(points)
        )
        self._hashes = [place for place, _ in places]
        self._shards = [shard for _, shard in places]

    def shard_of(self, key: bytes) -> int:
        """The shard of a key: that of the first point behind the key's hash."""
        if self.count == 1:
            return 0
        at = bisect.bisect_right(self._hashes, _hash(key))
        return self._shards[at % len(self._shards)]


#: Rings of this process: one takes a while to make.
_RINGS: dict[tuple[int, int], Ring] = {}
_RINGS_MAX = 16


def ring(count: int, points: int = _POINTS) -> Ring:
    """A ring that is made once."""
    found = _RINGS.get((count, points))
    if found is None:
        if len(_RINGS) >= _RINGS_MAX:
            _RINGS.clear()
        found = _RINGS[count, points] = Ring(count, points)
    return found


def _hash(key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest())
