"""The directive ``c-functions``: the functions for C, by the comments of their header."""

from bench_tables import drawing
from docutils.parsers.rst import Directive

from bnmc.kernels.c_header import DECLARED


class CFunctions(Directive):
    def run(self):
        rows = ([each.name, each.comment.partition("\n")[0]] for each in DECLARED)
        return [drawing("Functions of bnmc_f64 and bnmc_f32", ["name", "result"], *rows)]


def setup(app):
    app.add_directive("c-functions", CFunctions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
