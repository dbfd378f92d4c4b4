"""Helpers that know nothing of chains: checks of arguments, workers, files, text and progress.

The package may import `bnmc.errors` and `bnmc._kernels`. Read `arguments.py` first: nearly every
public function begins with calls of it.

============== ===================================================================
file           purpose
============== ===================================================================
arguments      checks of arguments: each returns a canonical value or raises
archives       arrays as bytes, with a digest that shows damage
device_arrays  arrays of a GPU, of any library
extras         optional dependencies
files          paths, and files that appear as a whole or not at all
interruption   Ctrl-C and time limits between two steps of long work
keywords       keywords that other libraries, and earlier versions, use for an argument
linalg         linear algebra beyond NumPy
machine        processors and memory of this machine
pyinstaller    the hook by which PyInstaller collects the package
progress       a progress bar, or a function of the user
text           tables as aligned text, and results as JSON
version        the version of the package
workers        tasks on executors whose workers may die, and work in parts
============== ===================================================================
"""
