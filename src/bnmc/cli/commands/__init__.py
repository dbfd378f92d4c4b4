"""The commands, by what they are about.

A command is a function that calls the library and returns a `Report`; the decorator `command` does
the rest. The files import Typer, and the rest of the library inside their functions only; so
``bnmc --help`` imports no NumPy. The package may import all others. Read `rates` in
`stationary.py` first.
"""
