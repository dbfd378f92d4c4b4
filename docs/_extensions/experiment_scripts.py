"""Scripts of the gallery, one per experiment, from the docstrings of `bnmc.experiments`.

A script that the build does not run shows the picture and the table that the repository keeps
(`docs/scripts/kept_figures.py` makes them).
"""

import inspect
import re
import textwrap
from collections.abc import Collection
from pathlib import Path

from bnmc import experiments
from bnmc.experiments.registry import function_of

IMAGES = Path(__file__).parents[1] / "images" / "figures"

SCRIPT = '''r"""
{title}
{line}

{text}

From the command line:

.. code-block:: console

    $ bnmc figure {name} --plot {name}.png
{kept}"""
{thumbnail}
import matplotlib.pyplot as plt

from bnmc import experiments

found = experiments.run("{name}")
figure = found.plot(plt.figure(layout="constrained"))

# %%
# ``found.data`` is an `xarray.Dataset` with all numbers of the picture.  ``print`` shows the main
# numbers as a table, and the findings.

print(found)
'''

#: What a build that does not run a script shows.
KEPT = """
.. image:: /images/figures/{name}.png

.. code-block:: none

{table}
"""
THUMBNAIL = """
# sphinx_gallery_thumbnail_path = 'images/figures/{name}.png'
"""

HEADER = """Figures of the papers
=====================

Every simulation figure of the papers, and more, is a function of `bnmc.experiments` and a command
(``bnmc figure --list``).  With the default sizes, shown here, each takes seconds.  ``full=True`` or
``--full`` selects the sizes of the paper.  The pages below are built from the docstrings of the
functions.
"""


def scripts(run: Collection[str]) -> dict[str, str]:
    """Return the text of each script by the name of its file; the build runs those of `run`."""
    made = {}
    for name in experiments.names():
        text = re.split(r"\n(?:Parameters|Returns)\n", inspect.getdoc(function_of(name)))[0]
        title = f"{name}: {experiments.describe(name)}"
        made[f"plot_{name.replace('-', '_')}.py"] = SCRIPT.format(
            title=title,
            line="=" * len(title),
            text=text.strip(),
            name=name,
            kept="" if name in run else KEPT.format(name=name, table=kept_table(name)),
            thumbnail="" if name in run else THUMBNAIL.format(name=name),
        )
    return made


def kept_table(name: str) -> str:
    """Return what an experiment printed, indented."""
    printed = (IMAGES / f"{name}.txt").read_text(encoding="utf-8")
    return textwrap.indent(printed.strip(), "    ")


def write_scripts(folder: Path, run: Collection[str]) -> None:
    """Write the scripts to a folder; the build runs those of the experiments `run`.

    Unchanged files are left alone, and all other files deleted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {"GALLERY_HEADER.rst": HEADER, **scripts(run)}
    for path in folder.iterdir():
        if path.is_file() and path.name not in wanted:
            path.unlink()
    for file, text in wanted.items():
        path = folder / file
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
