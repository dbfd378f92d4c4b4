"""Results written to files: .npz, netCDF and Zarr."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import finite_array
from bnmc._support.extras import import_extra
from bnmc._support.files import as_path, replacing, require_free, require_writable
from bnmc.errors import ArgumentTypeError

if TYPE_CHECKING:
    from bnmc.simulation.trajectory import Trajectory

__all__ = ["OUTPUT_FORMATS", "require_extras", "write_run"]
OUTPUT_FORMATS = (".npz", ".nc", ".zarr")


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
    from bnmc.simulation.trajectory import Trajectory

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
