"""Stores of `small_stores.run` that were damaged: what a run and a reader say of each."""

import io
import json
import os
import shutil
import zipfile
from unittest import mock

import numpy as np
from damaging import header
from small_stores import run

from bnmc._support.archives import archived
from bnmc.simulation import run as simulating
from bnmc.simulation import tiles
from bnmc.simulation.store import parts
from bnmc.simulation.store.parts import with_facts, without_facts

CHUNK, TILE = "gram/c/0/0/0/0", "progress/part-0-1.npz"
NESTED = "[" * 100_000


def attributes(path):
    return json.loads((path / "zarr.json").read_text())["attributes"]


def rewrite(path, change):
    """Change a file of JSON."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def forge(path, name, change):
    """Change the metadata of an array in both places, with the digests that belong to them."""
    rewrite(path / name / "zarr.json", change)

    def everywhere(document):
        copies = document["consolidated_metadata"]["metadata"]
        change(copies[name])
        facts = document["attributes"]
        facts["arrays"] = parts.digest_of_document(copies)
        facts["checksum"] = parts._checksum(facts)

    rewrite(path / "zarr.json", everywhere)


# --- kinds of damage: functions of the path of a store


def chunks(path):
    return sorted(file for file in (path / "gram" / "c").rglob("*") if file.is_file())


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def shorten(file):
    file.write_bytes(file.read_bytes()[:-9])


def written(name, content):
    content = content.encode("latin-1") if isinstance(content, str) else content
    return lambda path: (path / name).write_bytes(content)


def changed(change, name="zarr.json"):
    return lambda path: rewrite(path / name, change)


def forged(change):
    return lambda path: forge(path, "gram", change)


def of_another(*names, rng=4, source=None, grid=None):
    """Replace files and folders by those of another run, or of one that is divided otherwise."""

    def damage(path):
        other = path.with_name("other.zarr")
        with mock.patch.object(simulating, "grid_of", grid or simulating.grid_of):
            run(other, rng=rng)
        for name in names:
            place, copy = path / name, other / (source or name)
            if copy.is_dir():
                shutil.rmtree(place)
                shutil.copytree(copy, place)
            else:
                shutil.copy(copy, place)

    return damage


def linked(name):
    def damage(path):
        elsewhere = path.with_name("elsewhere")
        (path / name).rename(elsewhere)
        (path / name).symlink_to(elsewhere)

    return damage


def piped(name):
    def damage(path):
        (path / name).unlink()
        os.mkfifo(path / name)

    return damage


def archive(content, flag=0):
    """Replace a tile by an archive whose only member has this content."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as target:
        target.writestr("gram.npy", content)
    forgery = bytearray(file.getvalue())
    forgery[forgery.index(b"PK\1\2") + 8] |= flag
    return written(TILE, bytes(forgery))


def facts(text):
    return written(TILE, archived({"facts": np.frombuffer(text.encode("latin-1"), np.uint8)}))


def tile_with(change):
    """Change the arrays of the tiles, with the digests that belong to them."""

    def damage(path):
        for tile in (path / "progress").glob("part-*.npz"):
            arrays, of_tile = without_facts(tile.read_bytes())
            tile.write_bytes(with_facts(change(arrays), of_tile))

    return damage


def sums(value):
    def change(arrays):
        arrays = {name: array for name, array in arrays.items() if name != "sums"}
        return arrays if value is None else {**arrays, "sums": np.array(value)}

    return tile_with(change)


def states(change):
    """Change the states in the tiles."""

    def changed_arrays(arrays):
        state = {name[6:]: arrays.pop(name) for name in list(arrays) if name.startswith("state_")}
        return arrays | {f"state_{name}": array for name, array in change(state).items()}

    return tile_with(changed_arrays)


def compressed(path):
    file = io.BytesIO()
    np.savez_compressed(file, gram=np.zeros((1000, 1000)))
    for tile in (path / "progress").glob("part-*.npz"):
        tile.write_bytes(file.getvalue())


def flipped_key(document):
    key = document["attributes"]["key"]
    document["attributes"]["key"] = key[:-1] + chr(ord(key[-1]) ^ 1)


def earlier_format(document):
    """The attributes of bnmc 0.2.0, which wrote no number of the format."""
    del document["attributes"]["format"]
    document["attributes"]["bnmc_version"] = "0.2.0"


def swapped(document):
    document["dimension_names"] = document["dimension_names"][::-1]


def swapped_copy(document):
    swapped(document["consolidated_metadata"]["metadata"]["gram"])


def swapped_twice(path):
    rewrite(path / "gram/zarr.json", swapped)
    rewrite(path / "zarr.json", swapped_copy)


def chunks_of(*shape, **more):
    def change(document):
        document.update(**more)
        document["chunk_grid"]["configuration"].update(chunk_shape=list(shape))

    return forged(change)


def smaller_grid(run, *_):
    return tiles.Grid.of_slots(run.chains, run.recorded, 1, 7)


def outdated(path):
    """A run that died after the header of a larger run, and before the rest."""
    rewrite(path / "layer/zarr.json", lambda document: document.update(shape=[14]))
    (path / "chain/zarr.json").unlink()
    (path / "layer/c/0").write_bytes(b"")


def longer(name):
    """A sparse file has any length and takes no room on the disk."""
    return lambda path: os.truncate(path / name, 2**42)


LINKED = [
    CHUNK, "gram/c/0", "gram", "layer/c/0", "zarr.json", "progress", "progress/lock", TILE,
]  # fmt: skip
NO_SENSE = ["", "{", "[]", '{"attributes": {"key": "x"}}', "{}"]
OF_CHUNK, OLD = "gram of chains 0 to 1 is damaged", r"bnmc 0\.2\.0 made it, in a format that this"
NO_RUN, MEMORY, DIMENSIONS = "not those of this", "do not fit in memory", "dimension_names of gram"
#: The message of a run that is made again in part.
AGAIN = None
#: Name: (damage, message of a run, message of a reader; "" if it may be any or none).
DAMAGE = {
    "a flipped bit": (lambda path: flip(chunks(path)[0]), AGAIN, OF_CHUNK),
    "a torn chunk": (lambda path: shorten(chunks(path)[0]), AGAIN, OF_CHUNK),
    "an empty chunk": (lambda path: chunks(path)[1].write_bytes(b""), AGAIN, OF_CHUNK),
    "a lost chunk": (lambda path: chunks(path)[1].unlink(), AGAIN, OF_CHUNK),
    "chunks that changed places": (
        lambda path: os.replace(chunks(path)[0], chunks(path)[1]), AGAIN, OF_CHUNK,
    ),
    "a long chunk": (longer(CHUNK), AGAIN, OF_CHUNK),
    "a long array of layers": (longer("layer/c/0"), AGAIN, ""),
    "a long tile": (longer(TILE), MEMORY, MEMORY),
    "long metadata": (longer("zarr.json"), MEMORY, MEMORY),
    "a torn tile": (lambda path: shorten(path / TILE), AGAIN, ""),
    "an empty tile": (written(TILE, ""), AGAIN, ""),
    "a tile that is no archive": (written(TILE, "PK\5\6"), AGAIN, ""),
    "a huge tile": (
        archive(header("{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,)}")),
        AGAIN, "",
    ),
    "a tile of objects": (
        archive(header("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}") + b"\0" * 8),
        AGAIN, "",
    ),
    "an encrypted tile": (archive(header("{'descr': }"), flag=1), AGAIN, ""),
    "compressed tiles": (compressed, AGAIN, ""),
    **{f"facts: {text[:4]!r}": (facts(text), AGAIN, "") for text in (NESTED, "\xff")},
    **{f"facts: {text}": (facts(text), "nothing", "") for text in ("[]", "{}")},
    **{
        f"checksums: {value}": (sums(value), AGAIN, "")
        for value in (None, [], [1, 2], [[1]], ["x"], [2.5])
    },
    "states without arrays": (states(lambda state: {"wide": state["wide"]}), AGAIN, ""),
    "states without precision": (
        states(lambda state: {name: array for name, array in state.items() if name != "wide"}),
        AGAIN, "",
    ),
    "states of another shape": (
        states(lambda state: {**state, "gram": state["gram"][:, :2]}), AGAIN, "",
    ),
    "states of fewer chains": (
        states(lambda state: {name: array[:0] for name, array in state.items()}), AGAIN, "",
    ),
    "states of scalars": (states(lambda state: {**state, "gram": np.float64(1.0)}), AGAIN, ""),
    "states of text": (
        states(lambda state: {**state, "gram": np.array(["a"] * len(state["gram"]))}), AGAIN, "",
    ),
    "states that are not finite": (
        states(lambda state: {**state, "gram": state["gram"] * np.nan}), AGAIN, "",
    ),
    "a flipped bit in the key": (changed(flipped_key), "a run with key:", "attributes are damaged"),
    "an earlier format": (changed(earlier_format), OLD, OLD),
    **{f"metadata: {text}": (written("zarr.json", text), "metadata|damaged", "")
       for text in NO_SENSE},
    "nested zarr.json": (written("zarr.json", NESTED), "nested", "nested"),
    "nested metadata of an array": (written("gram/zarr.json", NESTED), AGAIN, "nested"),
    "no metadata of arrays": (
        changed(lambda document: document.pop("consolidated_metadata")), NO_RUN, "",
    ),
    "swapped names": (changed(swapped, "gram/zarr.json"), AGAIN, DIMENSIONS),
    "swapped names in the copy": (changed(swapped_copy), NO_RUN, DIMENSIONS),
    "names swapped twice": (swapped_twice, NO_RUN, ""),
    "metadata and coordinates before a growth": (outdated, AGAIN, "chain/zarr.json|No such file"),
    "a tile of another run": (of_another(TILE), "a run with key:", "identity = "),
    "a tile of another number": (
        of_another(TILE, rng=3, source="progress/part-1-1.npz"), "part = 1-1", "part = 1-1",
    ),
    "a tile of another division": (
        of_another("progress/part-0-0.npz", rng=3, grid=smaller_grid), "identity = ", "",
    ),
    "arrays of another run": (of_another("gram/c"), AGAIN, OF_CHUNK),
    "arrays and tiles of another run": (
        of_another("gram", "progress"), "a run with key:", "identity = ",
    ),
    "another run": (of_another("."), "key", "identity"),
    **{f"a link {name}": (linked(name), "is a link", "") for name in LINKED},
    "a second name of the lock": (
        lambda path: os.link(path / "progress/lock", path.with_name("elsewhere")),
        "another name elsewhere", "",
    ),
    "a pipe for a chunk": (piped(CHUNK), "regular file", ""),
    "a pipe for a tile": (piped(TILE), "regular file", "regular file"),
    "a pipe for metadata": (piped("zarr.json"), "regular file|a run made", "regular file"),
    "forged, huge chunks": (chunks_of(2, 2**50, 4, 4), NO_RUN, "."),
    "forged, chunks of no number": (chunks_of(2, 7.5, 4, 4), NO_RUN, "."),
    "forged, compressed chunks": (
        forged(lambda document: document["codecs"].append({"name": "zstd", "configuration": {}})),
        NO_RUN, ".",
    ),
    "forged, huge matrices": (
        chunks_of(2, 7, 2**40, 4, shape=[4, 21, 2**40, 4]), NO_RUN, ".",
    ),
    "forged, larger matrices": (
        chunks_of(2, 7, 5, 4, shape=[4, 21, 5, 4]), NO_RUN, ".",
    ),
    "forged, other numbers": (
        forged(lambda document: document.update(data_type="float32")), NO_RUN, ".",
    ),
}  # fmt: skip
#: Damage of the attributes: without a seed, a run says what a reader says.
ATTRIBUTES = ["a flipped bit in the key", "an earlier format", "nested zarr.json"]
#: Damage of what follows from the header: no tile is made again.
OF_METADATA = {
    "a long array of layers", "nested metadata of an array", "swapped names",
    "metadata and coordinates before a growth",
}  # fmt: skip
#: Damage that is noticed before xarray reads values.
BEFORE_READING = [
    "a flipped bit in the key", "swapped names", "swapped names in the copy", "another run",
]  # fmt: skip
#: Of kinds that others include.
LATER = {
    "a torn chunk", "a lost chunk", "a link gram/c/0", "a link layer/c/0", f"a link {TILE}",
    "states without precision", "states of fewer chains", "states of scalars", "states of text",
    "checksums: []", "checksums: [1, 2]", "checksums: ['x']", "a long chunk", "an empty tile",
}  # fmt: skip
