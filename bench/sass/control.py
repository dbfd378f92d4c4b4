"""Instructions that tell threads where to go on, and where to wait."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from bench.sass.program import Instruction, Program
from bench.sass.state import Action, Warp, integer_of, is_predicate, predicate_of


def _label(program: Program, instruction: Instruction) -> int:
    match = re.search(r"`\(([.$][\w$.]+)\)", instruction.text)
    assert match, instruction.text
    return program.labels[match.group(1)]


def _branch(program: Program, instruction: Instruction) -> Action:
    target = _label(program, instruction)
    if "DIV" in instruction.flags:

        def if_parted(warp: Warp, mask: np.ndarray) -> None:
            if not (mask == warp.live).all():
                raise RuntimeError("threads have parted where they should be together")

        return if_parted
    also = predicate_of(instruction.operands[0]) if is_predicate(instruction.operands[0]) else None

    def act(warp: Warp, mask: np.ndarray) -> None:
        warp.at[mask if also is None else mask & also(warp)] = target

    return act


def _call(program: Program, instruction: Instruction) -> Action:
    target = _label(program, instruction)

    def act(warp: Warp, mask: np.ndarray) -> None:
        warp.at[mask] = target

    return act


def _return(program: Program, instruction: Instruction) -> Action:
    address = integer_of(instruction.operands[0].split()[0])

    def act(warp: Warp, mask: np.ndarray) -> None:
        warp.at[mask] = address(warp)[mask]

    return act


def _promise(program: Program, instruction: Instruction) -> Action:
    """BSSY: the threads that are here will meet at the BSYNC of the same name."""
    place = instruction.operands[0]

    def act(warp: Warp, mask: np.ndarray) -> None:
        warp.meetings[place] = mask.copy()

    return act


def _wait(program: Program, instruction: Instruction) -> Action:
    what = {
        "BSYNC": instruction.operands[0] if instruction.operands else "",
        "WARPSYNC": "warp",
        "BAR": "block",
    }
    place = what[instruction.name]

    def act(warp: Warp, mask: np.ndarray) -> None:
        warp.waits[mask] = place

    return act


def _leave(program: Program, instruction: Instruction) -> Action:
    def act(warp: Warp, mask: np.ndarray) -> None:
        warp.live[mask] = False

    return act


def _nothing(program: Program, instruction: Instruction) -> Action:
    return lambda warp, mask: None


#: Where threads go, by the name of the instruction.
ACTIONS: dict[str, Callable[[Program, Instruction], Action]] = {
    "BRA": _branch, "CALL": _call, "RET": _return, "BSSY": _promise, "BSYNC": _wait,
    "WARPSYNC": _wait, "BAR": _wait, "EXIT": _leave, "NOP": _nothing, "YIELD": _nothing,
}  # fmt: skip
