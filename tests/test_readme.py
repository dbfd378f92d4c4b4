"""The programs of the README print what it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```\s+```text\n(.*?)```", README, re.S)


# The last two programs take 7 and 22 s.  `tests/mixing/test_meeting_bound.py` and
# `tests/invariant/test_stationary_mean.py` test their functions.
@pytest.mark.untraced
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_programs(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first programs, one after the other in one process, print what it shows."""
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {"__name__": "__main__"}
    for code, shown in BLOCKS[:count]:
        exec(code, space)
        assert capsys.readouterr() == (shown, "")


def test_blocks_and_links() -> None:
    """Each program is followed by its output, and files that the page links exist."""
    assert len(BLOCKS) == README.count("```python") == 4
    for name in re.findall(r"\]\(((?!https:)[^)]+)\)", README):
        assert (ROOT / name).exists()
