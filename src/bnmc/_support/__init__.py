"""Helpers that know nothing of chains: arguments, workers, files, keys, text, JSON, progress.

This package is for whoever needs a check of an argument, a pool of workers, or a file written
safely.  It may import `bnmc.errors` and `bnmc._kernels`, and nothing else of the library.  Read
`arguments.py` first: nearly every public function begins with calls of it.
"""
