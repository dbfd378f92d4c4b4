"""Scripts of the gallery, one per experiment, from the docstrings of `bnmc.experiments`."""

import importlib
import inspect
import re
from pathlib import Path

from bnmc import experiments

SCRIPT = '''r"""
{title}
{line}

{text}

From the command line:

.. code-block:: console

    $ bnmc figure {name} --plot {name}.png
"""

import matplotlib.pyplot as plt

from bnmc import experiments

found = experiments.run("{name}")
figure = found.plot(plt.figure(layout="constrained"))

# %%
# ``found.data`` is an `xarray.Dataset` with all numbers of the picture.  ``print`` shows the main
# numbers as a table, and the findings.

print(found)
'''

HEADER = """Figures of the papers
=====================

Every simulation figure of the papers, and more, is a function of `bnmc.experiments` and a command
(``bnmc figure --list``).  With the default sizes, shown here, each takes seconds.  ``full=True`` or
``--full`` selects the sizes of the paper.  The pages below are built from the docstrings of the
functions.  ``make docs-full`` makes all pictures and tables; other builds make three of them.
"""


def scripts() -> dict[str, str]:
    """Return the text of each script by the name of its file."""
    made = {}
    for name in experiments.names():
        entry = experiments.REGISTRY[name]
        module = importlib.import_module(f"bnmc.experiments.{entry.module}")
        text = re.split(
            r"\n(?:Parameters|Returns)\n", inspect.getdoc(getattr(module, entry.function))
        )[0]
        title = f"{name}: {entry.description}"
        made[f"plot_{name.replace('-', '_')}.py"] = SCRIPT.format(
            title=title, line="=" * len(title), text=text.strip(), name=name
        )
    return made


def write_scripts(folder: Path) -> None:
    """Write the scripts to a folder.  Leave unchanged files alone, and delete all other files."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {"GALLERY_HEADER.rst": HEADER, **scripts()}
    for path in folder.iterdir():
        if path.is_file() and path.name not in wanted:
            path.unlink()
    for file, text in wanted.items():
        path = folder / file
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
