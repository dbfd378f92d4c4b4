"""``python -m bnmc`` is the command ``bnmc``."""

import sys

from bnmc.cli import main

if __name__ == "__main__":
    sys.exit(main())
