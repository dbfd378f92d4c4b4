"""Hostile calls, files and stores in processes, of which none may crash or hang."""

from reliability.hostile_files import Calls, Files
from reliability.processes import watched

#: Seconds after which a case hangs: 20 s of a case, on a machine that is busy and compiles.
HANGS = 120.0


def test_files(numbers, option, tmp_path):
    """Each load gives the true values or an error of the library."""
    arguments = (option("case-seed"), str(tmp_path))
    _, findings = watched(Files, arguments, numbers("files"), HANGS)
    assert not findings, "\n".join(findings)


def test_calls(numbers, option, tmp_path):
    """No call may crash, hang, or raise what is no error of the library."""
    arguments = (option("case-seed"), str(tmp_path))
    ends, findings = watched(Calls, arguments, numbers("calls"), HANGS)
    assert not findings, "\n".join(findings)
    assert sum(ends.values()) == len(numbers("calls"))
