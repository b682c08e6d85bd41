"""The Python blocks of the README and of the book's page run as they are."""

import re
from pathlib import Path

import pytest

PYTHON = Path(__file__).parent.parent


@pytest.mark.parametrize("page", [PYTHON / "README.md", PYTHON.parent / "docs" / "python.md"])
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S))
    assert blocks
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        line = text.count("\n", 0, block.start()) + 1
        exec(compile("\n" * line + block[1], str(page), "exec"), names)
