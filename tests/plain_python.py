"""Kernels as the plain Python that they are compiled from."""

from bnmc._kernels.cpu import backward_rows, layers, orthogonal, pairs, rows, sharing, sources

#: Names of functions that share a task among threads.
TASKS = {
    layers: {"_share_moments": "sum_moments", "_share_rows": "sum_rows"},
    orthogonal: {"_share_panels": "sum_panels"},
}
#: Where modules get activations from.
ACTIVATIONS = {layers: rows, pairs: rows, backward_rows: backward_rows}


def run_plainly(monkeypatch, *modules):
    """Let kernels of modules run as Python.  Those of others, such as random numbers, are slow so.

    Tasks of threads are plain, too.  Python takes activations themselves, and no addresses of
    compiled ones.
    """
    names = {module.__name__ for module in modules}
    for module in modules:
        for name, function in vars(module).copy().items():
            if hasattr(function, "py_func") and function.__module__ in names:
                monkeypatch.setattr(module, name, function.py_func)
    for module in modules:
        for name, task in TASKS.get(module, {}).items():
            monkeypatch.setattr(module, name, sharing.shared(getattr(module, task)))
        for name in ("activation", "derivative"):
            place = ACTIVATIONS.get(module)
            if hasattr(place, name):
                monkeypatch.setattr(place, name, lambda function, *dtypes: function)
    if sharing in modules:
        for name, task in (("factorise", rows.factorise), ("merge", sharing.merge_tiles)):
            for module in (layers, sharing, sources):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, sharing._alone_or(name, task))
