"""Numba's CUDA simulator, with faster calls of device functions and faster barriers.

The simulator gives each thread of a block a thread of Python.  By itself it replaces the module
`cuda` in the globals of a device function at each call, and polls all threads at each barrier.
Both take longer than the kernels of this package.

Coverage doubles the time of a kernel, so it sees few threads of each block.
"""

import os
import sys
import threading
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np

#: Whether coverage sees all threads of a block, for which mutants.py asks by this variable.
EVERY_THREAD = "BNMC_TEST_SECONDS" in os.environ


@contextmanager
def fast_simulator():
    """Replace the calls and the barriers of the simulator."""
    from numba.cuda.simulator.kernel import BlockManager, FakeCUDAKernel
    from numba.cuda.simulator.kernelapi import FakeCUDAShared

    with (
        mock.patch.object(FakeCUDAShared, "__init__", filled(FakeCUDAShared.__init__)),
        mock.patch.object(BlockManager, "run", run_block),
        mock.patch.object(FakeCUDAKernel, "__call__", Calls(FakeCUDAKernel.__call__).method()),
    ):
        yield


def filled(original):
    """Fill the shared memory of a launch with NaN, which is −1 as an integer.

    On a GPU shared memory has any content at first; in the simulator it has zeros.
    """

    def begin(shared, size):
        original(shared, size)
        shared._dynshared[:] = -1

    return begin


class Calls:
    """Calls of kernels and device functions: each launch replaces `cuda` once per function."""

    def __init__(self, original):
        self.original = original
        self.seen = set()
        self.stack = None

    def method(self):
        from numba.cuda.simulator.kernel import _get_kernel_context, swapped_cuda_module

        def call(kernel, *arguments):
            context = _get_kernel_context()
            if context is None:
                if kernel._device:
                    return self.original(kernel, *arguments)
                with ExitStack() as self.stack:
                    self.seen = set()
                    return self.original(kernel, *arguments)
            function = kernel.fn
            if id(function) not in self.seen:
                self.seen.add(id(function))
                self.stack.enter_context(swapped_cuda_module(function, context))
            return function(*arguments)

        return call


@contextmanager
def untraced_threads():
    """Let threads begin without coverage, whose beginning takes longer than a short kernel.

    If another block does so at the same time, that one ends it.
    """
    tracer = threading.gettrace()
    threading.settrace(None)
    try:
        yield
    finally:
        if tracer is not None:
            threading.settrace(tracer)


def run_block(manager, grid_point, *arguments):
    """Run a block, of which coverage sees the first two threads and the last one."""
    from numba.cuda.simulator.kernel import BlockThread

    points = list(np.ndindex(*manager._block_dim))
    turns = Turns(len(points))
    tracer = threading.gettrace()

    def body(number):
        if EVERY_THREAD or number in (0, 1, len(points) - 1):
            sys.settrace(tracer)
        failed = True
        try:
            turns.wait(number)
            manager._f(*arguments)
            failed = False
        finally:
            turns.end(failed)

    threads = []
    with untraced_threads():
        for number, point in enumerate(points):
            thread = BlockThread(
                lambda number=number: body(number), manager, grid_point, point, False
            )
            thread.syncthreads = lambda number=number: turns.barrier(number)
            threads.append(thread)
            thread.start()
        turns.pass_on()
        for thread in threads:
            thread.join()
    # Threads that the failure of another one ended are not the cause.
    failures = [thread.exception for thread in threads if thread.exception]
    for error, trace in sorted(
        failures, key=lambda failure: type(failure[0]) is threading.BrokenBarrierError
    ):
        raise error.with_traceback(trace)


class Turns:
    """Runs the threads of a block one at a time, each from one barrier to the next.

    Each barrier reverses the order of the threads.  Suppose that one thread reads what another one
    writes, and no barrier separates the two: one order or the other then runs the read first, so
    kernels that lack a barrier fail in every run.
    """

    def __init__(self, count):
        self.locks = [threading.Lock() for _ in range(count)]
        for lock in self.locks:
            lock.acquire()
        self.todo = list(range(count))  # threads that have yet to run to the next barrier, reversed
        self.arrived = []  # threads at the barrier
        self.ended = self.failed = False

    def wait(self, number):
        """Wait for the turn of a thread."""
        self.locks[number].acquire()
        if self.failed:
            raise threading.BrokenBarrierError

    def barrier(self, number):
        """Wait at a barrier for all other threads."""
        self.arrived.append(number)
        self.pass_on()
        self.wait(number)

    def end(self, failed):
        """End a thread."""
        self.ended = True
        self.failed |= failed
        self.pass_on()

    def pass_on(self):
        """Let the next thread run."""
        if not self.todo:
            # If some threads wait for others that ended, a GPU may wait for ever.
            self.failed |= bool(self.ended and self.arrived)
            self.todo, self.arrived = self.arrived, []
        if self.todo:
            self.locks[self.todo.pop()].release()
