"""The directive ``bench``: shows tables of one file of ``bench/results``, with date and machine.

.. bench:: 2026-11-20-simulate
   :tables: 0 2
"""

import json
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive, directives

RESULTS = Path(__file__).parents[2] / "bench" / "results"


class Bench(Directive):
    required_arguments = 1
    option_spec = {"tables": directives.positive_int_list}  # noqa: RUF012 - as docutils has it

    def run(self):
        path = RESULTS / f"{self.arguments[0]}.json"
        self.state.document.settings.env.note_dependency(str(path))
        found = json.loads(path.read_text(encoding="utf-8"))
        machine = found["machine"]
        load = "unknown" if not machine.get("load") else f"{machine['load'][0]:.1f}"
        line = (
            f"{found['date'][:10]}, {machine['cpu']} ({machine['llvm_cpu']}), "
            f"{machine['cores']} cores, load {load} before it began; "
            f"{'a quick run' if found['quick'] else 'a full run'}, commit {found['commit'][:9]}."
        )
        made = [nodes.paragraph("", "", nodes.emphasis(text=line))]
        wanted = self.options.get("tables", range(1, len(found["tables"]) + 1))
        for number in wanted:
            made += table(**found["tables"][number - 1])
        return made


def table(title, headers, rows):
    group = nodes.tgroup(cols=len(headers))
    group += [nodes.colspec(colwidth=1) for _ in headers]
    head, body = nodes.thead(), nodes.tbody()
    head += row(headers)
    body += [row(cells) for cells in rows]
    group += [head, body]
    made = nodes.table("", nodes.title(text=title), group, classes=["colwidths-auto"])
    return [made]


def row(cells):
    made = nodes.row()
    for cell in cells:
        entry = nodes.entry()
        entry += nodes.paragraph(text=text_of(cell))
        made += entry
    return made


def text_of(cell):
    if cell is None:
        return ""
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def setup(app):
    app.add_directive("bench", Bench)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
