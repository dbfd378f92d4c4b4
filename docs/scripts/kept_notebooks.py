"""Run the notebooks of the documentation and store their printed output and their pictures.

``python docs/scripts/kept_notebooks.py`` runs all, with further names only these. The cells contain
plain Python, so no Jupyter is needed. Needs the extra ``plot``.
"""

import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

FOLDER = Path(__file__).parents[1] / "notebooks"


def run(notebook: dict[str, Any]) -> None:
    """Run the cells of a notebook in their order, and replace their outputs."""
    space: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, start=1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), space)
        cell["execution_count"] = number
        cell["outputs"] = [*stream(printed.getvalue()), *map(picture, plt.get_fignums())]
        plt.close("all")


def stream(text: str) -> list[dict[str, Any]]:
    """Return the printed text of a cell as an output; nothing if the cell printed nothing."""
    lines = text.splitlines(keepends=True)
    return [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []


def picture(number: int) -> dict[str, Any]:
    """Return an open figure as an output."""
    file = io.BytesIO()
    plt.figure(number).savefig(file, format="png", bbox_inches="tight")
    encoded = base64.b64encode(file.getvalue()).decode()
    return {"data": {"image/png": encoded}, "metadata": {}, "output_type": "display_data"}


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        print(name, flush=True)
        path = FOLDER / f"{name}.ipynb"
        notebook = json.loads(path.read_text(encoding="utf-8"))
        run(notebook)
        text = json.dumps(notebook, indent=1, ensure_ascii=False)
        path.write_text(f"{text}\n", encoding="utf-8")
