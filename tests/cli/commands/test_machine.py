"""``bnmc info``: versions, processors and the kernel cache."""

from pathlib import Path

from numba.core import config

import bnmc
from bnmc._kernels import kernel_cache
from bnmc._kernels.gpu import device


def test_info(printed, document_of):
    document = document_of("info")
    assert document["bnmc"] == bnmc.__version__
    assert document["processors"] >= 1
    assert document["kernels of the wheel"] == "none"  # the tests run in the source tree
    assert "numba " in printed("info")


def test_info_counts_the_kernels_in_the_cache(document_of, tmp_path, monkeypatch):
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    folder = kernel_cache.usable_folder()
    for number in range(2):
        (folder / f"f-{number}.nbc").write_bytes(bytes(300_000))
    document = document_of("info")
    assert Path(document["kernel cache"]) == folder
    assert (document["kernels in the cache"], document["megabytes in the cache"]) == (2, 0.6)


def test_info_says_why_there_is_no_gpu(document_of, monkeypatch):
    monkeypatch.setattr(device, "why_not", lambda: "no CUDA driver: Error at driver init: text")
    assert document_of("info")["gpu"] == "none (no CUDA driver)"


def test_info_says_why_no_folder_is_used(document_of, tmp_path, monkeypatch):
    """A folder that everybody can write to is not trusted, which is no matter of permissions."""
    (tmp_path / "all").mkdir()
    (tmp_path / "all").chmod(0o777)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "all"))
    monkeypatch.setattr(kernel_cache, "BESIDE", None)
    monkeypatch.setattr(kernel_cache, "_user_caches", lambda: tmp_path / "file")
    cache = document_of("info")["kernel cache"]
    inner = f"bnmc-kernels-{kernel_cache.version()}"
    assert cache.startswith(
        f"none: {tmp_path / 'all' / inner}: not trusted: every user can replace"
    )
    assert f"{tmp_path / 'file' / inner}: cannot be written to (" in cache
