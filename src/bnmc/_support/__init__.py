"""Helpers that know nothing of chains: checks of arguments, workers, files, text and progress.

The package may import `bnmc.errors` and `bnmc._kernels`. Read `arguments.py` first: nearly every
public function begins with calls of it.

============== ===================================================================
file           purpose
============== ===================================================================
arguments      checks of arguments: each returns a canonical value or raises
device_arrays  arrays of a GPU, of any library
extras         optional dependencies
files          paths, files that appear as a whole or not at all, arrays in files
interruption   Ctrl-C and time limits between two steps of long work
json           results as JSON
keys           the 64-bit key of a run
linalg         linear algebra beyond NumPy
machine        processors and memory of this machine
progress       a progress bar, or a function of the user
splits         a count cut into ranges
text           tables as aligned text
version        the version of the package
workers        tasks on executors whose workers may die
============== ===================================================================
"""
