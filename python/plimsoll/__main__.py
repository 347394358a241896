"""``python -m plimsoll`` and the command ``plimsoll``: the program of this package."""

import os
import sys


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.path.join(here, "bin", "plimsoll")
    if not os.access(path, os.X_OK):
        path = os.path.join(here, "..", "..", "build", "plimsoll")
    try:
        os.execv(path, ["plimsoll", *sys.argv[1:]])
    except OSError as e:
        sys.exit(f"plimsoll: {path}: {e}")


if __name__ == "__main__":
    main()
