"""The scripts of the gallery, one an experiment, from the docstrings of `bnmc.experiments`."""

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
# All that is drawn is in ``found.data``, an `xarray.Dataset`; here are its table and what it shows.

print(found)
'''

HEADER = """Figures of the papers
=====================

Every simulation figure of the papers, and more, is a function of `bnmc.experiments` and a command
(``bnmc figure --list``).  Each takes seconds as it is shown here, and the sizes of its paper with
``full=True`` or ``--full``.  The pages below are built from the functions' docstrings; pictures and
tables are made by ``make docs-full``, and three of them by every build.
"""


def scripts() -> dict[str, str]:
    """The text of each, by the name of its file."""
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
    """Write them, and nothing where they are what they were."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {"GALLERY_HEADER.rst": HEADER, **scripts()}
    for path in folder.iterdir():
        if path.is_file() and path.name not in wanted:
            path.unlink()
    for file, text in wanted.items():
        path = folder / file
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
