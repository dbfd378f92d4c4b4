"""The hook by which PyInstaller puts all of bnmc into an application.

PyInstaller finds the folder by the entry point `pyinstaller40`, whenever it collects bnmc.  Read
`hook-bnmc.py` first.
"""

from __future__ import annotations

from pathlib import Path


def hook_folders() -> list[str]:
    """Return the folder of the hook, for PyInstaller."""
    return [str(Path(__file__).parent)]
