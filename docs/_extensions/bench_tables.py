"""Directives and roles that show files of ``bench/results``.

The files are those of pytest-benchmark.  A table of ``bench`` is a group; its columns are the
numbers of the extra information of each benchmark.  Date and machine stand above.

.. bench:: 2026-11-25-simulate
   :tables: 1 3
   :columns: us a layer-chain; x hand-written
   :renamed: word of the file = word of the page; another = a second
   :first: activation

With ``first``, the first column has this head, and the labels end before their first comma: other
columns tell rows apart.  ``practrand`` is a table of a log of PractRand, a row for each length.

``bench-processors`` is one table of all kinds of processors, of the newest full run on each; with
``figures``, only of these figures.

``:bench:`FILE; group; row; column``` is a number to three digits: of the only group that contains
these words and has the row.  With ``row / other row`` it is the quotient of both.
``:machine:`FILE``` is the processor, its number of cores, and the date, after the GPU if any.
"""

import json
import re
import sys
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from kept_tables import role_of

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
sys.path.append(str(ROOT))

from bench.turns import number, tables  # noqa: E402 - after the path

#: Sizes of the table of processors, as groups and names write them.
SIZES = ("(1000, 10)", "(4000, 10)", "(500, 20)", "(1000, 100)")

#: Its figures: text, kind of file, benchmark (or any), and column.
FIGURES = (
    ("us a layer-chain", "simulate", "bnmc conditional float32, ensemble", "us a layer-chain"),
    ("of the roofline, float32", "simulate", "bnmc conditional float32, ensemble",
     "of the roofline"),
    ("the same, processor time", "simulate", "bnmc conditional float32, ensemble",
     "of the roofline, processor time"),
    ("the same, drawn normals", "simulate", "bnmc conditional float32, ensemble",
     "the same, drawn normals"),
    ("of the roofline, float64", "simulate", "bnmc conditional float64, ensemble",
     "of the roofline"),
    ("the same, float64, processor time", "simulate", "bnmc conditional float64, ensemble",
     "of the roofline, processor time"),
    ("x drawing W, tuned too", "simulate", "bnmc conditional float32, ensemble",
     "x drawing W, tuned too"),
    ("x hand-written", "simulate", "bnmc conditional float32, ensemble", "x hand-written"),
    ("backpropagate, forward passes", "gradients", "", "forward passes"),
    ("backpropagate, x PyTorch", "gradients", "", "x PyTorch"),
)  # fmt: skip


def split(text):
    """Return the parts of a text between semicolons, without line breaks."""
    return [" ".join(part.split()) for part in text.split(";")]


def read(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


class Bench(Directive):
    required_arguments = 1
    option_spec = {  # noqa: RUF012 - as docutils has it
        "tables": directives.positive_int_list,
        "columns": split,
        "renamed": split,
        "first": directives.unchanged,
    }

    def run(self):
        path = RESULTS / f"{self.arguments[0]}.json"
        self.state.document.settings.env.note_dependency(str(path))
        document = read(self.arguments[0])
        paragraph = nodes.paragraph("", "", nodes.emphasis(text=when_and_where(document)))
        groups = tables(document["benchmarks"])
        wanted = self.options.get("tables", range(1, len(groups) + 1))
        chosen = [groups[place - 1] for place in wanted]
        if "columns" in self.options:
            for table in chosen:
                shown = [column for column in self.options["columns"] if column in table.headers]
                table.rows = {
                    name: {column: cells.get(column) for column in shown}
                    for name, cells in table.rows.items()
                    if any(cells.get(column) is not None for column in shown)
                }
        words = [pair.split(" = ") for pair in self.options.get("renamed", ())]
        return [
            paragraph,
            *(
                drawing(*renamed([table.title], words), *self.cells(table, words))
                for table in chosen
            ),
        ]

    def cells(self, table, words):
        headers, *rows = (renamed(row, words) for row in table.cells())
        if "first" in self.options:
            headers[0] = self.options["first"]
            rows = [[label.partition(",")[0], *rest] for label, *rest in rows]
        yield map(micro, headers)
        for row in rows:
            yield [row[0], *map(without_exponent, row[1:])]


def micro(head):
    return re.sub(r"\bus\b", "µs", head)


def when_and_where(document):
    cores, load = document["machine_info"]["cores"], document.get("load")
    return (
        f"{document['datetime'][:10]}, {processor_of(document)}, {cores} cores, load "
        f"{f'{load[0]:.1f}' if load else 'unknown'} before it began; "
        f"{'a quick run' if document['quick'] else 'a full run'}, "
        f"commit {document['commit_info']['id'][:9]}."
    )


def without_exponent(text):
    """Return a number as 2.3·10⁷, if it has an exponent."""
    if not (match := re.fullmatch(r"(-?\d\.?\d*?)\.?0*e([+-]\d+)", text)):
        return text
    power = str(int(match[2])).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{match[1].rstrip('.')}·10{power}"


class PractRand(Directive):
    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        name, title = self.arguments[0].split(maxsplit=1)
        self.state.document.settings.env.note_dependency(str(RESULTS / f"{name}.json"))
        document = read(name)
        paragraph = nodes.paragraph("", "", nodes.emphasis(text=when_and_where(document)))
        (log,) = (table for table in tables(document["benchmarks"]) if "RNG_test" in table.title)
        return [paragraph, drawing(title, *by_length(log.rows))]


def by_length(lines):
    """Yield the cells of a table of a log of PractRand: a row for each length."""
    yield ["length", "seconds", "tests", "unusual, suspicious or worse"]
    length, remarks = (), []
    for line in map(str.strip, lines):
        if match := re.match(r"length= (.*) \(.*\), time= (.*) seconds", line):
            length, remarks = match.groups(), []
        elif match := re.match(r"no anomalies in (\d+) test|\.\.\.and (\d+) test", line):
            count = int(match[1] or match[2]) + len(remarks)
            yield [*length, str(count), "; ".join(remarks) or "none"]
        elif match := re.search(r"(\S+) +R= .* (p = *\S+) +(\w.*)", line):
            remarks.append(f"{match[1]}, {' '.join(match[2].split())}: {match[3]}")


class BenchProcessors(Directive):
    option_spec = {"figures": split}  # noqa: RUF012 - as docutils has it

    def run(self):
        files = sorted(RESULTS.glob("*.json"))
        for path in files:
            self.state.document.settings.env.note_dependency(str(path))
        documents = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}
        rows = processors(documents, self.options.get("figures"))
        return [drawing("Speed by kind of processor", *(map(micro, row) for row in rows))]


def processors(documents, figures=None):
    """Yield the texts of the table of processors, of documents by the names of their files."""
    yield ["processor", "figure", *SIZES]
    newest = {}
    for name, document in documents.items():
        kinds = [kind for _, kind, _, _ in FIGURES if re.fullmatch(rf"[\d-]+{kind}.*", name)]
        if kinds and not document["quick"]:
            of_processor = newest.setdefault(processor_of(document), {})
            before = of_processor.get(kinds[0])
            if before is None or before["datetime"] < document["datetime"]:
                of_processor[kinds[0]] = document
    for processor, of_processor in sorted(newest.items()):
        title = processor
        for text, kind, benchmark, column in FIGURES:
            document = of_processor.get(kind)
            values = values_of(document, benchmark, column) if document else {}
            if values and (figures is None or text in figures):
                date = f"{text}, {document['datetime'][:10]}"
                yield [title, date, *(number(values.get(size)) for size in SIZES)]
                title = ""


def processor_of(document):
    cpu = document["machine_info"]["cpu"]
    device = (entry for entry in document["benchmarks"] if entry["group"] == "device")
    names = [entry["extra_info"]["which"] for entry in device if entry["name"] == "name"]
    return "".join(f"{name}, host " for name in names) + f"{cpu['brand_raw']} ({cpu['llvm']})"


def values_of(document, benchmark, column):
    """Return the values of a column by size; those of the first benchmark that has it."""
    values = {}
    for entry in document["benchmarks"]:
        size = re.search(r"\(\d+, \d+\)", f"{entry['group']} {entry['name']}")
        if benchmark in ("", entry["name"]) and column in entry["extra_info"] and size:
            values.setdefault(size.group(), entry["extra_info"][column])
    return values


def drawing(title, headers, *rows):
    headers = list(headers)
    group = nodes.tgroup(cols=len(headers))
    group += [nodes.colspec(colwidth=1) for _ in headers]
    head, body = nodes.thead(), nodes.tbody()
    head += row(headers)
    body += [row(cells) for cells in rows]
    group += [head, body]
    return nodes.table("", nodes.title(text=title), group, classes=["colwidths-auto"])


def renamed(cells, words):
    """Return cells with the words of a page for those of an older file."""
    for before, after in words:
        cells = [text.replace(before, after) for text in cells]
    return cells


def row(cells):
    line = nodes.row()
    for cell in cells:
        entry = nodes.entry()
        entry += nodes.paragraph(text=cell)
        line += entry
    return line


def cell(words):
    """Return a number of a file, or the quotient of two."""
    name, group, rows, column = words
    document = read(name)
    numbers = []
    for row in rows.split(" / "):
        values = [
            table.rows[row][column]
            for table in tables(document["benchmarks"])
            if group in table.title and column in table.rows.get(row, ())
        ]
        if len(values) != 1:
            raise LookupError(f"{name}: {len(values)} values of {words[1:]}")
        numbers += values
    return digits(numbers[0] / numbers[1] if numbers[1:] else numbers[0])


def digits(value):
    """Three significant digits, without an exponent; groups of three above 9999."""
    text = f"{value:.3g}"
    if abs(value) < 1000:
        return text
    return f"{float(text):,.0f}".replace(",", "\u202f" if abs(value) >= 10_000 else "")


def machine(words):
    """Return the processor of a file, with the number of its cores, and the date."""
    document = read(*words)
    return f"{processor_of(document)}, {document['machine_info']['cores']} cores, {words[0][:10]}"


ROLES = {"bench": cell, "machine": machine}


def setup(app):
    for name, function in ROLES.items():
        app.add_role(name, role_of(function, lambda words: RESULTS / f"{words[0]}.json"))
    app.add_directive("bench", Bench)
    app.add_directive("bench-processors", BenchProcessors)
    app.add_directive("practrand", PractRand)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
