"""Reads every root under the folders given, and names what is wrong: python -m independent_reader FOLDER..."""

import os
import sys
from pathlib import Path

from .layout import ReadError
from .reader import Root


def main(folders: list[str]) -> int:
    roots = [Path(path) for folder in folders for path, _, files in os.walk(folder) if "LAMINA" in files]
    steps = bad = 0
    for path in roots:
        try:
            steps += len(Root(path).check())
        except ReadError as error:
            bad += 1
            print(error)
    print(f"{len(roots)} roots, {steps} steps read, {bad} roots bad")
    return 1 if bad or not roots else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
