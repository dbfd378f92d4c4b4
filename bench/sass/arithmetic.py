"""Instructions that compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.sass.program import Instruction
from bench.sass.state import (
    LANES,
    MASK32,
    Action,
    Warp,
    decide,
    integer_of,
    is_predicate,
    long_of,
    predicate_of,
    put,
    real_of,
    target_of,
)


def _split(instruction: Instruction) -> tuple[str, list[str], list[str], list[str]]:
    """Return the target, predicates written, sources, and predicates read."""
    target, *rest = instruction.operands
    written = []
    while rest and is_predicate(rest[0]):
        written.append(rest.pop(0))
    sources = [name for name in rest if not is_predicate(name)]
    return target, written, sources, [name for name in rest if is_predicate(name)]


def _add(instruction: Instruction) -> Action:
    """IADD3, VIADD: sums of words, with carries."""
    target, written, sources, read = _split(instruction)
    row = target_of(target)
    # The negative of a register is its complement and one, whose carry counts.
    minus = [name[0] == "-" and not name.startswith("-0x") for name in sources]
    terms = [
        integer_of("~" + name[1:] if negated else name)
        for name, negated in zip(sources, minus, strict=True)
    ]
    ones = np.uint64(sum(minus))
    carries = [predicate_of(name) for name in read] if "X" in instruction.flags else []

    def act(warp: Warp, mask: np.ndarray) -> None:
        total = np.full(LANES, ones)
        for value in terms:
            total += value(warp).astype(np.uint64)
        for carry in carries:
            total += carry(warp).astype(np.uint64)
        put(warp, row, (total & MASK32).astype(np.uint32), mask)
        over = total >> np.uint64(32)
        for place, name in enumerate(written):
            decide(warp, name, over > place, mask)

    return act


def _multiply(instruction: Instruction) -> Action:
    """IMAD in all its forms."""
    target, written, sources, read = _split(instruction)
    row, wide = target_of(target), "WIDE" in instruction.flags
    a, b = (integer_of(name) for name in sources[:2])
    c = long_of(sources[2]) if wide else integer_of(sources[2])
    signed = "U32" not in instruction.flags
    carry = predicate_of(read[0]) if "X" in instruction.flags else None
    high = "HI" in instruction.flags

    def act(warp: Warp, mask: np.ndarray) -> None:
        x, y = a(warp), b(warp)
        if not wide and not high:
            value = x * y + c(warp)
            if carry is not None:
                value = value + carry(warp).astype(np.uint32)
            put(warp, row, value, mask)
            return
        if signed:
            product = (x.view(np.int32).astype(np.int64) * y.view(np.int32)).view(np.uint64)
        else:
            product = x.astype(np.uint64) * y.astype(np.uint64)
        if high:
            put(warp, row, (product >> np.uint64(32)).astype(np.uint32) + c(warp), mask)
            return
        value = product + c(warp)
        over = value < product
        if carry is not None:
            added = value + carry(warp).astype(np.uint64)
            over, value = over | (added < value), added
        put(warp, row, value, mask)
        if written:
            decide(warp, written[0], over, mask)

    return act


def _shift_and_add(instruction: Instruction) -> Action:
    """LEA in all its forms: a shifted number and another one."""
    target, written, sources, read = _split(instruction)
    row, flags = target_of(target), instruction.flags
    shift = int(sources[-1], 16)
    negated = sources[0][0] == "-"
    a, b = integer_of(sources[0].lstrip("-")), integer_of(sources[1])
    carried = "X" in flags
    top = integer_of(sources[2]) if len(sources) > 3 else None
    if "X" not in flags:
        read = []
    carry = predicate_of(read[0]) if carried else None

    def act(warp: Warp, mask: np.ndarray) -> None:
        whole = a(warp).astype(np.uint64)
        if "SX32" in flags:
            whole = a(warp).view(np.int32).astype(np.int64).view(np.uint64)
        elif top is not None:
            whole = whole | top(warp).astype(np.uint64) << np.uint64(32)
        if negated:
            whole = (~whole) + np.uint64(1)
        if "HI" in flags:
            if "SX32" in flags:
                shifted = (whole.view(np.int64) >> np.int64(32 - shift)).view(np.uint64)
            else:
                shifted = whole >> np.uint64(32 - shift)
        else:
            shifted = whole << np.uint64(shift)
        total = (shifted & MASK32) + b(warp).astype(np.uint64)
        if carry is not None:
            total = total + carry(warp).astype(np.uint64)
        put(warp, row, (total & MASK32).astype(np.uint32), mask)
        if written:
            decide(warp, written[0], total >> np.uint64(32) > 0, mask)

    return act


def _logic(instruction: Instruction) -> Action:
    """LOP3: any function of three bits."""
    operands, written = list(instruction.operands), None
    if is_predicate(operands[0]):
        written = operands.pop(0)
    row = target_of(operands[0])
    a, b, c = (integer_of(name) for name in operands[1:4])
    table = int(operands[4], 16)

    def act(warp: Warp, mask: np.ndarray) -> None:
        value = of_table(table, a(warp), b(warp), c(warp))
        put(warp, row, value, mask)
        if written:
            decide(warp, written, value != 0, mask)

    return act


def of_table(table: int, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return the function of three bits that a table of eight bits describes."""
    value: np.ndarray = a ^ a
    for bits in range(8):
        if table >> bits & 1:
            value = value | (
                (a if bits & 4 else ~a) & (b if bits & 2 else ~b) & (c if bits & 1 else ~c)
            )
    return value


def _logic_of_predicates(instruction: Instruction) -> Action:
    first, second, *rest = instruction.operands
    a, b, c = (predicate_of(name) for name in rest[:3])
    tables = [int(name, 16) for name in rest[3:5]]

    def act(warp: Warp, mask: np.ndarray) -> None:
        values = a(warp), b(warp), c(warp)
        results = [of_table(table, *values) for table in tables]
        decide(warp, first, results[0], mask)
        decide(warp, second, results[1], mask)

    return act


def _shift(instruction: Instruction) -> Action:
    """SHF: a word of two words that are shifted together."""
    row, flags = target_of(instruction.operands[0]), instruction.flags
    low, by, high = (integer_of(name) for name in instruction.operands[1:4])
    wide, top = any(f.endswith("64") for f in flags), "HI" in flags
    signed = any(f in ("S32", "S64") for f in flags)
    left = flags[0] == "L"
    if "W" in flags:
        raise NotImplementedError(instruction.text)

    def act(warp: Warp, mask: np.ndarray) -> None:
        count = np.minimum(by(warp), 63 if wide or top else 32).astype(np.uint64)
        value = low(warp).astype(np.uint64) | high(warp).astype(np.uint64) << np.uint64(32)
        if left:
            value = value << count
        elif signed:
            value = (value.view(np.int64) >> count.astype(np.int64)).view(np.uint64)
        elif not wide and not top:
            value = (value & MASK32) >> count
        else:
            value = value >> count
        value = value >> np.uint64(32) if top else value & MASK32
        put(warp, row, value.astype(np.uint32), mask)

    return act


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "LT": lambda a, b: a < b, "LE": lambda a, b: a <= b, "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b, "EQ": lambda a, b: a == b, "NE": lambda a, b: (a < b) | (a > b),
    "LTU": lambda a, b: ~(a >= b), "LEU": lambda a, b: ~(a > b), "GTU": lambda a, b: ~(a <= b),
    "GEU": lambda a, b: ~(a < b), "EQU": lambda a, b: ~((a < b) | (a > b)),
    "NEU": lambda a, b: a != b, "NAN": lambda a, b: np.isnan(a) | np.isnan(b),
    "NUM": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
}  # fmt: skip


def _compare_integers(instruction: Instruction) -> Action:
    first, second, x, y, *rest = instruction.operands
    a, b = integer_of(x), integer_of(y)
    how, flags = instruction.flags[0], instruction.flags
    unsigned, extended, joins_or = "U32" in flags, "EX" in flags, "OR" in flags
    other = predicate_of(rest[0])
    lower = predicate_of(rest[1]) if extended else None

    def act(warp: Warp, mask: np.ndarray) -> None:
        u, v = a(warp), b(warp)
        if not unsigned:
            u, v = u.view(np.int32), v.view(np.int32)
        if lower is None:
            value = _COMPARE[how](u, v)
        elif how == "NE":
            value = (u != v) | lower(warp)
        elif how == "EQ":
            value = (u == v) & lower(warp)
        else:
            value = _COMPARE[how[0] + "T"](u, v) | ((u == v) & lower(warp))
        joined = other(warp)
        decide(warp, second, (~value | joined) if joins_or else (~value & joined), mask)
        decide(warp, first, (value | joined) if joins_or else (value & joined), mask)

    return act


def _compare_reals(instruction: Instruction) -> Action:
    """FSETP, DSETP; MAX and MIN say which is the larger, and whether the second is no number."""
    first, second, x, y, *rest = instruction.operands
    double = instruction.name == "DSETP"
    a, b, other = real_of(x, double), real_of(y, double), predicate_of(rest[0])
    how, joins_or = instruction.flags[0], "OR" in instruction.flags

    def act(warp: Warp, mask: np.ndarray) -> None:
        u, v = a(warp), b(warp)
        if how in ("MAX", "MIN"):
            decide(warp, second, np.isnan(v), mask)
            decide(warp, first, (u > v) if how == "MAX" else (u < v), mask)
            return
        value, joined = _COMPARE[how](u, v), other(warp)
        decide(warp, second, (~value | joined) if joins_or else (~value & joined), mask)
        decide(warp, first, (value | joined) if joins_or else (value & joined), mask)

    return act


def _select(instruction: Instruction) -> Action:
    row = target_of(instruction.operands[0])
    if instruction.name == "FSEL":
        a, b = real_of(instruction.operands[1]), real_of(instruction.operands[2])
    else:
        a, b = integer_of(instruction.operands[1]), integer_of(instruction.operands[2])
    chosen = predicate_of(instruction.operands[3])
    return lambda warp, mask: put(warp, row, np.where(chosen(warp), a(warp), b(warp)), mask)


def _extreme(instruction: Instruction) -> Action:
    """FMNMX, VIMNMX: the smaller one, or the larger; VIADDMNMX: of a sum."""
    row, flags = target_of(instruction.operands[0]), instruction.flags
    *names, which = instruction.operands[1:]
    if instruction.name == "FMNMX":
        values = [real_of(name) for name in names]
    else:
        values = [integer_of(name) for name in names]
    smaller, signed = predicate_of(which), "U32" not in flags and instruction.name != "FMNMX"

    def act(warp: Warp, mask: np.ndarray) -> None:
        inputs = [value(warp) for value in values]
        if len(inputs) == 3:
            inputs = [inputs[0] + inputs[1], inputs[2]]
        if signed:
            inputs = [value.view(np.int32) for value in inputs]
        u, v = inputs
        extreme = np.fmin(u, v), np.fmax(u, v)
        put(warp, row, np.where(smaller(warp), *extreme).astype(u.dtype), mask)

    return act


def _real_arithmetic(instruction: Instruction) -> Action:
    double, what = instruction.name[0] == "D", instruction.name[1:]
    row = target_of(instruction.operands[0])
    values = [real_of(name, double) for name in instruction.operands[1:] if not is_predicate(name)]
    # A fused product and sum is rounded once: compute it with more digits.
    wide = np.longdouble if double else np.float64
    kind = np.float64 if double else np.float32

    def act(warp: Warp, mask: np.ndarray) -> None:
        inputs = [value(warp) for value in values]
        with np.errstate(all="ignore"):
            if what == "ADD":
                result = inputs[0] + inputs[1]
            elif what == "MUL":
                result = inputs[0] * inputs[1]
            else:
                result = inputs[0].astype(wide) * inputs[1].astype(wide) + inputs[2].astype(wide)
                result = result.astype(kind)
        put(warp, row, result, mask)

    return act


def _approximate(instruction: Instruction) -> Action:
    row, how, source = (
        target_of(instruction.operands[0]),
        instruction.flags[0],
        instruction.operands[1],
    )
    functions: dict[str, Callable[[Any], Any]] = {
        "RCP": lambda x: 1 / x, "RSQ": lambda x: 1 / np.sqrt(x), "SQRT": np.sqrt,
        "LG2": np.log2, "EX2": np.exp2,
    }  # fmt: skip
    if how.endswith("64H"):
        function = functions[how[:-3]]
        if source.startswith(("R", "-R", "|R")):
            word = integer_of(source)
        else:
            top = np.full(LANES, np.array(float(source)).view(np.uint64) >> np.uint64(32))
            word = lambda _: top.astype(np.uint32)  # noqa: E731

        def of_top(warp: Warp, mask: np.ndarray) -> None:
            with np.errstate(all="ignore"):
                bits = word(warp).astype(np.uint64) << np.uint64(32)
                value = function(bits.view(np.float64)).view(np.uint64) >> np.uint64(32)
            put(warp, row, value.astype(np.uint32), mask)

        return of_top
    function, value = functions[how], real_of(source)

    def act(warp: Warp, mask: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            put(warp, row, function(value(warp)).astype(np.float32), mask)

    return act


def _convert(instruction: Instruction) -> Action:
    """I2F, I2FP, F2F: numbers of another type; the flags name that of the result first."""
    row = target_of(instruction.operands[0])
    kinds = {"F32": np.float32, "F64": np.float64, "S32": np.int32, "U32": np.uint32,
             "S64": np.int64, "U64": np.uint64}  # fmt: skip
    flags = [flag for flag in instruction.flags if flag in kinds]
    if len(flags) == 1:
        flags = [flags[0], "S32"] if instruction.name == "I2F" else ["F32", *flags]
    result, source = (kinds[flag] for flag in flags)
    name = instruction.operands[1]
    if instruction.name == "F2F":
        value = real_of(name, source is np.float64)
    else:
        value = long_of(name) if np.dtype(source).itemsize == 8 else integer_of(name)

    def act(warp: Warp, mask: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            put(warp, row, value(warp).view(source).astype(result), mask)

    return act


def _permute(instruction: Instruction) -> Action:
    """PRMT: four of the bytes of two words, or their signs."""
    row = target_of(instruction.operands[0])
    a, which, b = (integer_of(name) for name in instruction.operands[1:4])

    def act(warp: Warp, mask: np.ndarray) -> None:
        both = a(warp).astype(np.uint64) | b(warp).astype(np.uint64) << np.uint64(32)
        value, chosen = np.zeros(LANES, np.uint64), which(warp).astype(np.uint64)
        for i in range(4):
            nibble = chosen >> np.uint64(4 * i) & np.uint64(15)
            byte = both >> (nibble & np.uint64(7)) * np.uint64(8) & np.uint64(255)
            byte = np.where(nibble & np.uint64(8), np.where(byte & np.uint64(128), 255, 0), byte)
            value |= byte.astype(np.uint64) << np.uint64(8 * i)
        put(warp, row, value.astype(np.uint32), mask)

    return act


def _gather_predicates(instruction: Instruction) -> Action:
    """P2R: the predicates of a thread as bits of a word."""
    row, others, chosen = (
        target_of(instruction.operands[0]),
        integer_of(instruction.operands[2]),
        instruction.operands[3],
    )
    bits = np.uint32(int(chosen, 16))

    def act(warp: Warp, mask: np.ndarray) -> None:
        value = np.zeros(LANES, np.uint32)
        for number in range(7):
            value |= warp.predicates[number].astype(np.uint32) << np.uint32(number)
        put(warp, row, others(warp) & ~bits | value & bits, mask)

    return act


#: What computes, by the name of the instruction.
ACTIONS: dict[str, Callable[[Instruction], Action]] = {
    "IADD3": _add, "VIADD": _add, "IMAD": _multiply, "LEA": _shift_and_add, "LOP3": _logic,
    "PLOP3": _logic_of_predicates, "SHF": _shift, "ISETP": _compare_integers,
    "FSETP": _compare_reals, "DSETP": _compare_reals, "SEL": _select, "FSEL": _select,
    "FMNMX": _extreme, "VIMNMX": _extreme, "VIADDMNMX": _extreme, "MUFU": _approximate,
    "I2F": _convert, "I2FP": _convert, "F2F": _convert, "PRMT": _permute, "P2R": _gather_predicates,
    **{kind + what: _real_arithmetic for kind in "FD" for what in ("ADD", "MUL", "FMA")},
}  # fmt: skip
