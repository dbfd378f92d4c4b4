"""The programs of the README print what it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_readme(tmp_path: Path) -> None:
    """Its programs, one after the other, print what it shows."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```\s+```text\n(.*?)```", readme, re.S)
    assert len(blocks) == readme.count("```python") == 4
    program = 'print("# next")\n'.join(code for code, _ in blocks)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("# next\n") == [shown for _, shown in blocks]
    for name in re.findall(r"\]\(((?!https:)[^)]+)\)", readme):
        assert (ROOT / name).exists()
