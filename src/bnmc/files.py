"""Reading a batch of inputs from a file, and writing runs to files.

Nothing here ever unpickles: a file can be wrong, but it cannot run code.  Output appears under its
name when it is complete, or not at all.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnmc._extras import import_extra
from bnmc._validate import choice, finite_array, integer
from bnmc.errors import ArgumentError, ArgumentTypeError, UnknownNameError

if TYPE_CHECKING:
    from bnmc.trajectory import Trajectory

__all__ = [
    "INPUT_FORMATS",
    "OUTPUT_FORMATS",
    "digits",
    "read_input",
    "replacing",
    "require_extras",
    "require_free",
    "require_writable",
    "write_run",
]

INPUT_FORMATS = (".npy", ".npz", ".csv")
OUTPUT_FORMATS = (".npz", ".nc", ".zarr")

#: Of the members of an archive that are read: a few compressed bytes may claim to be any number.
MOST_BYTES = 1 << 33


def read_input(
    path: str | os.PathLike[str], *, array: str | None = None, samples_first: bool = False
) -> NDArray[np.float64]:
    """Read a batch of inputs.

    Parameters
    ----------
    path : path
        An existing ``.npy``, ``.npz`` or ``.csv`` file with one row a feature and one column a
        sample.  A line of names at the top of a .csv is skipped, as are lines that begin with #.
    array : str, optional
        Which array of an .npz; not needed if it has one.
    samples_first : bool, default False
        Whether the file has one row a sample instead.

    Returns
    -------
    (features, samples) ndarray of float64

    Raises
    ------
    OSError
        If the file cannot be opened.
    ArgumentError, ArgumentTypeError
        If it is damaged, or holds no matrix of finite real numbers.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/x.npy", [[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]])
    ...     read_input(f"{folder}/x.npy", samples_first=True).shape
    (2, 3)
    """
    values = _read("input", as_path("input", path), array, INPUT_FORMATS)
    layout = ("samples", "features") if samples_first else ("features", "samples")
    matrix = finite_array("input", values, shape=layout).astype(np.float64)
    return np.ascontiguousarray(matrix.T if samples_first else matrix)


def read_states(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Read the array of a .npy file, or of an .npz file that has one.

    Parameters
    ----------
    path : path

    Returns
    -------
    ndarray
        Of any shape and dtype; nothing is unpickled.

    Raises
    ------
    OSError
        If the file cannot be opened.
    ArgumentError
        If it is damaged or of another kind.
    """
    return _read("samples", as_path("samples", path), None, (".npy", ".npz"))


def as_path(name: str, path: object) -> Path:
    """Return what a user passes as a path, or raise."""
    try:
        found = Path(path)  # type: ignore[arg-type]
        if "\0" in os.fspath(found):
            raise ValueError
    except (TypeError, ValueError):
        raise ArgumentTypeError(name, path, "a path") from None
    return found


def _read(name: str, path: Path, array: str | None, formats: Collection[str]) -> NDArray[Any]:
    """Read an array, or say what is wrong with the file that is the argument `name`."""
    suffix = choice(f"{name} (by its suffix)", path.suffix.lower(), formats)
    if array is not None and suffix != ".npz":
        raise ArgumentError("array", array, "nothing, as only an .npz file has named arrays")
    if path.exists() and not path.is_file():
        raise ArgumentError(name, str(path), "a regular file")
    with path.open("rb"):
        pass  # an error of the operating system is reported as such, not as damage
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _READERS[suffix](path, array)
    except ArgumentError:
        raise
    except Exception as error:  # readers raise a dozen types on files that are damaged on purpose
        reason = str(error) or type(error).__name__
        raise ArgumentError(name, str(path), f"a sound {suffix} file", reason) from error


def digits(count: int) -> NDArray[np.float64]:
    """Return handwritten digits that scikit-learn brings along; needs the extra ``demo``.

    Parameters
    ----------
    count : int
        How many images: the first 0, 1, …, 9 of the set, the second of each, and so on.  In 1
        to 1740, so that each round is complete.

    Returns
    -------
    (64, count) ndarray of float64
        Grey values of 8 × 8 pixels in [0, 1].

    Examples
    --------
    >>> digits(10).shape
    (64, 10)
    """
    bundled = import_extra("sklearn.datasets", "demo").load_digits()
    images = [bundled.data[bundled.target == digit] for digit in range(10)]
    rounds = min(map(len, images))
    count = integer("batch", count, low=1, high=10 * rounds)
    ordered = np.stack([one[:rounds] for one in images], axis=1).reshape(10 * rounds, -1)
    return np.ascontiguousarray(ordered[:count].T / 16.0)


def require_writable(name: str, path: Path, formats: Collection[str]) -> None:
    """Refuse a destination that cannot be written to, before the work whose result it is to hold.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    path : Path
    formats : collection of str
        Allowed suffixes, with the dot.

    Raises
    ------
    ArgumentError
        If the suffix is not allowed, the folder does not exist, or no file can be made there.
    """
    choice(f"{name} (by its suffix)", path.suffix.lower(), formats)
    if not path.parent.is_dir():
        raise ArgumentError(name, str(path), "a path in an existing folder")
    temporary = _beside(path)
    try:
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        allowed = "a path in a folder that you may write to"
        raise ArgumentError(name, str(path), allowed, error.strerror or str(error)) from error


def _beside(path: Path) -> Path:
    """Return where a file is written before it is moved to its path."""
    return path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")


def require_free(name: str, path: Path, *, force: bool) -> None:
    """Refuse a destination that exists, or with `force` one that is not what would replace it.

    Raises
    ------
    ArgumentError
    """
    if not os.path.lexists(path):
        return
    if not force:
        raise ArgumentError(name, str(path), "a path that does not exist", "--force replaces it")
    is_store = any((path / mark).is_file() for mark in ("zarr.json", ".zgroup"))
    if path.is_dir() and not (path.suffix.lower() == ".zarr" and is_store):
        raise ArgumentError(name, str(path), "a file or a Zarr store, to be replaced")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder, which becomes `path` if no error is raised.

    What was at `path` stays there until then.  The block makes a file or a folder of the
    temporary path.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "answer.txt")
    ...     with replacing(path) as temporary:
    ...         written = temporary.write_text("42")
    ...     path.read_text()
    '42'
    """
    temporary = _beside(path)
    former = path.with_name(f".{path.stem}.{os.getpid()}.former{path.suffix}")
    try:
        yield temporary
        if path.is_dir() and not path.is_symlink():  # a folder cannot be replaced in one step
            path.rename(former)
        temporary.replace(path)
    except OSError as error:
        if error.filename is not None and Path(os.fsdecode(error.filename)) == temporary:
            error.filename = str(path)  # which is the name that the user knows
        raise
    finally:
        for leftover in (temporary, former):
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink(missing_ok=True)


def write_run(
    run: Trajectory,
    path: str | os.PathLike[str],
    *,
    attributes: Mapping[str, Any] | None = None,
    star: NDArray[np.float64] | None = None,
    force: bool = False,
) -> None:
    """Write a run to a file, all recorded layers of it.

    Parameters
    ----------
    run : Trajectory
    path : path
        ``.npz`` (arrays by name, ``layer``, and ``attributes``, a string of JSON), ``.nc``
        (netCDF-4) or ``.zarr``; the latter two need the extra ``xarray``.  A reduced run has
        ``name_mean`` and ``name_variance`` in place of ``name``.
    attributes : mapping, optional
        What to say besides `Trajectory.attributes`: numbers and strings.
    star : (batch, batch) ndarray, optional
        The Gram matrix that distances are from, written as ``star``.
    force : bool, default False
        Whether to replace what is there.

    Raises
    ------
    ArgumentError
        If the suffix is another one, the folder does not exist or the path does.
    MissingExtraError

    Examples
    --------
    >>> import bnmc, numpy as np, tempfile
    >>> run = bnmc.simulate(bnmc.Chain(100, 3), 2, rng=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_run(run, f"{folder}/run.npz")
    ...     with np.load(f"{folder}/run.npz") as stored:
    ...         print(stored["gram"].shape, json.loads(str(stored["attributes"]))["width"])
    (1, 3, 3, 3) 100
    """
    from bnmc.trajectory import Trajectory

    if not isinstance(run, Trajectory):
        raise ArgumentTypeError("run", run, "a Trajectory")
    if attributes is not None and not isinstance(attributes, Mapping):
        raise ArgumentTypeError("attributes", attributes, "a mapping of names")
    if star is not None:
        star = finite_array("star", star, shape=(run.chain.batch,) * 2).astype(np.float64)
    path = as_path("output", path)
    require_writable("output", path, OUTPUT_FORMATS)
    require_free("output", path, force=force)
    require_extras(path)
    said = {**run.attributes(), **(attributes or {})}
    write = {".npz": _write_npz, ".nc": _write_netcdf, ".zarr": _write_zarr}[path.suffix.lower()]
    with replacing(path) as temporary:
        write(run, temporary, said, star)


def require_extras(path: Path) -> None:
    """Import what writing `path` needs, or say which extra brings it.

    Raises
    ------
    MissingExtraError
    """
    needed = {".nc": ("xarray", "h5netcdf", "h5py"), ".zarr": ("xarray", "zarr")}
    for module in needed.get(path.suffix.lower(), ()):
        import_extra(module, "xarray")


def _read_npy(path: Path, array: str | None) -> NDArray[Any]:
    with path.open("rb") as file:
        if file.read(6) != b"\x93NUMPY":  # NumPy would try other formats, and leave the file open
            raise ValueError("it does not begin as .npy files do")
    # A map, unlike a read, compares the shape in the header with the length of the file first.
    return np.array(np.load(path, mmap_mode="r", allow_pickle=False))


def _read_npz(path: Path, array: str | None) -> NDArray[Any]:
    with path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise ValueError("it holds a single array, as .npy files do")
        names = archive.files
        if array is None and len(names) != 1:
            listed = ", ".join(names) or "none"
            raise ArgumentError("array", array, f"the name of one of its arrays: {listed}")
        name = names[0] if array is None else array
        if name not in names:
            raise UnknownNameError("array", name, names)
        for member in archive.zip.infolist():
            if member.filename in (name, f"{name}.npy") and member.file_size > MOST_BYTES:
                raise ValueError(f"the array {name} unpacks to {member.file_size} bytes")
        values: Any = archive[name]
        if not isinstance(values, np.ndarray):  # another file in the archive
            raise ValueError(f"{name} is no array")
        return values


def _read_csv(path: Path, array: str | None) -> NDArray[Any]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        content = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if content and _is_header(content[0]):
        del content[0]
    if not content:
        raise ValueError("it has no numbers")
    return np.loadtxt(content, delimiter=",", ndmin=2, dtype=np.float64)


def _is_header(line: str) -> bool:
    """Whether no field of a line is a number."""
    fields = next(csv.reader([line]))
    for field in fields:
        with contextlib.suppress(ValueError):
            float(field)
            return False
    return True


_READERS = {".npy": _read_npy, ".npz": _read_npz, ".csv": _read_csv}


def _write_npz(
    run: Trajectory, path: Path, said: dict[str, Any], star: NDArray[np.float64] | None
) -> None:
    arrays: dict[str, Any] = {"layer": run.layers, **run.observables}
    for name, moments in run.moments.items():
        arrays |= {f"{name}_mean": moments.mean, f"{name}_variance": moments.variance}
    if star is not None:
        arrays["star"] = star
    axes = {name: list(axes) for name, axes in run.dims.items()}
    arrays["attributes"] = np.array(json.dumps({**said, "axes": axes}))
    with path.open("xb") as file:
        np.savez(file, **arrays)


def _write_netcdf(
    run: Trajectory, path: Path, said: dict[str, Any], star: NDArray[np.float64] | None
) -> None:
    _dataset(run, said, star).to_netcdf(path, engine="h5netcdf")


def _write_zarr(
    run: Trajectory, path: Path, said: dict[str, Any], star: NDArray[np.float64] | None
) -> None:
    _dataset(run, said, star).to_zarr(path, mode="w-", consolidated=False)


def _dataset(run: Trajectory, said: dict[str, Any], star: NDArray[np.float64] | None) -> Any:
    dataset = run.to_xarray().assign_attrs(said)
    return dataset if star is None else dataset.assign(star=(("sample_i", "sample_j"), star))
