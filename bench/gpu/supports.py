"""Can this NCCL do a recipe? Exit code 0 = yes; says why not.

python bench/gpu/supports.py one-host [--nccl libnccl.so.2]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nccl import Library, find_library
from recipes import RECIPES

from ncclt.core.nccl_version import NcclVersion
from ncclt.errors import NccltError


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=sorted(RECIPES))
    parser.add_argument("--nccl", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    options, _others = parser.parse_known_args(argv)
    try:
        version = Library(find_library(options.nccl)).version()
        RECIPES[options.recipe].check(NcclVersion.parse(version), options.ranks)
    except NccltError as error:
        print(error.message)
        return 1
    print(f"NCCL {version} can")
    return 0


if __name__ == "__main__":
    sys.exit(main())
