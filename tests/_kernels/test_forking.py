"""A process that is forked while another thread compiles can compile."""

import os

import pytest
from programs import finished

FORK = """
import os, signal, sys, threading, time
import bnmc
from numba.core.compiler_lock import global_compiler_lock
from llvmlite.binding import ffi

own = bnmc.Activation(lambda x: x + 1.0)
own(1.0)
locks = {"numba": global_compiler_lock, "llvm": ffi.lib._lock}
for name in sys.argv[1:]:
    held = threading.Event()

    def compile():
        with locks[name]:
            held.set()
            time.sleep(0.5)

    thread = threading.Thread(target=compile)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        other = bnmc.Activation(lambda x: x * 3.0)
        os._exit(0 if float(other(2.0)) == 6.0 else 1)
    thread.join()
    for _ in range(200):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.1)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        sys.exit(f"{name}: the child hangs")
    assert status == 0, status
    third = bnmc.Activation(lambda x: x * 5.0)
    assert third(2.0) == 10.0
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
def test_a_fork_waits_for_the_compilation_of_another_thread(tmp_path):
    done = finished("-W", "ignore", "-c", FORK, "numba", "llvm", NUMBA_CACHE_DIR=str(tmp_path))
    assert done.stdout == "done\n"
