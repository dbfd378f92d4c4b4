"""The directive ``bench``: shows tables of one file of ``bench/results``, with date and machine.

The files are those of pytest-benchmark.  A table is a group; its columns are the numbers of the
extra information of each benchmark.

.. bench:: 2026-11-25-simulate
   :tables: 1 3
"""

import json
import sys
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive, directives

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
sys.path.append(str(ROOT))

from bench.turns import tables  # noqa: E402 - after the path


class Bench(Directive):
    required_arguments = 1
    option_spec = {"tables": directives.positive_int_list}  # noqa: RUF012 - as docutils has it

    def run(self):
        path = RESULTS / f"{self.arguments[0]}.json"
        self.state.document.settings.env.note_dependency(str(path))
        document = json.loads(path.read_text(encoding="utf-8"))
        machine, load = document["machine_info"], document.get("load")
        line = (
            f"{document['datetime'][:10]}, {machine['cpu']['brand_raw']} "
            f"({machine['cpu']['llvm']}), {machine['cores']} cores, load "
            f"{f'{load[0]:.1f}' if load else 'unknown'} before it began; "
            f"{'a quick run' if document['quick'] else 'a full run'}, "
            f"commit {document['commit_info']['id'][:9]}."
        )
        paragraph = nodes.paragraph("", "", nodes.emphasis(text=line))
        groups = tables(document["benchmarks"])
        wanted = self.options.get("tables", range(1, len(groups) + 1))
        return [paragraph, *(drawing(groups[number - 1]) for number in wanted)]


def drawing(table):
    headers, *rows = table.cells()
    group = nodes.tgroup(cols=len(headers))
    group += [nodes.colspec(colwidth=1) for _ in headers]
    head, body = nodes.thead(), nodes.tbody()
    head += row(headers)
    body += [row(cells) for cells in rows]
    group += [head, body]
    return nodes.table("", nodes.title(text=table.title), group, classes=["colwidths-auto"])


def row(cells):
    line = nodes.row()
    for cell in cells:
        entry = nodes.entry()
        entry += nodes.paragraph(text=cell)
        line += entry
    return line


def setup(app):
    app.add_directive("bench", Bench)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
