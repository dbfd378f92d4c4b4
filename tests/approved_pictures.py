"""Pictures of experiments, compared with approved ones artist by artist.

``BNMC_APPROVE=1 pytest tests/experiments`` writes the descriptions of today's pictures to
``tests/reference/pictures/``.  Look at the pictures before you commit them.
"""

import json
import math
import os
import re
from pathlib import Path

import matplotlib.colors
import numpy as np
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation

from bnmc import Estimate

FOLDER = Path(__file__).parent / "reference" / "pictures"

#: Largest relative difference of two numbers of a picture, of what its axes show.  Processors round
#: differently, and the layers of a float32 network multiply it.
TOLERANCE = 1e-3


def require_approved(experiment, figure, name=None):
    """Require that an experiment, with its picture, is what was approved under a name."""
    path = FOLDER / f"{name or experiment.name}.json"
    now = describe(experiment, figure)
    if os.environ.get("BNMC_APPROVE") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n")
    different = list(_differences(json.loads(path.read_text()), now, experiment.name))
    assert not different, "\n".join(
        [*different[:20], "If the new picture is right: BNMC_APPROVE=1 pytest tests/experiments"]
    )


def describe(experiment, figure):
    """Return an experiment and its picture as strings, numbers, lists and dicts."""
    return {
        "title": experiment.title,
        "columns": list(experiment.table.columns),
        "rows": [[_words(cell) for cell in row] for row in experiment.table.rows],
        "findings": [_words(sentence) for sentence in experiment.findings],
        "size": [float(length) for length in figure.get_size_inches()],
        "heading": figure.get_suptitle(),
        "legends": [_legend(legend) for legend in figure.legends],
        "axes": [_axes(ax) for ax in figure.axes],
    }


def _words(cell):
    """Return a cell or a sentence as a list of words and numbers."""
    if isinstance(cell, Estimate) and abs(cell.value) < 1e-12:
        return [0.0]  # rounding errors, which differ between processors
    if not isinstance(cell, str):
        return [float(cell)] if isinstance(cell, int | float | np.number) else [str(cell)]
    parts = re.split(r"(-?\d+\.?\d*(?:e[-+]?\d+)?)", cell)
    return [float(part) if index % 2 else part for index, part in enumerate(parts)]


def _axes(ax):
    legend = ax.get_legend()
    return {
        "visible": ax.get_visible(),
        "labels": [ax.get_xlabel(), ax.get_ylabel()],
        "titles": [ax.get_title(), ax.get_title(loc="left"), ax.get_title(loc="right")],
        "scales": [ax.get_xscale(), ax.get_yscale()],
        "limits": [_number(end) for end in (*ax.get_xlim(), *ax.get_ylim())],
        "legend": legend and _legend(legend),
        "lines": [_line(line) for line in ax.lines],
        "texts": [_text(text) for text in ax.texts],
        "areas": [_area(area) for area in ax.collections],
        "patches": [_patch(patch) for patch in ax.patches],
        "images": [image.get_array().shape for image in ax.images],
    }


def _legend(legend):
    return {
        "texts": [text.get_text() for text in legend.get_texts()],
        "title": legend.get_title().get_text(),
        "place": str(legend._loc),
        "box": [_number(end) for end in legend.get_bbox_to_anchor()._bbox.bounds]
        if hasattr(legend.get_bbox_to_anchor(), "_bbox") else None,
        "columns": legend._ncols,
        "size": [text.get_fontsize() for text in legend.get_texts()[:1]],
    }  # fmt: skip


def _line(line):
    return {
        "label": _label(line),
        "style": [
            _colour(line.get_color()), line.get_linestyle(), line.get_linewidth(),
            str(line.get_marker()), line.get_markersize(), line.get_alpha(),
        ],
        "x": _summary(line.get_xdata()),
        "y": _summary(line.get_ydata()),
    }  # fmt: skip


def _text(text):
    return {
        "text": text.get_text(),
        "place": [_number(end) for end in text.get_position()],
        "offset": [_number(end) for end in text.xyann] if isinstance(text, Annotation) else None,
        "style": [
            _colour(text.get_color()), text.get_fontsize(), text.get_ha(), text.get_va(),
            text.get_rotation(),
        ],
    }  # fmt: skip


def _area(area):
    vertices = [path.vertices for path in area.get_paths()]
    points = np.concatenate(vertices) if vertices else np.zeros((0, 2))
    return {
        "label": _label(area),
        "kind": type(area).__name__,
        "count": len(vertices),
        "style": [
            [_colour(colour) for colour in area.get_facecolor()[:1]],
            [_colour(colour) for colour in area.get_edgecolor()[:1]],
            [float(width) for width in area.get_linewidths()[:1]],
            area.get_alpha() if np.ndim(area.get_alpha()) == 0 else "many",
        ],
        "x": _summary(points[:, 0]),
        "y": _summary(points[:, 1]),
    }


def _patch(patch):
    box = patch.get_bbox().bounds if isinstance(patch, Rectangle) else ()
    style = [_colour(patch.get_facecolor()), _colour(patch.get_edgecolor()), patch.get_alpha()]
    return {"label": _label(patch), "box": [_number(end) for end in box], "style": style}


def _label(artist):
    """Return the label of an artist, without the numbers that Matplotlib makes up."""
    label = str(artist.get_label())
    return "" if label.startswith("_") else label


def _colour(colour):
    return matplotlib.colors.to_hex(colour, keep_alpha=True)


def _summary(values):
    """Return size, ends, extremes and mean of the finite numbers."""
    values = np.ravel(np.ma.filled(np.ma.asarray(values, dtype=float), np.nan))
    finite = values[np.isfinite(values)]
    if not finite.size:
        return [values.size, 0]
    shown = (finite[0], finite[-1], finite.min(), finite.max(), finite.mean())
    return [values.size, finite.size, *map(_number, shown)]


def _number(value):
    value = float(value)
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)


def _differences(approved, now, where):
    """Yield what differs, in sentences."""
    is_number = [isinstance(value, int | float) and not isinstance(value, bool)
                 for value in (approved, now)]  # fmt: skip
    if all(is_number):
        if abs(approved - now) > TOLERANCE * max(abs(approved), abs(now)) + 1e-12:
            yield f"{where}: {now}, approved {approved}"
    elif isinstance(approved, dict) and isinstance(now, dict) and approved.keys() == now.keys():
        for key, value in approved.items():
            yield from _differences(value, now[key], f"{where}, {key}")
    elif isinstance(approved, list) and isinstance(now, list | tuple):
        if len(approved) != len(now):
            yield f"{where}: {len(now)} entries, approved {len(approved)}"
        for index, (first, second) in enumerate(zip(approved, now, strict=False)):
            yield from _differences(first, second, f"{where} {index}")
    elif approved != now:
        yield f"{where}: {now!r}, approved {approved!r}"
