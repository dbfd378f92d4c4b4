"""How a layer kernel notes that a chain stopped: one int64 per chain.

A note is ``(step << STEP_BITS) + reason``.  The reason is the number of a row without variance, or
one of the STOPPED codes.  Threads and blocks that share a chain write with an atomic minimum, so
the note of the earliest step remains and, within a step, that of the first row.
"""

#: Bits of the reason.
STEP_BITS = 36
#: The note of a chain that has not stopped; larger than any other note.
NOT_STOPPED = 2**62
#: Reasons, larger than the number of any row: an entry of the Gram matrix is infinite or NaN; or
#: the Gram matrix has pivots that float32 rows do not resolve.
STOPPED_NOT_FINITE, STOPPED_UNRESOLVED = 2**35, 2**35 + 1
#: This reason plus k: the sample in column k has no variance over its features.
STOPPED_FLAT = 2**35 + 2
