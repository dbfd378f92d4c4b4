"""Make the pictures and tables of the gallery that are kept in the repository.

``python docs/scripts/kept_figures.py`` makes all, with further names only these.  Each experiment
runs with its default sizes and its default seed.  Needs the extras ``plot`` and ``xarray``.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.gridspec import GridSpec
from matplotlib.text import Text
from PIL import Image  # Matplotlib needs it too

from bnmc import experiments

#: Pixels of the width of a page.
_PAGE = 896

FOLDER = Path(__file__).parents[1] / "images" / "figures"

#: Width and height of a picture of one panel, in inches.
_THUMBNAIL = 5.0, 3.4375

#: The panel that the gallery shows, if it is not the first.
_PANELS = {"norms": 1, "gpt-sizes": 8}


def keep(name: str) -> None:
    """Run an experiment; write its pictures, in 256 colours, its whole table and all findings."""
    found = experiments.run(name)
    figure = found.plot(plt.figure(layout="constrained"))
    # Narrow figures become as wide as a page, at most by a quarter, with larger letters.
    save(figure, FOLDER / f"{name}.png", min(_PAGE / figure.get_figwidth(), 100))
    keep_panel(figure, _PANELS.get(name, 0))
    save(figure, FOLDER / "panels" / f"{name}.png", 640 / figure.get_figwidth())
    plt.close(figure)
    text = found.text(len(found.table.rows), len(found.findings))
    (FOLDER / f"{name}.txt").write_text(f"{text}\n", encoding="utf-8")


def keep_panel(figure, panel: int) -> None:
    """Remove from a figure all axes but one, and its heading; make a single one smaller."""
    axes = [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]
    if len(axes) == 1:
        figure.set_size_inches(0.95 * figure.get_size_inches())
        return
    shown = axes[panel]
    shown.set_xlabel(shown.get_xlabel() or axes[-1].get_xlabel())
    for ax in figure.axes:
        if ax is not shown:
            ax.remove()
    shown.set_subplotspec(GridSpec(1, 1, figure=figure)[0])
    figure.suptitle("")
    figure.set_size_inches(_THUMBNAIL)
    for legend in figure.legends:
        labels = [text.get_text() for text in legend.get_texts()]
        legend.remove()
        figure.legend(
            legend.legend_handles, labels, loc="outside lower center", fontsize="small",
            ncols=3 if max(map(len, labels)) < 16 else 2,
        )  # fmt: skip
    for text in shown.findobj(Text):
        box = text.get_window_extent()
        longest = max(box.width / figure.bbox.width, box.height / figure.bbox.height)
        text.set_fontsize(text.get_fontsize() * min(1.0, 0.8 / max(longest, 0.01)))


def save(figure, path: Path, dpi: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi)
    with Image.open(path) as picture:
        # The colours of thin curves are kept, too.
        few = picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)
    few.save(path, optimize=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or experiments.names():
        print(name, flush=True)
        keep(name)
