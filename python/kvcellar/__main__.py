# SPDX-License-Identifier: Apache-2.0
"""`python3 -m kvcellar` is the command `kvcellar`."""

import sys

from kvcellar._cli import main

if __name__ == "__main__":
    sys.exit(main())
