"""Everything besides its arguments on which the bits of a result depend, in one description."""

from __future__ import annotations

from bnmc._kernels.processor import host_cpu
from bnmc._support.machine import blas_kernel
from bnmc._support.version import __version__, versions


def environment(*, blas: bool) -> dict[str, str]:
    """Return the facts that the identity of each kept result contains, by name.

    Parameters
    ----------
    blas : bool
        Whether the result depends on the BLAS of NumPy.

    Examples
    --------
    >>> from bnmc._support.environment import environment
    >>> list(environment(blas=True))
    ['bnmc_version', 'cpu', 'versions', 'blas']
    """
    facts = {"bnmc_version": __version__, "cpu": host_cpu(), "versions": versions()}
    if blas:
        facts["blas"] = blas_kernel()
    return facts


def with_blas(cpu: str, *, blas: bool) -> str:
    """Return `cpu` of a result: the processor, and the BLAS if its bits depend on that."""
    return f"{cpu}; {blas_kernel()}" if blas else cpu
