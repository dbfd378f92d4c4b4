"""Damage to files and stores, drawn at random: what a disk, a bug or a person may do to them."""

import io
import os
import shutil
import zipfile

#: Longer files were made so by `damage_store`: nothing reads them.
LONGEST = 1 << 30

#: Headers of a file of NumPy that make no sense, or too much memory.
HEADERS = [
    "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3)}",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000, 1000000000)}",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 3)}",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (400000000,)}",
    "{'descr': '|O', 'fortran_order': False, 'shape': (2, 3)}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (6, 4)}",
    "{'descr': '<U1000000000', 'fortran_order': False, 'shape': (1,)}",
    "{'descr': '<f8', 'fortran_order': 3, 'shape': (2.5, 3)}",
    "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (2, 3)}",
    "{'descr': '<f8', 'shape': (2, 3)}",
    "__import__('os').getpid()",
    "(" * 3000,
    "",
]


def header(text):
    """Return the begin of a file of NumPy with a header."""
    content = text.encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(content).to_bytes(2, "little") + content


def archive(members, compression=zipfile.ZIP_STORED):
    """Return the content of an archive with members of these names."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as target:
        for name, content in members.items():
            target.writestr(name, content)
    return file.getvalue()


def damaged_bytes(rng, content):
    """Return bytes that are flipped, cut, removed, repeated, permuted or replaced."""
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(len(content) + 1)
        kind = rng.choice(["flipped", "cut", "removed", "repeated", "permuted", "replaced"])
        if kind == "flipped" and at < len(content):
            content[at] ^= 1 << rng.randrange(8)
        elif kind == "cut":
            del content[at:]
        elif kind == "removed":
            del content[at : at + rng.randrange(1, 20)]
        elif kind == "repeated":
            content[at:at] = content[max(0, at - 9) : at]
        elif kind == "permuted":
            part = list(content[at : at + 16])
            rng.shuffle(part)
            content[at : at + 16] = bytes(part)
        else:
            content[at : at + 4] = rng.randbytes(4)
    return bytes(content)


def hostile_archive(rng, content, shown):
    """Return an archive with members of other headers, other names, or of a huge size."""
    with zipfile.ZipFile(io.BytesIO(content)) as source:
        members = {name: source.read(name) for name in source.namelist()}
    victim = rng.choice(sorted(members))
    kind = rng.choice(["header", "bomb", "empty", "renamed", "missing"])
    shown.append(f"{kind} {victim}")
    if kind == "header":
        members[victim] = header(rng.choice(HEADERS)) + members[victim][128:]
    elif kind == "bomb":
        text = "{'descr': '|u1', 'fortran_order': False, 'shape': (30000000,)}"
        members[victim] = header(text) + b"\0" * 30_000_000
        return archive(members, zipfile.ZIP_DEFLATED)
    elif kind == "empty":
        members[victim] = b""
    elif kind == "renamed":
        members[f"../{victim}"] = members.pop(victim)
    else:
        del members[victim]
    return archive(members)


def damage_store(path, rng, shown, other=None):
    """Damage some files of a store, or exchange them for each other, or for those of another one.

    Only where there is another store are files made longer than memory.
    """
    inside = sorted(file for file in path.rglob("*") if file.is_file())
    for _ in range(rng.choice([1, 1, 2, 4])):
        victim, second = rng.choice(inside), rng.choice(inside)
        if any(file.exists() and file.stat().st_size > LONGEST for file in (victim, second)):
            continue
        kinds = ["removed", "exchanged", "random", *["damaged"] * 3]
        kind = rng.choice(kinds if other is None else [*kinds, "of another run", "too long"])
        shown.append(f"{victim.relative_to(path)} {kind}")
        if kind == "removed":
            victim.unlink(missing_ok=True)
        elif kind == "of another run":
            shutil.copy(other / victim.relative_to(path), victim)
        elif kind == "random":
            victim.write_bytes(rng.randbytes(rng.randrange(200)))
        elif kind == "exchanged" and victim.exists() and second.exists():
            contents = victim.read_bytes(), second.read_bytes()
            second.write_bytes(contents[0])
            victim.write_bytes(contents[1])
        elif kind == "too long" and victim.exists():
            os.truncate(victim, 1 << rng.choice([34, 40]))
        elif kind == "damaged" and victim.exists():
            victim.write_bytes(damaged_bytes(rng, victim.read_bytes()))
