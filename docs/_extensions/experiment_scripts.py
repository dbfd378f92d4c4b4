"""Scripts of the gallery, one per experiment, from the docstrings of `bnmc.experiments`.

A script that the build does not run shows the picture and the table that the repository keeps
(`docs/scripts/kept_figures.py` makes them).
"""

import importlib
import inspect
import re
import textwrap
from collections.abc import Collection
from pathlib import Path

from docutils import nodes

from bnmc.experiments.registry import FIGURES, function_of

IMAGES = Path(__file__).parents[1] / "images" / "figures"

SCRIPT = '''r"""
{title}
{line}
{picture}
{text}

From the command line:

.. code-block:: console

    $ bnmc figure {name} --plot {name}.png
{table}"""
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
PICTURE = """
.. image:: /images/figures/{name}.png
   :alt: {alt}
"""
TABLE = """
.. code-block:: none

{table}
"""
THUMBNAIL = """
# sphinx_gallery_thumbnail_path = 'images/figures/{file}'
"""

HEADER = """Figures
=======

Every simulation figure of the papers, and more, is a function of `bnmc.experiments` and a command
(``bnmc figure --list``).  With the default sizes, shown here, each takes seconds.  ``full=True`` or
``--full`` selects the sizes of the paper.  The pages below are built from the docstrings of the
functions.
"""

#: The parts of the gallery: by package, what its figures are about.
TOPICS = {
    "bridging": "Mean field and finite width",
    "orthogonalizes": "Orthogonal representations",
    "rank_collapse": "Rank collapse",
    "gradients": "Gradients and Jacobians",
    "limits": "Kernels of infinite width",
    "training_law": "Training at any width",
    "beyond": "Stability, mixing, norms and sizes",
    "outlooks": "Outlooks of PyTorch models",
}
TOPIC = """{title}
{line}

{summary}  `bnmc.experiments.{package}` has the notation.
"""


def scripts(run: Collection[str]) -> dict[str, str]:
    """Return the text of each script by its file; the build runs those of `run`.

    The folder is the package of the figure within `bnmc.experiments`.
    """
    made = {}
    for name, (place, description) in FIGURES.items():
        text = re.split(r"\n(?:Parameters|Returns)\n", inspect.getdoc(function_of(name)))[0]
        title = f"{description[0].upper()}{description[1:]} ({name})"
        kept = name not in run
        panel = f"panels/{name}.png"
        thumbnail = panel if (IMAGES / panel).exists() else f"{name}.png"
        made[f"{place.split('.')[0]}/plot_{name.replace('-', '_')}.py"] = SCRIPT.format(
            title=title,
            line="=" * len(title),
            text=text.strip(),
            name=name,
            picture=PICTURE.format(name=name, alt=seen_in(name)) if kept else "",
            table=TABLE.format(table=kept_table(name)) if kept else "",
            thumbnail=THUMBNAIL.format(file=thumbnail),
        )
    return made


def topics() -> dict[str, str]:
    """Return the head of each part of the gallery by its folder."""
    heads = {}
    for package, title in TOPICS.items():
        module = importlib.import_module(f"bnmc.experiments.{package}")
        summary = inspect.getdoc(module).split("\n\n")[0]
        heads[package] = TOPIC.format(
            title=title, line="-" * len(title), summary=summary, package=package
        )
    return heads


def seen_in(name: str) -> str:
    """Return what the kept picture of an experiment shows: its title and its first finding."""
    kept = (IMAGES / f"{name}.txt").read_text(encoding="utf-8")
    title, _, findings = kept.split("\n\n", 2)
    return f"{title}. {findings.splitlines()[0]}"


def describe_thumbnails(app, doctree) -> None:
    """Give each thumbnail of the gallery the text of its picture, which the gallery leaves out."""
    names = {name.replace("-", "_"): name for name in FIGURES}
    for image in doctree.findall(nodes.image):
        place = re.search(r"sphx_glr_plot_(\w+)_thumb\.", image["uri"])
        if place and place[1] in names:
            image["alt"] = seen_in(names[place[1]])


def setup(app):
    app.connect("doctree-read", describe_thumbnails)
    return {"parallel_read_safe": True}


def kept_table(name: str) -> str:
    """Return what an experiment printed, indented."""
    printed = (IMAGES / f"{name}.txt").read_text(encoding="utf-8")
    return textwrap.indent(printed.strip(), "    ")


def write_scripts(folder: Path, run: Collection[str]) -> None:
    """Write the scripts to a folder; the build runs those of the experiments `run`.

    Unchanged files are left alone, and all other files deleted.
    """
    heads = {f"{package}/GALLERY_HEADER.rst": head for package, head in topics().items()}
    wanted = {"GALLERY_HEADER.rst": HEADER, **heads, **scripts(run)}
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).as_posix() not in wanted:
            path.unlink()
    for file, text in wanted.items():
        path = folder / file
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
