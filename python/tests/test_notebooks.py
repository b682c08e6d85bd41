"""The notebooks of the papers run at their small size."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from conftest import needs_command

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@needs_command
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOBATH_NOTEBOOK_SIZE", "small")
    monkeypatch.setenv("ISOBATH_NOTEBOOK_DIRECTORY", str(tmp_path))
    read: Any = nbformat.read
    notebook = read(path, as_version=4)
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": path.parent}})
    client.execute()
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
