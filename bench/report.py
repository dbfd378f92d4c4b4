"""What a benchmark hands back: tables of figures, floors, and the machine they were taken on."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("bnmc", "numba", "llvmlite", "numpy", "scipy", "torch", "jax", "jaxlib", "mkl_random")

Cell = str | int | float | None


@dataclass(frozen=True)
class Floor:
    """A figure with the limit it has to keep: at least ``limit``, or at most."""

    what: str
    value: float
    limit: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        # Written so that a NaN counts as missed.
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def line(self) -> str:
        sign = "<=" if self.at_most else ">="
        verdict = "met   " if self.met else "MISSED"
        return f"{verdict}  {self.what}: {number(self.value)} {sign} {number(self.limit)}"


@dataclass(frozen=True)
class Table:
    """A title, one header per column, and rows of text and numbers."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def text(self) -> str:
        cells = [list(self.headers), *([number(cell) for cell in row] for row in self.rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.headers))]
        lines = ["  ".join(map(_pad, row, widths)).rstrip() for row in cells]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join([self.title, *lines])


@dataclass
class Report:
    """Everything one benchmark found."""

    name: str
    tables: list[Table] = field(default_factory=list)
    floors: list[Floor] = field(default_factory=list)
    samples: dict[str, Any] = field(default_factory=dict)
    #: Whether there are figures that are worth keeping.
    measured: bool = True

    def text(self) -> str:
        blocks = [table.text() for table in self.tables]
        if self.floors:
            blocks.append("\n".join(floor.line() for floor in self.floors))
        return "\n\n".join(blocks)

    def save(self, *, command: str, quick: bool, folder: Path = RESULTS) -> Path:
        """Write the figures, with date, machine and command, to ``<date>-<name>.json``."""
        now = datetime.now(UTC)
        suffix = "-quick" if quick else ""
        path = folder / f"{now:%Y-%m-%d}-{self.name}{suffix}.json"
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "benchmark": self.name,
            "date": now.isoformat(timespec="seconds"),
            "command": command,
            "quick": quick,
            "commit": commit(),
            "machine": machine(),
            "tables": [asdict(table) for table in self.tables],
            "floors": [asdict(floor) | {"met": floor.met} for floor in self.floors],
            "samples": self.samples,
        }
        path.write_text(json.dumps(content, indent=1) + "\n")
        return path


def number(value: Cell) -> str:
    """Four significant digits, without an exponent where a reader can do without."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    if value != 0 and not 1e-4 <= abs(value) < 1e5:
        return f"{value:.3e}"
    return f"{value:.4g}"


def _pad(text: str, width: int) -> str:
    numeric = text == "-" or text[:1].isdigit() or text[:2].lstrip("-")[:1].isdigit()
    return text.rjust(width) if numeric else text.ljust(width)


def machine() -> dict[str, Any]:
    """The processor and the versions that the figures depend on."""
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    return {
        "cpu": _cpu_model(),
        "llvm_cpu": binding.get_host_cpu_name(),
        "features": sorted(name for name, present in features.items() if present),
        "cores": usable_cores(),
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {package: _version(package) for package in PACKAGES},
    }


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def commit() -> str | None:
    """The commit the figures belong to, with ``+changes`` where files differ from it."""
    root = Path(__file__).parents[1]

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        head = git("rev-parse", "HEAD")
        return head + ("+changes" if git("status", "--porcelain", "--", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
