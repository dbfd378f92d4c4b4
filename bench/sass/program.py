"""The listing of a kernel as instructions."""

from __future__ import annotations

import re
from dataclasses import dataclass

STEP = 16

_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")


@dataclass
class Instruction:
    """One line of the listing."""

    address: int
    guard: str
    name: str
    flags: list[str]
    operands: list[str]
    source: str  # file and line of the kernel
    text: str


@dataclass
class Program:
    """The instructions of a kernel."""

    instructions: list[Instruction]
    labels: dict[str, int]

    @classmethod
    def of_listing(cls, listing: str) -> Program:
        """Read what ``nvdisasm -c -gi`` prints for a file of one kernel."""
        instructions: list[Instruction] = []
        labels: dict[str, int] = {}
        pending: list[str] = []
        source = ""
        for line in listing.splitlines():
            if match := re.match(r"^\s*([.$][\w$.]+):", line):
                pending.append(match.group(1))
            elif match := re.search(r'//## File "(.*?)", line (\d+)', line):
                source = f"{match.group(1)}:{match.group(2)}"
            elif match := _LINE.match(line):
                address = int(match.group(1), 16)
                labels |= dict.fromkeys(pending, address)
                pending = []
                name, *flags = match.group(3).split(".")
                operands = [part.strip() for part in match.group(4).split(",") if part.strip()]
                instructions.append(
                    Instruction(
                        address, match.group(2) or "PT", name, flags,
                        [part.replace(".reuse", "") for part in operands], source, line.strip(),
                    )
                )  # fmt: skip
        return cls(instructions, labels)
