"""An emulator of the machine code of one block of threads, which counts what it executes.

The static number of instructions of a kernel says little, because loops and slow paths are taken
more or less often.  This package executes the text that `nvdisasm` prints for one kernel (compute
capability 9.0) and counts the instructions that each warp issues.  It knows the instructions that
the kernels of this project contain, and raises `NotImplementedError` at any other.

Threads whose paths part wait for each other at the instructions that the compiler has put there
(BSYNC, WARPSYNC, BAR), as on the device.  Of the groups of threads that can go on, the one with the
lowest address does.  The approximate instructions (MUFU) are exact here.  So the numbers that a
kernel computes are those of the device to a few roundings.

Read `run` first.
"""
