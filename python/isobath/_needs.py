"""Packages that only a part of this one needs."""

from __future__ import annotations

import importlib
from typing import Any


def module(name: str, extra: str, user: str) -> Any:
    """A module of another package; an `ImportError` that says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ImportError(
            f"{user} needs {package}: pip install 'isobath[{extra}]' ({error})", name=package
        ) from error
