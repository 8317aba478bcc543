#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the package importable from a build tree, as if it were installed there.

    link_package.py SOURCE_DIR PACKAGE_DIR PROGRAM

PACKAGE_DIR (for PYTHONPATH) gets links to the .py and .pyi files of python/kvcellar, so that a change
is seen without a build; a link to the program; and a dist-info folder made from pyproject.toml.
The extension module is put there by its own rule. What is left of files that are gone is removed.
"""
import pathlib
import shutil
import sys
import tomllib

KINDS = {".py", ".pyi", ".typed"}


def link(path: pathlib.Path, target: pathlib.Path) -> None:
    if path.is_symlink() and path.readlink() == target:
        return
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def link_sources(source: pathlib.Path, package: pathlib.Path) -> None:
    wanted = {file.relative_to(source) for file in source.rglob("*")
              if file.suffix in KINDS or file.name == "py.typed"}
    for name in wanted:
        link(package / name, source / name)
    for file in package.rglob("*"):
        gone = file.suffix in KINDS and file.relative_to(package) not in wanted
        if gone and file.is_symlink():
            file.unlink()
    for folder in package.rglob("__pycache__"):
        shutil.rmtree(folder, ignore_errors=True)
    # A folder without sources would still be found as a namespace package.
    for folder in sorted((f for f in package.rglob("*") if f.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()


def entry_points(project: dict) -> str:
    groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
    return "\n".join(
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()), ""])
        for group, entries in groups.items() if entries)


def write(path: pathlib.Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def write_metadata(source: pathlib.Path, package_dir: pathlib.Path) -> None:
    with open(source / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    version = (source / "VERSION").read_text(encoding="utf-8").strip()
    info = package_dir / f"{project['name']}-{version}.dist-info"
    for other in package_dir.glob("*.dist-info"):
        if other != info:
            shutil.rmtree(other)
    info.mkdir(exist_ok=True)
    write(info / "METADATA", "Metadata-Version: 2.1\n"
          f"Name: {project['name']}\nVersion: {version}\nSummary: {project['description']}\n"
          f"Requires-Python: {project['requires-python']}\n")
    write(info / "entry_points.txt", entry_points(project))


def main() -> None:
    source, package_dir, program = map(pathlib.Path, sys.argv[1:])
    package_dir.mkdir(parents=True, exist_ok=True)
    link_sources(source / "python" / "kvcellar", package_dir / "kvcellar")
    link(package_dir / "kvcellar" / "bin" / "kvcellar", program)
    write_metadata(source, package_dir)


if __name__ == "__main__":
    main()
