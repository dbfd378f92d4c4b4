"""Render notebooks as pages, with their stored results.  Runs and downloads nothing."""

import json

from myst_parser.parsers.sphinx_ import MystParser


class NotebookParser(MystParser):
    supported = ("notebook",)

    def parse(self, inputstring, document):
        path = document.settings.env.doc2path(document.settings.env.docname)
        super().parse(markdown(json.loads(inputstring), path.name), document)


def markdown(notebook, name):
    """Return a notebook in MyST's Markdown, with a link to its file after the title."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code":
            parts += [fenced(source, "python"), *results(cell["outputs"])]
    title, _, rest = parts[0].partition("\n")
    link = f"{{download}}`Download this notebook <{name}>`"
    return "\n\n".join([title, link, rest, *parts[1:]])


def results(outputs):
    """Yield the printed output of a cell as one block, and then its pictures."""
    printed = "".join("".join(one["text"]) for one in outputs if one["output_type"] == "stream")
    if printed:
        yield fenced(printed, "text")
    for one in outputs:
        if one["output_type"] != "stream":  # raises KeyError for an error or another type of data
            picture = one["data"]["image/png"].strip()
            yield f"![Picture drawn by the cell above](data:image/png;base64,{picture})"


def fenced(text, language):
    return f"```{language}\n{text.rstrip()}\n```"


def setup(app):
    app.setup_extension("myst_parser")
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
