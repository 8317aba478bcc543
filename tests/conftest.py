# SPDX-License-Identifier: Apache-2.0
"""Finds the package for tests that are run by hand; scripts/check names it in PYTHONPATH. Stores get a
watermark: a disk that others have filled is no defect.

One that is installed or in PYTHONPATH is taken; else that of the build folder KVC_BUILD_DIR, by
default build/release, for the processes that the tests start as well. tests/wheel installs its own.
"""

import importlib.util
import os
import pathlib
import sys

TREE = pathlib.Path(__file__).resolve().parent.parent


def find_package() -> None:
    """Puts the built package in front of the paths when none is there."""
    if importlib.util.find_spec("kvcellar") is not None:
        return
    folder = TREE / os.environ.get("KVC_BUILD_DIR", "build/release") / "python"
    if not (folder / "kvcellar").is_dir():
        return
    sys.path.insert(0, str(folder))
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


find_package()
os.environ.setdefault("KVCELLAR_L3_CLEANER_HIGH_WATERMARK", "99.9")
