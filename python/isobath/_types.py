"""Types of arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer as Buffer


class Progress(Protocol):
    """A bar as tqdm has them: `total` is set, and `update` is called."""

    total: Any

    def update(self, n: int, /) -> object: ...
