"""Leave out of the API pages what docstrings of packages tell contributors: imports and files.

Classes whose base has a general ``__new__`` show the signature of their ``__init__``.
"""

import inspect


def setup(app):
    # Before numpydoc, which reads the sections of a docstring.
    app.connect("autodoc-process-docstring", shorten, priority=400)
    app.connect("autodoc-process-signature", of_init, priority=400)
    return {"parallel_read_safe": True}


def of_init(app, what, name, value, options, signature, returned):
    if what != "class" or signature != "(*args, **kwargs)":
        return None
    from sphinx.util.inspect import stringify_signature

    own = inspect.signature(value)
    return stringify_signature(own, show_annotation=False, show_return_annotation=False), returned


def shorten(app, what, name, value, options, lines):
    if what == "module":
        # An empty line ends it, for what follows on the page.
        lines[:] = [*for_users("\n".join(lines)).split("\n"), ""]


def for_users(docstring):
    """Return a docstring without the paragraphs on imports and files."""
    paragraphs = docstring.split("\n\n")
    return "\n\n".join(text for text in paragraphs if not any(word in text for word in _WORDS))


#: Words of the paragraphs for contributors.
_WORDS = "may import", ".py`"
