"""A block of threads that executes a program."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.sass import arithmetic, control, moving
from bench.sass.program import STEP, Instruction, Program
from bench.sass.state import LANES, Action, Memory, Warp, predicate_of

_ACTIONS = {**arithmetic.ACTIONS, **moving.ACTIONS}


def run(program: Program, memory: Memory, threads: int) -> np.ndarray:
    """Execute a block; return how many times each instruction was issued, summed over warps."""
    actions = [_compiled(program, instruction) for instruction in program.instructions]
    guards = [predicate_of(instruction.guard) for instruction in program.instructions]
    issued = np.zeros(len(actions), np.int64)
    warps = [Warp(number, memory) for number in range(threads // LANES)]
    while any(warp.live.any() for warp in warps):
        for warp in warps:
            _run_to_barrier(warp, actions, guards, issued)
        for warp in warps:
            if not ((warp.waits == "block") | ~warp.live).all():
                raise RuntimeError("threads wait for each other for ever")
            warp.waits[:] = ""
    return issued


def _run_to_barrier(
    warp: Warp, actions: list[Action], guards: list[Any], issued: np.ndarray
) -> None:
    while True:
        ready = warp.live & (warp.waits == "")
        if not ready.any():
            if not _meet(warp):
                return
            continue
        address = warp.at[ready].min()
        mask = ready & (warp.at == address)
        while True:
            # One group of threads runs on until its threads part, meet or end.
            index = address // STEP
            issued[index] += 1
            chosen = mask & guards[index](warp)
            warp.at[mask] = address + STEP
            actions[index](warp, chosen)
            address = warp.at[mask][0]
            if (warp.at[mask] != address).any() or (warp.waits[mask] != "").any():
                break
            if not warp.live[mask].all() or (warp.live & ~mask).any():
                break


def _meet(warp: Warp) -> bool:
    """Let threads go on that have all come where they wait for each other."""
    for what in set(warp.waits[warp.live]) - {"block"}:
        there = warp.waits == what
        wanted = warp.live if what == "warp" else warp.meetings[what] & warp.live
        if (there | ~wanted).all():
            warp.waits[there] = ""
            return True
    return False


def _compiled(program: Program, instruction: Instruction) -> Action:
    """Return what an instruction does."""
    name = instruction.name
    if name in control.ACTIONS:
        return control.ACTIONS[name](program, instruction)
    # Those of a warp do what those of a thread do.
    if name[0] == "U" and name[1:] in _ACTIONS:
        name = name[1:]
    if name not in _ACTIONS:
        text = instruction.text

        def unknown(warp: Warp, mask: np.ndarray) -> None:
            if mask.any():
                raise NotImplementedError(text)

        return unknown
    return _ACTIONS[name](instruction)
