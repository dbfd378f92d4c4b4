"""Make the pictures and tables of the gallery that are kept in the repository.

``python docs/scripts/kept_figures.py`` makes all, with further names only these.  Each experiment
runs with its default sizes and its default seed.  Needs the extras ``plot`` and ``xarray``.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
from PIL import Image  # Matplotlib needs it too

from bnmc import experiments

#: Pixels of the width of a page.
_PAGE = 860

FOLDER = Path(__file__).parents[1] / "images" / "figures"


def keep(name: str) -> None:
    """Run an experiment; write its picture, in 256 colours, its whole table and all findings."""
    found = experiments.run(name)
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.png"
    figure = found.plot(plt.figure(layout="constrained"))
    # Narrow figures become as wide as a page, at most by a quarter, with larger letters.
    figure.savefig(path, dpi=max(72, min(90, _PAGE / figure.get_figwidth())))
    plt.close(figure)
    with Image.open(path) as picture:
        # The colours of thin curves are kept, too.
        few = picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)
    few.save(path, optimize=True)
    table = found.table.text(len(found.table.rows))
    text = "\n".join([found.title, "", table, "", *found.findings, ""])
    path.with_suffix(".txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:] or experiments.names():
        print(name, flush=True)
        keep(name)
