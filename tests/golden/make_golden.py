#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden files of the stored form, format 1.0: make_golden.py FOLDER

Follows docs/on-disk-format.md and nothing of the library, so that the two check each other. Needs
libxxhash.so.0. All times and uuids are fixed: the same bytes come out each time. The files in
tests/golden/v1 are never made again for this format; a later format gets a folder of its own.
"""
import ctypes
import ctypes.util
import hashlib
import json
import os
import struct
import sys

CREATED_NS = 1767225600 * 10**9  # 2026-01-01
BLOCK = 4096
UUIDS = {"kvcellar": "01234567-89ab-4cde-8f01-23456789abcd",
         "nixl": "11234567-89ab-4cde-8f01-23456789abcd"}
MODEL, IDENTITY, DTYPE, PAGE_TOKENS = "golden/model", "rev-1", "bfloat16", 4

xxhash = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
xxhash.XXH3_64bits_withSeed.restype = ctypes.c_uint64
xxhash.XXH3_64bits_withSeed.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]


def xxh3(data, seed):
    return xxhash.XXH3_64bits_withSeed(data, len(data), seed)


def blake64(data):
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def fields_hash(*fields):
    """H(x1 .. xn): None is absent, an int is a u64."""
    data = b""
    for field in fields:
        if field is None:
            data += b"\xff\xff\xff\xff"
            continue
        if isinstance(field, int):
            field = struct.pack("<Q", field)
        elif isinstance(field, str):
            field = field.encode()
        data += struct.pack("<I", len(field)) + field
    return blake64(data)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def padded(data):
    return data + bytes(-len(data) % BLOCK)


def part_bytes(key, part, size):
    """What the tests expect: byte i of a part is (key[0] + 7 * part + i * 31) mod 256."""
    first = key[0] if key else 0
    return bytes((first + 7 * part + i * 31) & 0xFF for i in range(size))


NS_HASH = fields_hash(1, MODEL, IDENTITY, None, DTYPE, PAGE_TOKENS, 0, 1, 1, 1, 1, None)
NS_ID = "golden-model-%016x" % NS_HASH
KINDS = {"none": 0, "full": 1, "sector": 2, "caller": 3}


def checksum_of(kind, parts, seed):
    if kind == "full":
        return xxh3(b"".join(parts), seed)
    if kind == "sector":
        return xxh3(b"".join(p[i:i + 64] for p in parts for i in range(0, len(p), 512)), seed)
    return 0x1122334455667788 if kind == "caller" else 0


def trailer(parts, name, g, v, fingerprint, kind="full", object_kind=0, parent=0, depth=0):
    block = bytearray(BLOCK)
    stored = sum(len(padded(p)) for p in parts) + BLOCK
    struct.pack_into("<8sHHIII", block, 0, b"KVCTRL\r\n", 1, 0, 0, 0, 0)
    struct.pack_into("<BBHI", block, 24, KINDS[kind], object_kind, len(parts), len(name))
    struct.pack_into("<QQQ", block, 32, sum(map(len, parts)), stored,
                     checksum_of(kind, parts, g ^ v))
    struct.pack_into("<QQQQQI", block, 56, g, v, NS_HASH, fingerprint, parent, depth)
    struct.pack_into("<Q", block, 104, CREATED_NS)
    block[112:128] = hashlib.blake2b(name, digest_size=16).digest()
    block[128:142] = b"kvcellar 0.1.0"
    for i, part in enumerate(parts):
        struct.pack_into("<Q", block, 256 + 8 * i, len(part))
    if len(name) <= 2048:
        block[768:768 + len(name)] = name
    struct.pack_into("<I", block, 4092, crc32c(bytes(block[:4092])))
    return bytes(block)


def write(root, path, data):
    full = os.path.join(root, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "wb") as out:
        out.write(data)


def encoded(key):
    tame = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@=+-"
    return b"".join(bytes([c]) if c in tame else b"%%%02X" % c for c in key) or b"%e"


def kvcellar_object(root, key, pool, sizes, kind="full", parent_key=None, depth=0, marker=False):
    fingerprint = fields_hash(pool, len(sizes), *sizes, DTYPE, 1)
    parts = [part_bytes(key, i, size) for i, size in enumerate(sizes)]
    g = fields_hash(NS_ID, key)
    v = fields_hash(fingerprint, struct.pack("<II", 0, 1), struct.pack("<III", 0, 0, 0), key)
    parent = fields_hash(NS_ID, parent_key) if parent_key else 0
    name = encoded(key) + b".%s.%08x" % (pool.encode(), fingerprint >> 32)
    store(root, name, g, b"".join(map(padded, parts)) +
          trailer(parts, name, g, v, fingerprint, kind, 1 if marker else 0, parent, depth))


def single_object(root, key, pool, size):
    fingerprint = fields_hash("raw", pool)
    parts = [part_bytes(key, 0, size)]
    g = fields_hash(NS_ID, key)
    v = fields_hash(fingerprint, None, None, key)
    name = encoded(key) + b".%s.%08x" % (pool.encode(), fingerprint >> 32)
    store(root, name, g, padded(parts[0]) + trailer(parts, name, g, v, fingerprint, "full", 2))


def store(root, name, g, data):
    leaf = name
    if len(name) > 255:
        leaf = b"%h-" + hashlib.blake2b(name, digest_size=16).hexdigest().encode()
    write(root, "%s/%02x/%s" % (NS_ID, g & 0xFF, leaf.decode()), data)


def nixl_object(root, key, suffix, size, part, fingerprint):
    data = [part_bytes(key, part, size)]
    name = b"%s_golden-model_0_1%s" % (key, suffix)
    g = blake64(name)
    v = fields_hash(name)
    write(root, "%02x/%s" % (g & 0xFF, name.decode()),
          padded(data[0]) + trailer(data, name, g, v, fingerprint))


def root_json(root, naming):
    text = json.dumps({
        "format": {"major": 1, "minor": 0, "compat": [], "ro_compat": [], "incompat": []},
        "uuid": UUIDS[naming], "storage_layout": "files", "naming": naming,
        "created_by": "kvcellar 0.1.0", "created": "2026-01-01T00:00:00Z"}, indent=2)
    write(root, ".kvcellar/root.json", text.encode() + b"\n")


def namespace_json(root):
    text = json.dumps({
        "kind": "kvcellar namespace", "format_major": 1, "id": NS_ID, "model_id": MODEL,
        "identity": IDENTITY, "tenant": None, "dtype": DTYPE, "page_tokens": PAGE_TOKENS,
        "is_mla": False, "head_split": 1, "pp_size": 1, "cp_size": 1, "dcp_size": 1,
        "logical_page_tokens": 0}, indent=2)
    write(root, NS_ID + "/namespace.json", text.encode() + b"\n")


def main():
    root = os.path.join(sys.argv[1], "kvcellar")
    root_json(root, "kvcellar")
    namespace_json(root)
    kvcellar_object(root, b"full", "kv", [100, 4096], "full", b"the page before", 3)
    kvcellar_object(root, b"sector", "kv", [100, 4096], "sector")
    kvcellar_object(root, b"none", "kv", [100, 4096], "none")
    kvcellar_object(root, b"caller", "kv", [100, 4096], "caller")
    kvcellar_object(root, b"odd", "odd", [1, 4097, 511])
    kvcellar_object(root, b"marker", "anchor", [], "full", marker=True)
    kvcellar_object(root, b"a/b c", "kv", [100, 4096])
    kvcellar_object(root, b"l" * 300, "kv", [100, 4096])
    kvcellar_object(root, b"L" * 3000, "kv", [100, 4096])
    single_object(root, b"single", "side", 11)
    root = os.path.join(sys.argv[1], "nixl")
    root_json(root, "nixl")
    fingerprint = fields_hash("kv", 2, 100, 4096, DTYPE, 1)
    nixl_object(root, b"full", b"_k", 100, 0, fingerprint)
    nixl_object(root, b"full", b"_v", 4096, 1, fingerprint)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main()
