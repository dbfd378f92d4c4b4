"""Kernels as the plain Python that they are compiled from."""

from bnmc._kernels.cpu import backward_rows, layers, orthogonal, rows, sharing, sources


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
    for module, name, task in (
        (layers, "_share_moments", "sum_moments"),
        (layers, "_share_rows", "sum_rows"),
        (orthogonal, "_share_panels", "sum_panels"),
    ):
        if module in modules:
            monkeypatch.setattr(module, name, sharing.shared(getattr(module, task)))
    for name, task in (("factorise", rows.factorise), ("merge", sharing.merge_tiles)):
        for module in (layers, sharing, sources):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, sharing._alone_or(name, task))
    for module in (rows, backward_rows):
        for name in ("activation", "derivative"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, lambda function, *dtypes: function)
