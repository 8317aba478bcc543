#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the copyright files of the libraries that auditwheel took along into a wheel.

    wheel-licences.py WHEEL

auditwheel's parts list (sboms/auditwheel.cdx.json) names the Debian or Ubuntu package of each library;
that package's copyright file becomes <dist-info>/licenses/<package>.copyright.
"""
import base64
import csv
import hashlib
import io
import json
import os
import pathlib
import re
import sys
import zipfile

PACKAGE = re.compile(r"pkg:deb/[^/]+/([^@]+)@")
DOCUMENTS = pathlib.Path("/usr/share/doc")


def packages_of(parts_list: bytes) -> set[str]:
    """The system packages in a CycloneDX document."""
    parts = json.loads(parts_list).get("components", [])
    matches = (PACKAGE.match(part.get("purl", "")) for part in parts)
    return {match.group(1) for match in matches if match}


def record_row(name: str, data: bytes) -> list[str]:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return [name, f"sha256={digest}", str(len(data))]


def add_files(wheel: pathlib.Path, added: dict[str, bytes], record: str) -> None:
    """Writes the wheel anew with more files, and their rows in its RECORD, which stays last."""
    fresh = wheel.with_suffix(".new")
    with zipfile.ZipFile(wheel) as old, \
            zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:
        times = old.getinfo(record).date_time
        rows = list(csv.reader(io.StringIO(old.read(record).decode())))
        for info in old.infolist():
            if info.filename != record:
                info.compress_type = zipfile.ZIP_DEFLATED
                new.writestr(info, old.read(info.filename))
        for name, data in added.items():
            rows.insert(0, record_row(name, data))
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        for name, data in {**added, record: text.getvalue().encode()}.items():
            info = zipfile.ZipInfo(name, times)
            info.external_attr = 0o100644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            new.writestr(info, data)
    os.replace(fresh, wheel)


def main() -> None:
    wheel = pathlib.Path(sys.argv[1])
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        libraries = [name for name in names if re.match(r"[^/]+\.libs/.", name)]
        record = next(name for name in names if re.fullmatch(r"[^/]+\.dist-info/RECORD", name))
        info = record.removesuffix("/RECORD")
        parts_list = f"{info}/sboms/auditwheel.cdx.json"
        packages = packages_of(archive.read(parts_list)) if parts_list in names else set()
    if len(packages) < len(libraries):
        sys.exit(f"{wheel}: {len(libraries)} libraries, but packages of only {sorted(packages)}")
    added = {}
    for package in sorted(packages):
        added[f"{info}/licenses/{package}.copyright"] = \
            (DOCUMENTS / package / "copyright").read_bytes()
    add_files(wheel, added, record)
    print(f"{wheel}: copyright files of {', '.join(sorted(packages))}")


if __name__ == "__main__":
    main()
