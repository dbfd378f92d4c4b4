"""The state of warps and of their memory, and the operands of instructions in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

LANES = 32
#: Rows of the registers: 0-255 of a thread, 256-319 of a warp, then one that nobody reads.
RZ, UNIFORM, NOWHERE = 255, 256, 320
URZ = UNIFORM + 63
#: Rows of the predicates: 0-7 of a thread (7 is true), 8-15 of a warp, then one that nobody reads.
TRUE, NO_PREDICATE = 7, 16
#: Where dynamic shared memory begins in its window, and global memory in its address space.
SHARED_BEGIN, GLOBAL_BEGIN = 0x400, 0x10000000

MASK32 = np.uint64(0xFFFFFFFF)

Action = Callable[["Warp", np.ndarray], None]


@dataclass
class Memory:
    """What the threads of a block share."""

    shared: np.ndarray  # uint32
    outside: np.ndarray  # uint32, global memory
    constants: np.ndarray  # uint32, bank 0: the arguments are in it
    block: int = 0


@dataclass
class Warp:
    """The state of 32 threads."""

    number: int
    memory: Memory
    registers: np.ndarray = field(default_factory=lambda: np.zeros((NOWHERE + 2, LANES), np.uint32))
    predicates: np.ndarray = field(
        default_factory=lambda: np.zeros((NO_PREDICATE + 1, LANES), np.bool_)
    )
    at: np.ndarray = field(default_factory=lambda: np.zeros(LANES, np.int64))
    live: np.ndarray = field(default_factory=lambda: np.ones(LANES, np.bool_))
    #: What a thread waits for: "" for nothing.
    waits: np.ndarray = field(default_factory=lambda: np.full(LANES, "", "U8"))
    meetings: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.predicates[TRUE] = self.predicates[TRUE + 8] = True


# --- operands


def row_of(name: str) -> int:
    if name in ("RZ", "SRZ"):
        return RZ
    if name == "URZ":
        return URZ
    return int(name[1:]) if name[0] == "R" else UNIFORM + int(name[2:])


def target_of(name: str) -> int:
    """The row to which a result goes."""
    row = row_of(name)
    return NOWHERE if row in (RZ, URZ) else row


def predicate_of(name: str) -> Callable[[Warp], np.ndarray]:
    negated, name = name.startswith("!"), name.lstrip("!")
    row = predicate_row(name)
    if negated:
        return lambda warp: ~warp.predicates[row]
    return lambda warp: warp.predicates[row]


def predicate_row(name: str) -> int:
    begin, name = (8, name[1:]) if name[0] == "U" else (0, name)
    return begin + (TRUE if name[1:] == "T" else int(name[1:]))


def is_predicate(name: str) -> bool:
    return re.fullmatch(r"!?U?P(\d|T)", name) is not None


CONSTANT = re.compile(r"c\[0x(\w+)\]\[(?:(R\d+|RZ)\+?)?(-?0x\w+)?\]")


def words_of(name: str, count: int) -> Callable[[Warp], list[np.ndarray]]:
    """The words of a register or of several, of a constant or of a whole number."""
    if match := CONSTANT.fullmatch(name):
        begin = int(match.group(3), 16) // 4
        if match.group(1) != "0" or match.group(2):
            raise NotImplementedError(name)
        return lambda warp: [np.full(LANES, warp.memory.constants[begin + i]) for i in range(count)]
    if re.fullmatch(r"-?0x[0-9a-f]+", name):
        value = int(name, 16) & 0xFFFFFFFFFFFFFFFF
        whole = [np.full(LANES, value >> 32 * i & 0xFFFFFFFF, np.uint32) for i in range(count)]
        return lambda _: whole
    row = row_of(name)
    if row in (RZ, URZ):
        zeros = [np.zeros(LANES, np.uint32)] * count
        return lambda _: zeros
    return lambda warp: [warp.registers[row + i] for i in range(count)]


def integer_of(name: str) -> Callable[[Warp], np.ndarray]:
    """A word."""
    if name[0] == "~":
        inner = words_of(name[1:], 1)
        return lambda warp: ~inner(warp)[0]
    if name[0] == "-" and not name.startswith("-0x"):
        inner = words_of(name[1:], 1)
        return lambda warp: (~inner(warp)[0]) + np.uint32(1)
    inner = words_of(name, 1)
    return lambda warp: inner(warp)[0]


def long_of(name: str) -> Callable[[Warp], np.ndarray]:
    """A number of 64 bits in two registers."""
    inner = words_of(name, 2)

    def value(warp: Warp) -> np.ndarray:
        low, high = inner(warp)
        return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)

    return value


def real_of(name: str, double: bool = False) -> Callable[[Warp], np.ndarray]:
    """A float32, or a float64 in two registers."""
    negated, name = name.startswith("-"), name.lstrip("-")
    absolute, name = "|" in name, name.replace("|", "").strip()
    kind = np.float64 if double else np.float32
    if name.startswith(("R", "U", "c[")):
        bits = long_of(name) if double else integer_of(name)

        def raw(warp: Warp) -> np.ndarray:
            return np.ascontiguousarray(bits(warp)).view(kind)
    else:
        value = {"+INF": np.inf, "+QNAN": np.nan, "INF": np.inf, "QNAN": np.nan}.get(name)
        constant = np.full(LANES, float(name) if value is None else value, kind)

        def raw(warp: Warp) -> np.ndarray:
            return constant

    if absolute and negated:
        return lambda warp: -np.abs(raw(warp))
    if absolute:
        return lambda warp: np.abs(raw(warp))
    if negated:
        return lambda warp: -raw(warp)
    return raw


# --- results


def put(warp: Warp, row: int, value: np.ndarray, mask: np.ndarray) -> None:
    """Write a number of 32 or 64 bits."""
    if row >= UNIFORM and row != NOWHERE:
        if not mask.any():
            return
        # All threads of the warp share it.
        value, mask = np.full(LANES, value[mask.argmax()]), np.ones(LANES, np.bool_)
    if value.dtype.itemsize == 8:
        bits = value.view(np.uint64)
        np.copyto(warp.registers[row], (bits & MASK32).astype(np.uint32), where=mask)
        high = (bits >> np.uint64(32)).astype(np.uint32)
        np.copyto(warp.registers[row + 1], high, where=mask)
    else:
        np.copyto(warp.registers[row], value.view(np.uint32), where=mask)


def decide(warp: Warp, name: str, value: np.ndarray, mask: np.ndarray) -> None:
    """Write a predicate."""
    row = predicate_row(name)
    if row not in (TRUE, TRUE + 8):
        if row > TRUE:
            if not mask.any():
                return
            value, mask = np.full(LANES, value[mask.argmax()]), np.ones(LANES, np.bool_)
        np.copyto(warp.predicates[row], value, where=mask)
