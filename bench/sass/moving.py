"""Instructions that move words between registers and memory."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from bench.sass.program import Instruction
from bench.sass.state import (
    CONSTANT,
    GLOBAL_BEGIN,
    LANES,
    MASK32,
    NOWHERE,
    Action,
    Warp,
    integer_of,
    long_of,
    put,
    target_of,
    words_of,
)


def _move(instruction: Instruction) -> Action:
    row, count = (
        target_of(instruction.operands[0]),
        2 if "64" in instruction.flags or instruction.name == "CS2R" else 1,
    )
    if instruction.name == "CS2R" and "32" in instruction.flags:
        count = 1
    if instruction.operands[1].startswith("SR_"):
        return _special(instruction)
    if (
        instruction.name == "LDC"
        and (match := CONSTANT.fullmatch(instruction.operands[1]))
        and match.group(2)
    ):
        raise NotImplementedError(instruction.text)
    words = words_of(instruction.operands[1], count)

    def act(warp: Warp, mask: np.ndarray) -> None:
        for i, word in enumerate(words(warp)):
            put(warp, row + i if row != NOWHERE else row, word, mask)

    return act


def _special(instruction: Instruction) -> Action:
    row, name = target_of(instruction.operands[0]), instruction.operands[1]

    def act(warp: Warp, mask: np.ndarray) -> None:
        value = np.zeros(LANES, np.uint32)
        if name == "SR_TID.X":
            value = np.arange(LANES, dtype=np.uint32) + np.uint32(LANES * warp.number)
        elif name == "SR_LANEID":
            value = np.arange(LANES, dtype=np.uint32)
        elif name == "SR_CTAID.X":
            value[:] = warp.memory.block
        elif name != "SR_CgaCtaId":
            raise NotImplementedError(name)
        put(warp, row, value, mask)

    return act


def _address(operand: str) -> Callable[[Warp], np.ndarray]:
    """The address in square brackets: registers and numbers, added."""
    inner = operand[operand.rindex("[") + 1 : -1]
    long, fixed = ".64" in inner, 0
    parts: list[tuple[Callable[[Warp], np.ndarray], int]] = []
    for sign, part in re.findall(r"([+-]?)([^+-]+)", inner):
        register = part.replace(".64", "").replace(".U32", "")
        scale = 1
        if match := re.fullmatch(r"(\w+)\.X(\d+)", register):
            register, scale = match.group(1), int(match.group(2))
        if register[0] in "RU":
            long_part = ".64" in part
            parts.append((long_of(register) if long_part else integer_of(register), scale))
        else:
            fixed += int(sign + register, 16)

    def value(warp: Warp) -> np.ndarray:
        total = np.full(LANES, fixed).astype(np.int64).view(np.uint64)
        for part, scale in parts:
            total = total + part(warp).astype(np.uint64) * np.uint64(scale)
        return total if long else total & MASK32

    return value


def _move_memory(instruction: Instruction) -> Action:
    """LDS, STS, LDG, STG: words between registers and memory."""
    count = 4 if "128" in instruction.flags else 2 if "64" in instruction.flags else 1
    if {"U8", "S8", "U16", "S16"} & set(instruction.flags):
        raise NotImplementedError(instruction.text)
    loads, shared = instruction.name[:2] == "LD", instruction.name[-1] == "S"
    place, register = instruction.operands[::-1] if loads else instruction.operands
    address = _address(place)
    words = words_of(register, count)
    row = target_of(register)

    def act(warp: Warp, mask: np.ndarray) -> None:
        memory = warp.memory.shared if shared else warp.memory.outside
        begin = np.uint64(0 if shared else GLOBAL_BEGIN)
        index = ((address(warp) - begin) >> np.uint64(2)).astype(np.int64)
        if (address(warp)[mask] % np.uint64(4 * count)).any():
            raise RuntimeError(f"misaligned: {instruction.text}")
        if mask.any() and not (0 <= index[mask].min() <= index[mask].max() < memory.size):
            raise IndexError(instruction.text)
        for i in range(count):
            if loads:
                value = np.zeros(LANES, np.uint32)
                value[mask] = memory[index[mask] + i]
                put(warp, row + i if row != NOWHERE else row, value, mask)
            else:
                memory[index[mask] + i] = words(warp)[i][mask]

    return act


#: What moves words, by the name of the instruction.
ACTIONS: dict[str, Callable[[Instruction], Action]] = {
    **dict.fromkeys(("MOV", "CS2R", "S2R", "S2UR", "R2UR", "LDC", "ULDC"), _move),
    **dict.fromkeys(("LDS", "STS", "LDG", "STG"), _move_memory),
}  # fmt: skip
