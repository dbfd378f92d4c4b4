"""Exit statuses of the command line."""

from __future__ import annotations

#: The command succeeded.
OK = 0

#: The pipe that received the output was closed.
BROKEN_PIPE = 1

#: An argument, an option or a file is not allowed; one line on standard error says why.
BAD_INPUT = 2

#: An estimator got too little data, or the chain does not mix; one line on standard error says why.
NO_ESTIMATE = 3

#: A claim that ``bnmc check`` tested fails.
FAILED = 4

#: Ctrl-C.
INTERRUPTED = 130
