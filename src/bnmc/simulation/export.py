"""Writing a run to a file: NumPy's .npz, netCDF-4 or Zarr."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import finite_array, instance
from bnmc._support.extras import require_extras
from bnmc._support.files import as_path, replacing, require_writable
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.simulation.trajectory import Trajectory

#: Suffixes of the formats.
OUTPUT_FORMATS = (".npz", ".nc", ".zarr")


def write_run(
    run: Trajectory,
    path: str | os.PathLike[str],
    *,
    attributes: Mapping[str, Any] | None = None,
    star: NDArray[np.float64] | None = None,
    force: bool = False,
) -> None:
    """Write all recorded layers of a run to a file.

    Parameters
    ----------
    run : Trajectory
    path : path
        The suffix chooses the format:

        - ``.npz``: arrays by name, ``layer``, and ``attributes``, a string of JSON;
        - ``.nc`` (netCDF-4) and ``.zarr``, with the extra ``xarray``.

        If the run was reduced, ``name_mean`` and ``name_variance`` replace ``name``.
    attributes : mapping, optional
        Numbers and strings to write beside `Trajectory.attributes`.
    star : (batch, batch) ndarray, optional
        Gram matrix from which the distances are measured, written as ``star``.
    force : bool, default False
        Whether to replace an existing file or Zarr store.  The former one is at `path` until the
        new one is complete and takes its place, in one step on Linux and macOS.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, or `path` exists and must not be replaced.
    MissingExtraError
        If the format needs an extra that is not installed.

    Examples
    --------
    >>> import json
    >>> import numpy as np
    >>> from bnmc.simulation.export import write_run
    >>> import tempfile
    >>> from bnmc.chain.chain import Chain
    >>> from bnmc.simulation.run import simulate
    >>> run = simulate(Chain(100, 3), 2, rng=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_run(run, f"{folder}/run.npz")
    ...     with np.load(f"{folder}/run.npz") as stored:
    ...         print(stored["gram"].shape, json.loads(str(stored["attributes"]))["width"])
    (1, 3, 3, 3) 100
    """
    instance("run", run, Trajectory, "a Trajectory")
    instance("force", force, bool, "True or False")
    if attributes is not None and not isinstance(attributes, Mapping):
        raise ArgumentTypeError("attributes", attributes, "a mapping of names")
    if star is not None:
        star = finite_array("star", star, shape=(run.network.batch,) * 2).astype(np.float64)
    path = as_path("output", path)
    require_writable("output", path, OUTPUT_FORMATS)
    require_free("output", path, force=force)
    require_extras(extras_of(path))
    facts = {**run.attributes(), **(attributes or {})}
    write = _write_npz if path.suffix.lower() == ".npz" else _write_dataset
    try:
        with replacing(path, exclusive=not force) as temporary:
            write(run, temporary, facts, star)
    except FileExistsError as error:  # another thread or process wrote it meanwhile
        raise _occupied("output", path) from error


def extras_of(path: Path) -> dict[str, str]:
    """Return the optional packages that the format of a file needs, with their extra.

    Parameters
    ----------
    path : Path
        A file of a run; the suffix is the format.

    Returns
    -------
    dict of str to str
    """
    needed = {".nc": ("xarray", "h5netcdf", "h5py"), ".zarr": ("xarray", "zarr")}
    return dict.fromkeys(needed.get(path.suffix.lower(), ()), "xarray")


def require_free(name: str, path: Path, *, force: bool) -> None:
    """Raise an error if a path exists, or with `force` if a file must not replace it.

    With `force`, a file may be replaced, and a Zarr store by another one. Other folders stay.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    path : Path
    force : bool

    Raises
    ------
    ArgumentError
    """
    if not os.path.lexists(path):
        return
    if not force:
        raise _occupied(name, path)
    is_store = any((path / mark).is_file() for mark in ("zarr.json", ".zgroup"))
    if path.is_dir() and not (path.suffix.lower() == ".zarr" and is_store):
        raise ArgumentError(name, str(path), "a file or a Zarr store, to be replaced")


def _occupied(name: str, path: Path) -> ArgumentError:
    return ArgumentError(name, str(path), "a path that does not exist", "--force replaces it")


def _write_npz(
    run: Trajectory, path: Path, facts: dict[str, Any], star: NDArray[np.float64] | None
) -> None:
    arrays: dict[str, Any] = {"layer": run.layers, **run.observables}
    for name, moments in run.moments.items():
        arrays |= {f"{name}_mean": moments.mean, f"{name}_variance": moments.variance}
    if star is not None:
        arrays["star"] = star
    axes = {name: list(axes) for name, axes in run.dims.items()}
    arrays["attributes"] = np.array(json.dumps({**facts, "axes": axes}))
    with path.open("xb") as file:
        np.savez(file, **arrays)


def _write_dataset(
    run: Trajectory, path: Path, facts: dict[str, Any], star: NDArray[np.float64] | None
) -> None:
    dataset = run.to_xarray().assign_attrs(facts)
    if star is not None:
        dataset = dataset.assign(star=(("sample_i", "sample_j"), star))
    if path.suffix.lower() == ".nc":
        dataset.to_netcdf(path, engine="h5netcdf")
    else:
        dataset.to_zarr(path, mode="w-", consolidated=False)
