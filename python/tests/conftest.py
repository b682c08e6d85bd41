"""Stores of the tests."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

import distributed
import pytest
from hypothesis import settings
from isobath import Store, Tree
from isobath.lab import CommandNotFound, find


class Small(TypedDict):
    pool_bytes: int
    workers: int


SMALL: Small = {"pool_bytes": 8 << 20, "workers": 1}


def has_command() -> bool:
    """A command that is named must be there."""
    if "ISOBATH_COMMAND" in os.environ:
        return True
    try:
        find()
    except CommandNotFound:
        return False
    return True


needs_command = pytest.mark.skipif(not has_command(), reason="there is no command `isobath`")


# For `pytest --hypothesis-profile=thorough`; zarr's state machines take "quick" otherwise.
settings.register_profile("quick", max_examples=8, deadline=None)
settings.register_profile("thorough", max_examples=200, deadline=None)


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.in_memory(**SMALL) as store:
        yield store


@pytest.fixture
def tree(store: Store) -> Tree:
    return store.create_tree("t")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.iso"


@contextmanager
def workers(**options: Any) -> Iterator[distributed.Client]:
    """Two workers of Dask on this machine."""
    cluster: Any = distributed.LocalCluster
    client: Any = distributed.Client
    with (
        cluster(n_workers=2, threads_per_worker=1, dashboard_address=None, **options) as made,
        client(made) as connected,
    ):
        yield connected


#: The machines that `machines` pretends, by address, and how many workers each has.
MACHINES = {"127.0.0.1": 2, "127.0.0.2": 1}


@contextmanager
def machines(directory: Path) -> Iterator[distributed.Client]:
    """Workers on two machines, as far as Dask and the lock files know. None is started again."""
    specification = {}
    for host, count in MACHINES.items():
        temporary = directory / host
        temporary.mkdir()
        for number in range(count):
            options = {
                "host": host,
                "nthreads": 1,
                "dashboard": False,
                "env": {"TMPDIR": str(temporary)},
            }
            nanny = {"cls": distributed.Nanny, "options": options}
            specification[f"{host} {number}"] = nanny
    scheduler = {
        "cls": distributed.Scheduler,
        "options": {"host": "127.0.0.1", "dashboard": False, "dashboard_address": ":0"},
    }
    cluster: Any = distributed.SpecCluster
    client: Any = distributed.Client
    with (
        cluster(workers=specification, scheduler=scheduler) as made,
        client(made) as connected,
    ):
        for worker in made.workers.values():
            worker.close_gracefully("none is started again")
        yield connected


@pytest.fixture(scope="session")
def client() -> Iterator[distributed.Client]:
    """Two workers in this process."""
    with workers(processes=False, worker_dashboard_address=None) as client:
        yield client
