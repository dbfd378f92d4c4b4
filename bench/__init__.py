"""Benchmarks of bnmc: ``pytest bench`` from the root of the repository; see ``bench/README.md``."""
