# SPDX-License-Identifier: Apache-2.0
"""The command `kvcellar`: becomes the C program that the package holds."""

import os
import pathlib
import sys


def main() -> int:
    """Runs the program with the arguments of this process; returns only when that fails."""
    program = pathlib.Path(__file__).parent / "bin" / "kvcellar"
    try:
        os.execv(program, ["kvcellar", *sys.argv[1:]])
    except OSError as error:
        print(f"kvcellar: cannot run {program}: {error.strerror}", file=sys.stderr)
    return 126


if __name__ == "__main__":
    sys.exit(main())
