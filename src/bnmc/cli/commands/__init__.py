"""The commands, one file for each.

A command declares its options, checks them, calls the library and prints the result. The files
import Typer, and the rest of the library inside their functions only; so ``bnmc --help`` imports no
NumPy. The package may import all others. Read `fixed_point.py` first.
"""
