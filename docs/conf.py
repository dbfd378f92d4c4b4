"""How the documentation is built: ``make docs``, or ``make docs-full`` with all experiments."""

import os
import sys
from pathlib import Path

# Functions for GPUs are documented without one.
os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")

import bnmc
from bnmc import experiments, kernels

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))

from experiment_scripts import topics, write_scripts  # noqa: E402

project = "bnmc"
author = "The bnmc developers"
version = release = bnmc.__version__
language = "en_GB"
html_title = f"bnmc {version}"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    # With its fonts among the pages: formulas need no network.
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
    "sphinx_design",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
    "bench_tables",
    "c_functions",
    "experiment_scripts",
    "for_users",
    "kept_tables",
    "notebooks",
]
# The gallery writes notebooks of its own, to be downloaded.
exclude_patterns = [
    "_build",
    "gallery",
    "figures/**/*.ipynb",
    "**/README.rst",
    "**/GALLERY_HEADER.rst",
]
templates_path = ["_templates"]
# Single backticks are names of Python, as in the docstrings.
default_role = "py:obj"

# Named, since pages that are new to a kept environment would be left out.
autosummary_generate = [str(path) for path in sorted((HERE / "api").glob("*.rst"))]
autodoc_typehints = "none"  # they are in numpydoc's sections
numpydoc_show_class_members = False

# The button copies the input, without prompts and without output.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
copybutton_line_continuation_character = "\\"

myst_enable_extensions = ["dollarmath"]

html_theme = "pydata_sphinx_theme"
html_logo = html_favicon = "images/logo.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {
    "logo": {"text": html_title},
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "header_links_before_dropdown": 8,
    "secondary_sidebar_items": ["page-toc"],
}
# A host of several versions sets the address of its list of versions, a JSON file as the theme
# describes it; each page then has a switch between them.
versions = os.environ.get("BNMC_DOCS_VERSIONS")
if versions:
    html_theme_options |= {
        "switcher": {"json_url": versions, "version_match": version},
        "navbar_start": ["navbar-logo", "version-switcher"],
        "check_switcher": False,
    }
html_show_sourcelink = False
# These pages belong to no section, so they have no list of pages at their side.
html_sidebars = {page: [] for page in ("index", "start", "torch", "practitioners", "results")}

# What is quick is run in every build; `make docs-full` runs all.  Of the others a build shows the
# picture and the table that the repository keeps.
QUICK = ("bridging-1b", "orthogonalizes-2a", "stability-atlas")
full = os.environ.get("BNMC_DOCS_FULL") == "1"
scripts = HERE / "_build" / "scripts"
write_scripts(scripts, experiments.names() if full else QUICK)
quick = "|".join(name.replace("-", "_") for name in QUICK)
sphinx_gallery_conf = {
    "examples_dirs": str(scripts),
    "gallery_dirs": "figures",
    "filename_pattern": r"[/\\]plot_" if full else rf"[/\\]plot_({quick})\.py$",
    "plot_gallery": True,
    "thumbnail_size": (640, 440),
    "subsection_order": [f"_build/scripts/{topic}" for topic in topics()],
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "abort_on_example_error": True,
}

# Compiled functions are documented as the Python functions that they are compiled from.
for _name in kernels.__all__:
    _value = getattr(kernels, _name)
    if hasattr(_value, "py_func"):
        setattr(kernels, _name, _value.py_func)

assert set(QUICK) <= set(experiments.names())
