"""Roles that show numbers of the kept tables of experiments, and that name tests.

A table is that of an experiment at its default sizes, ``docs/images/figures/NAME.txt``.

``:cell:`NAME; label; label; column``` is a cell: of the only row that begins with these labels, to
three digits.  ``:finding:`NAME; words``` is the sentence that begins with these words, and
``:number:`NAME; words``` the number, with its interval, that follows the words in the sentences.

``:test:`bounds/test_limits.py::test_written_out``` names a test of ``tests/`` in words.
"""

import itertools
import re
from pathlib import Path

from docutils import nodes

FIGURES = Path(__file__).parents[1] / "images" / "figures"
NUMBER = r"[-−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?"


def kept(name):
    """Return what an experiment printed: heads, rows and sentences of its kept table."""
    _, table, text = (FIGURES / f"{name}.txt").read_text(encoding="utf-8").split("\n\n", 2)
    lines = table.splitlines()
    width = max(map(len, lines))
    blank = [all(line[at : at + 1].strip() == "" for line in lines) for at in range(width)]
    # Two blanks in all lines separate columns.
    gaps = [at for at in range(1, width) if blank[at - 1] and blank[at]]
    edges = [0, *(at for at in gaps if at + 1 not in gaps), width]
    parts = [[line[low:high].strip() for low, high in itertools.pairwise(edges)]
             for line in lines]  # fmt: skip
    return parts[0], parts[1:], text.strip().splitlines()


def cell(words):
    """Return a cell of a kept table."""
    name, *labels, column = words
    heads, rows, _ = kept(name)
    found = [row for row in rows if row[: len(labels)] == labels]
    if len(found) != 1 or heads.count(column) != 1:
        raise LookupError(f"{name}: {len(found)} rows {labels}, columns {heads}")
    return rounded(found[0][heads.index(column)])


def finding(words):
    """Return the sentence of a kept table that begins with some words."""
    name, start = words
    sentences = [sentence for sentence in kept(name)[2] if sentence.startswith(start)]
    if len(sentences) != 1:
        raise LookupError(f"{name}: {len(sentences)} sentences begin with {start!r}")
    return minus(sentences[0])


def number(words):
    """Return the number, with its interval, that follows some words of a kept table."""
    name, before = words
    interval = rf"{NUMBER}(?: \[{NUMBER}, {NUMBER}\])?"
    numbers = re.findall(rf"{re.escape(before)} ({interval})", "\n".join(kept(name)[2]))
    if len(numbers) != 1:
        raise LookupError(f"{name}: {len(numbers)} numbers follow {before!r}")
    return rounded(numbers[0])


def rounded(text):
    """Return a text whose numbers have at most three significant digits."""
    return minus(re.sub(NUMBER, lambda match: f"{float(match[0]):.3g}", text))


def minus(text):
    return re.sub(r"(?<![\w.])-(?=\d)", "−", text)


def test(words):
    """Return the name of a test in words, and its file."""
    file, _, name = words[0].partition("::")
    return f"{name.removeprefix('test_').replace('_', ' ')} ({file.removeprefix('test_')})"


def kept_file(words):
    return FIGURES / f"{words[0]}.txt"


def role_of(function, file=None):
    """Return a role that shows what a function of its words returns, read from a file."""

    def role(name, rawtext, text, lineno, inliner, options=None, content=None):
        words = [" ".join(word.split()) for word in text.split(";")]
        try:
            shown = function(words)
        except (LookupError, OSError, ValueError) as error:
            message = inliner.reporter.error(f"{name}: {error}", line=lineno)
            return [inliner.problematic(rawtext, rawtext, message)], [message]
        if file:
            inliner.document.settings.env.note_dependency(str(file(words)))
        return [nodes.inline("", shown)], []

    return role


ROLES = {"cell": cell, "finding": finding, "number": number, "test": test}


def setup(app):
    for name, function in ROLES.items():
        app.add_role(name, role_of(function, None if function is test else kept_file))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
