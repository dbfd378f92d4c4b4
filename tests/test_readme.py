"""The programs of the README print what it shows, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```\s+```text\n(.*?)```", README, re.S)


@pytest.mark.untraced
@pytest.mark.parametrize(("code", "shown"), BLOCKS, ids=["torch", "chain"])
def test_programs(
    code: str,
    shown: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "import torch" in code:
        torch = pytest.importorskip("torch")
        request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    monkeypatch.chdir(tmp_path)
    exec(code, {"__name__": "__main__"})
    printed, warned = capsys.readouterr()
    assert (printed.split(), warned) == (shown.split(), "")  # the page breaks lines elsewhere


def test_two_commands() -> None:
    """The section shows both in one block; the Makefile has them."""
    block = README.partition("## Two commands")[2].partition("```console\n")[2].partition("```")[0]
    assert block == "$ make demo\n$ make test\n"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^demo:", makefile, re.M)
    assert re.search(r"^test:", makefile, re.M)


def test_blocks_and_links() -> None:
    """Each program is followed by its output, and files that the page links exist."""
    assert len(BLOCKS) == README.count("```python") == 2
    for name in re.findall(r"\]\(((?!https:)[^)]+)\)", README):
        assert (ROOT / name).exists()
