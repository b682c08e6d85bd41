"""The Python blocks of the README and of the book's page run as they are."""

import re
from pathlib import Path

import pytest
from distributed import Client

from conftest import has_command

PYTHON = Path(__file__).parent.parent
DOCS = PYTHON.parent / "docs"


@pytest.mark.parametrize("page", [PYTHON / "README.md", DOCS / "python.md"])
def test_blocks_run(
    page: Path, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    blocks = list(re.finditer(r"^```python(,command)?\n(.*?)^```$", text, re.M | re.S))
    assert blocks
    names: dict[str, object] = {"__name__": "__main__", "client": client, "DOCS": DOCS}
    for block in blocks:
        if block[1] and not has_command():
            continue
        line = text.count("\n", 0, block.start()) + 1
        exec(compile("\n" * line + block[2], str(page), "exec"), names)
