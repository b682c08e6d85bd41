"""The notebooks of the papers run at their small size."""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from conftest import needs_command

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Path, Future[Any]]]:
    """The notebooks as they run, two at a time."""
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setenv("ISOBATH_NOTEBOOK_SIZE", "small")
        # Each makes the same files.
        yield {
            path: pool.submit(_executed, path, tmp_path_factory.mktemp(path.stem))
            for path in NOTEBOOKS
        }


def _executed(path: Path, directory: Path) -> Any:
    read: Any = nbformat.read
    notebook = read(path, as_version=4)
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": path.parent}})
    client.execute(env=os.environ | {"ISOBATH_NOTEBOOK_DIRECTORY": str(directory)})
    return notebook


@needs_command
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path: Path, executed: dict[Path, Future[Any]]) -> None:
    notebook = executed[path].result()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    # Figures and tables are shown.
    shown = [output.data for output in outputs if "data" in output]
    assert sum("image/png" in data for data in shown) >= 2
    assert sum("text/html" in data for data in shown) >= 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_has_no_outputs(path: Path) -> None:
    read: Any = nbformat.read
    for cell in read(path, as_version=4).cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None
