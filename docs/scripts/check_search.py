"""Ask the search of the built documentation for words that people use.

``make docs`` runs it after the build.  The first result must be the page that answers.  The search
is Sphinx's own, in JavaScript: it finds the titles of sections, the terms of the text, and what the
directive ``.. index::`` at the top of a page adds.

    python docs/scripts/check_search.py docs/_build/html
"""

import json
import sys
from pathlib import Path

import quickjs

#: By page, what its readers type.
ANSWERS = {
    "practitioners": (
        "gradient explosion",
        "exploding gradients",
        "vanishing gradient",
        "vanishing gradients",
        "rank collapse",
        "NaN at initialization",
        "batch size",
    ),
    "installation": ("install", "installation", "pip", "requirements", "slow first call"),
    "torch": (
        "pytorch",
        "orthogonal initialization",
        "dropout",
        "resnet",
        "inspect",
        "dead relu",
        "mixed precision",
        "dataloader",
        "measure model",
        "verdict",
    ),
    "verdict": ("false alarm", "false alarms", "outlook"),
    "gradients": ("neural tangent kernel", "ntk", "learning rate", "jacobian"),
    "training": ("sgd", "muP", "muon", "gradient descent"),
    "implicit": ("wider than memory", "transformer", "out of memory"),
    "mixing": ("mixing time", "coupling"),
    "cluster": ("gpu", "cuda", "slurm", "dask", "checkpoint"),
    "testing": ("hypothesis", "pytest"),
    "embedding": ("numba",),
    "results": ("citation", "bibtex"),
    "sharp_bits": ("seed", "epsilon", "eval mode"),
    "promises": ("reproducibility",),
    "benchmarks": ("speed", "benchmark"),
    "benchmarks_details": ("roofline",),
    "reliability": ("crash",),
}

#: What the scripts expect of a browser.
BROWSER = """
var window = globalThis, SPHINX_HIGHLIGHT_ENABLED = false;
var document = {addEventListener() {}, getElementById: () => null};
var _ready = () => null, _ = text => text;
"""

SEARCH = """
JSON.stringify(Search._performSearch(...Search._parseQuery(QUERY)).map(result => result[0]))
"""


def search_of(pages: Path) -> quickjs.Context:
    """Return an interpreter with the search and its index."""
    context = quickjs.Context()
    context.eval(BROWSER)
    for name in ("documentation_options", "language_data", "searchtools"):
        context.eval((pages / f"_static/{name}.js").read_text(encoding="utf-8"))
    context.eval((pages / "searchindex.js").read_text(encoding="utf-8"))
    return context


def results(search: quickjs.Context, words: str) -> list[str]:
    """Return the pages that a search finds, the best first."""
    return json.loads(search.eval(SEARCH.replace("QUERY", json.dumps(words))))[::-1]


def main() -> None:
    """Report the words whose first result is another page."""
    search = search_of(Path(sys.argv[1]))
    wrong = [
        f"{words!r} finds {(results(search, words) or ['nothing'])[0]}, not {page}"
        for page, queries in ANSWERS.items()
        for words in queries
        if results(search, words)[:1] != [page]
    ]
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
