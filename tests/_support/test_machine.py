"""The memory that a process may use: of the system, by its limits, and by its control groups."""

import os
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from worker_processes import printed_by

import bnmc
from bnmc._support import machine
from bnmc._support.machine import available_memory, memory_within

MB = 1 << 20
GB = 1 << 30


@pytest.fixture(autouse=True)
def _limits_are_read_each_time(monkeypatch):
    monkeypatch.setattr(machine, "_limited_groups", machine._limited_groups.__wrapped__)


@pytest.fixture
def root(tmp_path):
    """Return a root whose system has 8 GB, for a process of 300 MB with 200 MB of data."""
    write(tmp_path / "proc/meminfo", f"MemTotal: {16 * MB} kB\nMemAvailable: {8 * MB} kB\n")
    status = f"Name:\tpython\nVmSize:\t {300 * 1024} kB\nVmData:\t {200 * 1024} kB\n"
    write(tmp_path / "proc/self/status", status)
    return tmp_path


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def mount(root, *lines):
    write(root / "proc/self/mountinfo", "\n".join(lines) + "\n")


V2 = "29 23 0:26 {top} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = "33 29 0:29 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
V1_OTHER = "34 29 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct"


def group(folder, limit, used, inactive=0, version=2):
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    write(folder / names[0], f"{limit}\n")
    write(folder / names[1], f"{used}\n")
    write(folder / "memory.stat", f"anon 5\nfile 7\n{names[2]} {inactive}\nslab 3\n")


def test_all_memory_if_the_system_does_not_report_more(tmp_path):
    expected = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory_within(tmp_path, {}) == expected


def test_no_limit_if_nothing_is_known(tmp_path, monkeypatch):
    """The docstring promises 2**62 where the system reports no memory, as on Windows."""
    monkeypatch.delattr(os, "sysconf")
    assert memory_within(tmp_path, {}) == 2**62
    assert memory_within(tmp_path, {"VmSize": 5 * GB}) == 5 * GB


def test_limits_of_the_process(root):
    """Of its address space, and of its data; what it uses already counts."""
    assert memory_within(root, {}) == 8 * GB
    assert memory_within(root, {"VmSize": GB}) == GB - 300 * MB
    assert memory_within(root, {"VmData": GB}) == GB - 200 * MB
    assert memory_within(root, {"VmSize": GB, "VmData": GB}) == GB - 300 * MB
    assert memory_within(root, {"VmSize": 100 * MB}) == 0
    assert memory_within(root, {"VmSize": 100 * GB}) == 8 * GB


@pytest.mark.parametrize("tightest", [0, 1, 2, 3])
@pytest.mark.parametrize("version", [1, 2])
def test_the_tightest_of_nested_groups(root, version, tightest):
    """Of the process's group, those above it, and the top; the others have no or a wide limit."""
    base = root / ("sys/fs/cgroup" if version == 2 else "sys/fs/cgroup/memory")
    none = "max" if version == 2 else str(0x7FFFFFFFFFFFF000)
    folders = [base / "a/b/c", base / "a/b", base / "a", base]
    for place, folder in enumerate(folders):
        group(folder, 4 * GB if place % 2 else none, GB, version=version)
    group(folders[tightest], 3 * GB, GB + 512 * MB, 256 * MB, version=version)
    mount(root, V1_OTHER, (V2 if version == 2 else V1).format(top="/"))
    paths = "0::/a/b/c" if version == 2 else "7:cpu,cpuacct:/elsewhere\n5:memory:/a/b/c\n0::/a"
    write(root / "proc/self/cgroup", paths + "\n")
    assert memory_within(root, {}) == 3 * GB - (GB + 256 * MB)
    group(folders[tightest], 100 * MB, GB, version=version)
    assert memory_within(root, {}) == 0


def test_the_group_of_a_container_is_mounted_as_the_top(root):
    """With the path as the host sees it, or as the container sees it."""
    base = root / "sys/fs/cgroup"
    group(base, 2 * GB, GB)
    group(base / "inner", GB, 512 * MB)
    mount(root, V2.format(top="/docker/abc"))
    write(root / "proc/self/cgroup", "0::/docker/abc/inner\n")
    assert memory_within(root, {}) == 512 * MB
    write(root / "proc/self/cgroup", "0::/docker/abc\n")
    assert memory_within(root, {}) == GB
    write(root / "proc/self/cgroup", "0::/../other\n")
    assert memory_within(root, {}) == GB


def test_a_group_whose_use_is_unknown_has_its_limit(root):
    mount(root, V2.format(top="/"))
    write(root / "proc/self/cgroup", "0::/\n")
    write(root / "sys/fs/cgroup/memory.max", f"{GB}\n")
    assert memory_within(root, {}) == GB


@pytest.mark.parametrize("damage", ["", "\x00\xff", "::::\n: :", "0::", "x" * 1000])
def test_files_of_another_form_are_ignored(root, damage):
    for name in ("proc/self/cgroup", "proc/self/mountinfo", "proc/self/status"):
        write(root / name, damage)
    assert memory_within(root, {}) == 8 * GB


PROGRAM = """
import resource, sys
import bnmc
from bnmc.errors import ResultTooLargeError
chain = bnmc.Chain(100, 10)
bnmc.simulate(chain, 2, chains=2, rng=0, threads=1)
with open("/proc/self/status") as lines:
    used = next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), resource.RLIM_INFINITY))
try:
    bnmc.simulate(chain, 1000, chains=1000, rng=0, threads=1)
except ResultTooLargeError as error:
    assert error.available <= 300 << 20, error
    print(error)
assert len(bnmc.simulate(chain, 100, chains=1000, rng=0, threads=1).gram) == 1000
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux")
def test_a_process_with_a_limited_address_space_refuses_instead_of_failing():
    """It asks for 800 MB where 300 MB are left; a tenth of that fits."""
    assert "needs" in printed_by(PROGRAM, OPENBLAS_NUM_THREADS="1")


def test_this_process_may_use_some_memory():
    assert MB < available_memory() < machine.UNLIMITED


CHAIN = bnmc.Chain(30, 4, "relu")


def test_the_kernel_is_named_with_and_without_threadpoolctl():
    machine.blas_kernel.cache_clear()
    with mock.patch.object(machine, "find_spec", return_value=None):
        plain = machine.blas_kernel()
    name = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
    assert plain.startswith(name)
    machine.blas_kernel.cache_clear()
    pytest.importorskip("threadpoolctl")
    assert machine.blas_kernel().endswith(" threads")


def test_a_run_names_blas_if_its_values_depend_on_it():
    plain = bnmc.simulate(CHAIN, 1, rng=0).cpu
    for observable in ("eigenvalues", "soft_rank", bnmc.SoftRank(0.1, "other")):
        with ThreadPoolExecutor(1) as pool:
            for executor in (None, pool):
                run = bnmc.simulate(CHAIN, 1, rng=0, observables=[observable], executor=executor)
                assert run.cpu == f"{plain}; {machine.blas_kernel()}"
    for observable in ("orthogonality_gap", bnmc.Observable(np.trace)):
        assert bnmc.simulate(CHAIN, 1, rng=0, observables=[observable]).cpu == plain


def test_states_do_not_depend_on_blas(capsys):
    """OpenBLAS with kernels for another processor; only eigenvalues may change."""
    if "openblas" not in machine.blas_kernel():
        pytest.skip("OPENBLAS_CORETYPE has an effect on OpenBLAS only")
    script = """
        import hashlib, numpy as np, bnmc
        x = np.random.default_rng(0).normal(size=(7, 30))
        digest = hashlib.sha256()
        for activation, norm in (("relu", "batch"), ("linear", "none")):
            chain = bnmc.Chain(7, 30, activation, norm=norm)
            wide = bnmc.Chain(40, 30, activation, norm=norm)
            for one, start in ((wide, bnmc.FirstLayer(x)), (chain, x), (chain, "collinear")):
                run = bnmc.simulate(one, 2, rng=0, initial=start, observables=["scaled_gram"])
                digest.update(run["scaled_gram"].tobytes())
        print(digest.hexdigest())
    """
    exec(textwrap.dedent(script), {})
    # This process has the kernels for its own processor, which is newer.
    assert printed_by(script, OPENBLAS_CORETYPE="Prescott") == capsys.readouterr().out


def test_one_thread_of_blas():
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def threads():
        libraries = threadpoolctl.threadpool_info()
        return {each["num_threads"] for each in libraries if each["user_api"] == "blas"}

    def leave(context):
        context.__exit__(None, None, None)

    before = threads()
    with threadpoolctl.threadpool_limits(3, user_api="blas"):
        with machine.one_blas_thread():
            assert threads() == {1}
        assert threads() == {3}
    assert threads() == before
    # Two threads leave in the order in which they came.
    first, second = machine.one_blas_thread(), machine.one_blas_thread()
    first.__enter__()
    second.__enter__()
    leave(first)
    assert threads() == {1}
    leave(second)
    assert threads() == before
    # The first may come in a worker, after this thread has set limits, and the last leave in one.
    with threadpoolctl.threadpool_limits(3, user_api="blas"), ThreadPoolExecutor(1) as pool:
        first, second, third = (machine.one_blas_thread() for _ in range(3))
        pool.submit(first.__enter__).result()
        assert threads() == {1}
        second.__enter__()
        leave(second)
        assert threads() == {1}
        pool.submit(leave, first).result()
        assert threads() == {3}
        third.__enter__()
        assert threads() == {1}
        pool.submit(leave, third).result()
        assert threads() == {3}
    assert threads() == before
    with mock.patch.object(machine, "find_spec", return_value=None), machine.one_blas_thread():
        assert threads() == before
