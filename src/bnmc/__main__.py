"""``python -m bnmc`` is the command ``bnmc``."""

import sys

from bnmc.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
