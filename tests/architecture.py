"""Checks of the structure of a package, made by reading its sources without importing them.

Each check takes the folder of the package and returns a list of breaches, one text each, which
names the files.  An empty list means that the rule holds.  `test_architecture.py` applies the
checks to `bnmc`, and each check to a small package that breaks its rule.  Sources are read once, so
a package must not change between two checks.
"""

import ast
import gc
import re
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

#: The files at the top of a package that may import everything, and that no file may import.
FACE = ("__init__", "__main__")
#: Length of a text that may name something, such as the key of a table; longer texts are prose.
LONGEST_MENTION = 200


class Import(NamedTuple):
    """One file of the package imports another one; paths are relative to the package."""

    file: Path
    line: int
    target: Path
    #: Whether the import is under `if TYPE_CHECKING`.
    typing: bool

    def __str__(self):
        return f"{self.file}:{self.line} imports {self.target}"


# --- reading the sources


def files(root):
    """Return the Python files of a package, relative to its folder."""
    return sorted(path.relative_to(root) for path in root.rglob("*.py"))


def top(path):
    """Return the package or module at the top that a file belongs to."""
    return path.parts[0].removesuffix(".py")


def top_names(root):
    """Return the names of all packages and modules at the top, `__init__` included."""
    return {top(path) for path in files(root)}


def modules(root):
    """Return the file of each module, by its full name."""
    paths = {}
    for path in files(root):
        parts = path.with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        paths[".".join((root.name, *parts))] = path
    return paths


@cache
def parse(root, path):
    """Return the syntax tree of a file."""
    text = (root / path).read_text(encoding="utf-8")
    # Among so many new objects, which all stay, garbage collections take most of the time.
    gc.disable()
    try:
        return ast.parse(text, filename=str(path))
    finally:
        gc.enable()


@cache
def nodes(root, path):
    """Return all nodes of the syntax tree of a file."""
    return tuple(ast.walk(parse(root, path)))


@cache
def imports(root):
    """Return every import of one file of the package by another one.

    Imports inside of functions count.  So do calls of `import_module` with a text; of a formatted
    text, the constant beginning counts.  An import of a module runs the `__init__` of each package
    on the way to it, so these are targets as well, except those of packages that the importing file
    is in.
    """
    paths = modules(root)
    edges = []
    for path in files(root):
        package = (root.name, *path.parts[:-1])
        for node, typing in _statements(root, path):
            for name in _imported_names(node, package, paths):
                for target in _files_run(name, package, paths):
                    if target != path:
                        edges.append(Import(path, node.lineno, target, typing))
    return sorted(set(edges))


def _statements(root, path):
    """Yield every node, and whether the node is under `if TYPE_CHECKING`."""
    checked = {
        inner
        for node in nodes(root, path)
        if isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    return ((node, node in checked) for node in nodes(root, path))


def _last_name(node):
    """Return `c` of the expressions `a.b.c` and `c`."""
    return getattr(node, "attr", None) or getattr(node, "id", None)


def _imported_names(node, package, paths):
    """Return the full names that a node imports: of modules, or of what modules define."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else ()
        base = ".".join((*base, *filter(None, [node.module])))
        return [f"{base}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and _last_name(node.func) == "import_module":
        text = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
        value = getattr(text, "value", None)
        return [value.rstrip(".")] if isinstance(value, str) else []
    return []


def _files_run(name, package, paths):
    """Return the files that an import of a full name runs, the module's own file last."""
    parts = name.split(".")
    while parts and ".".join(parts) not in paths:
        parts.pop()
    ways = [tuple(parts[:length]) for length in range(1, len(parts) + 1)]
    entered = [way for way in ways[:-1] if package[: len(way)] != way]
    return [paths[".".join(way)] for way in (*entered, *ways[-1:])]


# --- levels


def misplaced(root, levels):
    """List the names at the top without a level, and those with a level that do not exist."""
    there, placed = top_names(root) - set(FACE), set(levels)
    return [
        *(f"{root.name}/{name} has no level" for name in sorted(there - placed)),
        *(f"{root.name}/{name} has a level but no file" for name in sorted(placed - there)),
    ]


def crowded(root, levels, most_names, most_levels):
    """List the numbers that are too large: of names at the top, and of levels."""
    names, numbers = sorted(top_names(root)), sorted(set(levels.values()))
    breaches = []
    if len(names) > most_names:
        breaches.append(f"{len(names)} packages and modules, more than {most_names}: {names}")
    if len(numbers) > most_levels:
        breaches.append(f"{len(numbers)} levels, more than {most_levels}: {numbers}")
    return breaches


def upward(root, levels, typing=False):
    """List the imports from another package that is not on a lower level.

    With `typing` these are the imports under `if TYPE_CHECKING`, otherwise all others.
    """
    breaches = []
    for edge in imports(root):
        source, target = top(edge.file), top(edge.target)
        if edge.typing is not typing or source == target or source in FACE or target in FACE:
            continue
        if not levels.get(source, 0) > levels.get(target, 0):
            breaches.append(
                f"{edge}: {source} is on level {levels.get(source)}, "
                f"{target} on level {levels.get(target)}"
            )
    return breaches


def face_imports(root):
    """List the imports of the package itself instead of the module that defines a name."""
    return [
        str(edge)
        for edge in imports(root)
        if edge.target.parent == Path() and top(edge.target) in FACE
    ]


def circles(root):
    """List a circle of imports, if there is one."""
    files_of = {}
    for edge in imports(root):
        files_of.setdefault(edge.file, set()).add(edge.target)
    try:
        TopologicalSorter(files_of).prepare()
    except CycleError as error:
        return ["circle of imports: " + ", ".join(sorted(map(str, set(error.args[1]))))]
    return []


# --- names and texts


def underscores(root, allowed):
    """List the names that begin with one underscore: at the top those not allowed, inside all."""
    names = {
        (path.parts[:-1] if path.stem == "__init__" else path.with_suffix("").parts)
        for path in files(root)
    }
    return [
        f"{root.name}/{'/'.join(parts)} begins with an underscore"
        for parts in sorted(filter(None, names))
        if re.match("_[^_]", parts[-1]) and parts not in {(name,) for name in allowed}
    ]


def listed_outside(root, public):
    """List the `__all__` of modules; one belongs into `__init__` and modules that users import.

    Elsewhere an underscore says what is private.
    """
    return [
        f"{path} has an `__all__`"
        for path in files(root)
        if path.name != "__init__.py" and path.as_posix() not in public and _has_list(root, path)
    ]


def private_imports(root):
    """List the imports of another file's name, or of an attribute of it, with an underscore."""
    paths = modules(root)
    breaches = []
    for path in files(root):
        package = (root.name, *path.parts[:-1])
        inside = set()
        for node in nodes(root, path):
            if isinstance(node, ast.ImportFrom):
                names = _imported_names(node, package, paths)
                for alias, name in zip(node.names, names, strict=True):
                    if name in paths:
                        inside.add(alias.asname or alias.name)
                    elif name.partition(".")[0] == root.name and _is_private(alias.name):
                        breaches.append(f"{path}:{node.lineno} imports {name}")
        breaches += [
            f"{path}:{node.lineno} reads {node.value.id}.{node.attr}"
            for node in nodes(root, path)
            if isinstance(node, ast.Attribute) and _is_private(node.attr)
            if isinstance(node.value, ast.Name) and node.value.id in inside
        ]
    return breaches


def unused_outside(root, readers):
    """List the names of modules without an underscore that no other file mentions.

    `readers` are folders of further files that may import them, such as the tests.  An import, an
    attribute and a text of at most `LONGEST_MENTION` characters mention a name.  Modules with an
    `__all__` are left out.
    """
    mentioned = {path: _mentions(nodes(root, path)) for path in files(root)}
    outside = set()
    for folder in readers:
        for path in files(folder):
            outside |= _mentions(nodes(folder, path))
    count = Counter(name for names in mentioned.values() for name in names)
    return [
        f"{path}: only this file uses {name}, which has no underscore"
        for path in files(root)
        if path.name != "__init__.py" and not _has_list(root, path)
        for name in _top_level(parse(root, path))
        if not name.startswith("_") and name not in outside
        if count[name] == (name in mentioned[path])
    ]


def _has_list(root, path):
    return "__all__" in _top_level(parse(root, path))


def _is_private(name):
    return re.match("_[^_]", name) is not None


def _top_level(tree):
    """Return the names that a module defines at its top level."""
    names = []
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [
                inner.id
                for target in targets
                for inner in ast.walk(target)
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
            ]
    return dict.fromkeys(names)


def _mentions(all_nodes):
    names = set()
    for node in all_nodes:
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(part for alias in node.names for part in alias.name.split("."))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.update(
                re.findall(r"\w+", node.value) if len(node.value) <= LONGEST_MENTION else ()
            )
    return names


def vague_names(root, words):
    """List the loop variables, assigned names and parameters that are one of some words."""
    breaches = []
    for path in files(root):
        for node in nodes(root, path):
            stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            name = node.id if stored else node.arg if isinstance(node, ast.arg) else None
            if name in words:
                breaches.append(f"{path}:{node.lineno}: {name} does not say what it names")
    return breaches


def namesakes(root):
    """List the modules with the name of something else that their package exports.

    A package may export a module itself.  An exported name is something else if the `__init__`
    defines it, imports it from a module, or has it as a key of a dictionary of lazy imports.
    """
    paths = modules(root)
    breaches = []
    for package, path in paths.items():
        if path.name == "__init__.py":
            tree = parse(root, path)
            for name in sorted(_exported(tree) & _defined(tree, package, paths)):
                if module := paths.get(f"{package}.{name}"):
                    breaches.append(f"{module} has the name of {name!r}, which {path} exports")
    return breaches


def _exported(tree):
    """Return the texts in the literal `__all__` of a module, and the names imported as such."""
    names = set()
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            names |= _texts(ast.walk(node.value))
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names if alias.asname == alias.name}
    return names


def _defined(tree, package, paths):
    """Return the names that an `__init__` gives to anything but its own modules."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Dict):
            names |= _texts(node.keys)
        elif isinstance(node, ast.ImportFrom):
            full = _imported_names(node, tuple(package.split(".")), paths)
            names |= {
                alias.asname or alias.name
                for alias, target in zip(node.names, full, strict=True)
                if target not in paths
            }
    return names


def _texts(nodes):
    values = (getattr(node, "value", None) for node in nodes)
    return {value for value in values if isinstance(value, str)}


def undocumented(root):
    """List the packages below the top that are not introduced.

    The docstring needs two sentences.  The docstring or a comment of the `__init__` names a file
    of the folder to read first; a comment serves where the docstring is a page for users.
    """
    breaches = []
    for path in files(root):
        if path.name != "__init__.py" or path.parent == Path():
            continue
        text = ast.get_docstring(parse(root, path)) or ""
        if len(re.findall(r"[.!?](?=\s|$)", text)) < 2:
            breaches.append(f"{path} has a docstring of fewer than two sentences")
        comments = re.findall("^# ?(.*)", (root / path).read_text(encoding="utf-8"), re.MULTILINE)
        text += "\n\n" + "\n".join(comments)
        siblings = {file.stem for file in (root / path).parent.iterdir()} - {"__init__"}
        named = set(re.findall(r"`+([\w./-]+?)(?:\.py)?`+|\b([\w/-]+)\.py\b", text))
        stems = {re.split("[./]", file)[0] for pair in named for file in pair if file}
        first = re.search(r"\b(first|start|begin)", text, re.IGNORECASE)
        if not (first and stems & siblings):
            breaches.append(f"{path} names no file of its folder to read first")
    return breaches


def long_functions(root, most):
    """List the functions of more than `most` lines of code.

    Blank lines, comments, decorators and the docstring do not count; functions inside do.
    """
    breaches = []
    for path in files(root):
        lines = (root / path).read_text(encoding="utf-8").splitlines()
        code = {n for n, line in enumerate(lines, 1) if line.strip() and line.strip()[0] != "#"}
        for node in nodes(root, path):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            counted = code & set(range(node.lineno, node.end_lineno + 1))
            if ast.get_docstring(node) is not None:
                counted -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
            if len(counted) > most:
                size = f"{len(counted)} lines of code, from {node.lineno}"
                breaches.append(f"{path.as_posix()}: {node.name} has {size}")
    return breaches


# --- tests and the map


def untested(root, tests, others, cross_cutting):
    """List the differences between the folders and files of the tests and those of the package.

    ``tests/<package>/test_<x>.py`` needs a file or a folder `x` somewhere in the package;
    ``test_<x>_<subject>.py`` tests a subject of `x`.

    Parameters
    ----------
    root, tests : Path
        The package and its tests.
    others : collection of str
        Folders of the tests that are no packages.
    cross_cutting : dict
        Test files, relative to `tests`, that belong to no single file; the values are reasons.
    """
    packages = {top(path) for path in files(root) if len(path.parts) > 1}
    hidden = ("__pycache__", *others)
    folders = {file.name for file in tests.iterdir() if file.is_dir() and file.name not in hidden}
    breaches = [
        *(f"{tests.name}/{name} is missing" for name in sorted(packages - folders)),
        *(
            f"{tests.name}/{name} is no package of {root.name}"
            for name in sorted(folders - packages)
        ),
        *(
            f"{file} is listed, but missing"
            for file in cross_cutting
            if not (tests / file).exists()
        ),
    ]
    stems = {
        (path.parts[0] if len(path.parts) > 1 else "", part.removesuffix(".py"))
        for path in files(root)
        for part in path.parts[1:] or path.parts
    }
    for path in sorted(file.relative_to(tests) for file in tests.rglob("test_*.py")):
        folder = path.parts[0] if len(path.parts) > 1 else ""
        if folder in others or path.as_posix() in cross_cutting:
            continue
        words = path.stem.split("_")[1:]
        begins = ("_".join(words[:count]) for count in range(len(words), 0, -1))
        if not any((folder, begin) in stems for begin in begins):
            tested = f"{root.name}/{folder}/".replace("//", "/")
            breaches.append(f"{tests.name}/{path}: no file of this name in {tested}")
    return breaches


def levels_in(text):
    """Read the map of a Markdown page: ``| level | `name` | purpose |``, one package a row."""
    rows = re.findall(r"^\| *(\d+) *\| *`(\w+)(?:/|\.py)?` *\| *(\S.*?) *\|$", text, re.MULTILINE)
    return {name: int(level) for level, name, _ in rows}


def map_differences(levels, page):
    """List the differences between the table of levels and the map of a page."""
    shown = levels_in(page.read_text(encoding="utf-8"))
    return [
        f"{page.name} has {name} on level {shown.get(name)}, not {levels.get(name)}"
        for name in sorted(levels.keys() | shown.keys())
        if levels.get(name) != shown.get(name)
    ]
