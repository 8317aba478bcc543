#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden files of the packed layout, format 1.0: make_packed.py FOLDER

packed/ is a root, packed-names.txt has g and v of some objects. Follows docs/on-disk-format.md, 8,
and nothing of the library, as make_golden.py does. The boot id is that of no machine: a test that
wants the index as it is stored writes its own into root.shm.
"""
import ctypes
import hashlib
import json
import os
import struct
import sys

from make_golden import (CREATED_NS, DTYPE, IDENTITY, KINDS, MODEL, PAGE_TOKENS, checksum_of,
                         crc32c, encoded, fields_hash, padded, part_bytes, write, xxhash)

xxhash.XXH3_64bits_withSecret.restype = ctypes.c_uint64
xxhash.XXH3_64bits_withSecret.argtypes = [ctypes.c_char_p, ctypes.c_size_t] * 2

M64 = (1 << 64) - 1
UUID = "21234567-89ab-4cde-8f01-23456789abcd"
UUID_BYTES = bytes.fromhex(UUID.replace("-", ""))
BOOT_ID = bytes(range(0xA0, 0xB0))
MACHINE_ID = b"0123456789abcdef" * 2
CREATED_S = CREATED_NS // 10**9
CLOCK = 1000
DEAD_ENTRY, DEAD_PID = 3, 4242
EPOCH = 5
FREE, WRITING, LIVE = 0, 1, 2


def aligned(number):
    return number + -number % 4096


class Place:
    """A process's place among those that store a model; what does not matter is 0 of 1."""

    def __init__(self, tp=(0, 1), pp=(0, 1), cp=(0, 1), dcp=(0, 1), is_mla=False):
        self.tp, self.pp, self.cp, self.dcp, self.is_mla = tp, pp, cp, dcp, is_mla
        split = None if is_mla else tp[1]
        self.ns_hash = fields_hash(1, MODEL, IDENTITY, None, DTYPE, PAGE_TOKENS, int(is_mla), split,
                                   pp[1], cp[1], dcp[1], None)
        self.ns_id = "golden-model-%016x" % self.ns_hash

    def namespace_json(self):
        return json.dumps({
            "kind": "kvcellar namespace", "format_major": 1, "id": self.ns_id, "model_id": MODEL,
            "identity": IDENTITY, "tenant": None, "dtype": DTYPE, "page_tokens": PAGE_TOKENS,
            "is_mla": self.is_mla, "head_split": 0 if self.is_mla else self.tp[1],
            "pp_size": self.pp[1], "cp_size": self.cp[1], "dcp_size": self.dcp[1],
            "logical_page_tokens": 0}, indent=2).encode() + b"\n"

    def suffix(self):
        text = "" if self.is_mla or self.tp[1] == 1 else "_%d_%d" % self.tp
        for name, rank in (("pp", self.pp), ("cp", self.cp), ("dcp", self.dcp)):
            text += "" if rank[1] == 1 else "_%s%d_%d" % (name, *rank)
        return text


def fingerprint_of(pool, sizes):
    return fields_hash(pool, len(sizes), *sizes, DTYPE, 1)


def keyed_hash(fields, key):
    """XXH3-64 of the key with a secret made of what H has before the key."""
    prefix = fields_hash(*fields)
    secret = b"".join(hashlib.blake2b(struct.pack("<QQ", prefix, i)).digest() for i in range(3))
    return xxhash.XXH3_64bits_withSecret(key, len(key), secret, len(secret))


def group_of(place, key):
    return keyed_hash([place.ns_id], key)


def object_fields(place, fingerprint):
    rank = None if place.is_mla else struct.pack("<II", *place.tp)
    others = struct.pack("<III", place.pp[0], place.cp[0], place.dcp[0])
    return [fingerprint, rank, others]


def object_of(place, fingerprint, key):
    return keyed_hash(object_fields(place, fingerprint), key)


def lane_of(place, fingerprint):
    rank, ranks = (0, 1) if place.is_mla else place.tp
    others = place.pp[0] + place.pp[1] * (place.cp[0] + place.cp[1] * place.dcp[0])
    return (fingerprint + rank + ranks * others) % 32


def mix(x):
    for step in range(3):
        x ^= x >> 32
        if step < 2:
            x = x * 0xd6e8feb86659fd93 & M64
    return x


def buckets_of(g, lane, pages):
    h = mix(g + lane * 0x9e3779b97f4a7c15 & M64)
    page, first = (h * pages >> 64) * 64, h % 64
    return page + first, page + (first + 1 + h // 64 % 63) % 64


def header(magic, file_bytes, rest):
    block = struct.pack("<8sHHIQ", magic + b"\r\n", 1, 0, 128, file_bytes) + rest
    block += bytes(124 - len(block))
    return block + struct.pack("<I", crc32c(block))


def put(data, offset, piece):
    data[offset:offset + len(piece)] = piece


class Slot:
    """One slot: free, or with an object, or being written by a process that is dead."""

    def __init__(self, state, gen, key=b"", place=None, pool="", sizes=(), kind="full", depth=0,
                 parent_key=None, stamp=0, owner=0, bucket=0):
        self.state = gen << 20 | owner << 4 | state
        self.st, self.gen, self.place, self.bucket = state, gen, place, bucket
        self.stamp = 0 if state == FREE else stamp << 1
        self.record, self.data, self.fields = b"", b"", bytes(56)
        if not place:
            return
        fingerprint = fingerprint_of(pool, sizes)
        parts = [part_bytes(key, i, size) for i, size in enumerate(sizes)]
        self.data = b"".join(map(padded, parts))
        self.g = group_of(place, key)
        self.v = object_of(place, fingerprint, key)
        self.lane = lane_of(place, fingerprint)
        self.fill(parts, kind, depth, group_of(place, parent_key) if parent_key else 0)
        self.name(fingerprint, sizes, encoded(key) + b".%s.%08x%s" % (
            pool.encode(), fingerprint >> 32, place.suffix().encode()))

    def fill(self, parts, kind, depth, parent):
        payload = sum(map(len, parts))
        before = struct.pack("<QQQQ", self.g, self.v, checksum_of(kind, parts, self.g ^ self.v),
                             parent)
        after = struct.pack("<IHH", CREATED_S, min(depth, 65535), KINDS[kind] | self.lane << 2)
        crc = crc32c(struct.pack("<Q", self.gen) + before + struct.pack("<Q", payload) + after)
        self.fields = before + struct.pack("<II", payload, crc) + after + bytes(8)

    def name(self, fingerprint, sizes, name):
        runs = []
        for size in sizes:
            if runs and runs[-1][1] == size:
                runs[-1][0] += 1
            else:
                runs.append([1, size])
        assert len(name) <= 176 and len(runs) <= 6
        record = bytearray(256)
        struct.pack_into("<QQIHHQ", record, 0, self.gen, fingerprint, 0, len(name), len(runs), 0)
        for i, run in enumerate(runs):
            struct.pack_into("<II", record, 32 + 8 * i, *run)
        put(record, 80, name)
        struct.pack_into("<I", record, 16, crc32c(bytes(record)))
        self.record = bytes(record)


class Arena:
    """All slots of one size of a namespace; here in one segment."""

    def __init__(self, place, slot_bytes, slots):
        self.place, self.slot_bytes, self.slots = place, slot_bytes, slots
        self.folder = "%s/slots-%d" % (place.ns_id, slot_bytes)
        self.about = struct.pack("<QQ", place.ns_hash, slot_bytes)
        self.hdr_bytes = self.names_bytes = 0

    def count(self, state):
        return sum(slot.st == state for slot in self.slots)

    def write(self, root):
        seg, names = bytearray(), bytearray(4096)
        for slot in self.slots:
            seg += slot.data + bytes(self.slot_bytes - len(slot.data))
            names += slot.record + bytes(256 - len(slot.record))
        about = UUID_BYTES + self.about + struct.pack("<II", len(self.slots), 1)
        put(names, 0, header(b"KVCPKN", len(names), about))
        hdr = self.headers(about)
        self.hdr_bytes, self.names_bytes = len(hdr), len(names)
        write(root, self.folder + "/seg.1", seg)
        write(root, self.folder + "/names.1", names)
        write(root, self.folder + "/hdr.1", hdr)
        write(root, self.folder + "/table.%d" % EPOCH, self.table())

    def headers(self, about):
        count = len(self.slots)
        stamps = aligned(4096 + 64 * count)
        bitmap = aligned(stamps + 8 * count)
        hdr = bytearray(aligned(bitmap + (count + 63) // 64 * 8))
        put(hdr, 0, header(b"KVCPKH", len(hdr), about))
        bits = 0
        for i, slot in enumerate(self.slots):
            put(hdr, 4096 + 64 * i, struct.pack("<Q", slot.state) + slot.fields)
            put(hdr, stamps + 8 * i, struct.pack("<Q", slot.stamp))
            bits |= (slot.st == FREE) << i
        assert count <= 64
        put(hdr, bitmap, struct.pack("<Q", bits))
        return hdr

    def table(self):
        table = bytearray(4096 + 64 * 64)
        about = UUID_BYTES + self.about + struct.pack("<QI", 64, EPOCH)
        put(table, 0, header(b"KVCPKT", len(table), about))
        used = {}
        for i, slot in enumerate(self.slots):
            if slot.st != LIVE:
                continue
            bucket = buckets_of(slot.g, slot.lane, 1)[slot.bucket]
            entry = slot.g >> 56 << 56 | slot.v >> 48 << 40 | 1 << 16 | i
            put(table, 4096 + 64 * bucket + 8 * used.get(bucket, 0), struct.pack("<Q", entry))
            used[bucket] = used.get(bucket, 0) + 1
        return table

    def arena_record(self, lanes):
        return struct.pack(
            "<Q16sII96sIIIIQQQ", 1, self.about, len(self.slots), 0, self.place.ns_id.encode(), 1,
            EPOCH, lanes, 1, 1 << 32, self.count(FREE), self.count(LIVE))

    def file_bytes(self):
        return self.slot_bytes * len(self.slots) + self.hdr_bytes + self.names_bytes


def root_shm(arenas):
    shm = bytearray(12288 + 256 * 256)
    put(shm, 0, header(b"KVCPKR", len(shm), UUID_BYTES))
    put(shm, 128, struct.pack("<16s32sQQQQQ", BOOT_ID, MACHINE_ID, CREATED_S, 2,
                              sum(arena.file_bytes() for arena in arenas), 0, 0))
    put(shm, 256, struct.pack("<Q", CLOCK))
    put(shm, 4096 + 32 * DEAD_ENTRY, struct.pack("<QQQQ", DEAD_PID, 0, CREATED_S, 0))
    for i, arena in enumerate(arenas):
        lanes = {slot.lane for slot in arena.slots if slot.place}
        put(shm, 12288 + 256 * i, arena.arena_record(sum(1 << lane for lane in lanes)))
    return shm


def intents(arena, slot):
    data = bytearray(128 + 8 * 1024)
    put(data, 0, header(b"KVCPKI", len(data), UUID_BYTES + struct.pack("<I", DEAD_ENTRY)))
    put(data, 128 + 8 * 7, struct.pack("<Q", arena << 40 | 1 << 16 | slot))
    return data


def root_json():
    return json.dumps({
        "format": {"major": 1, "minor": 0, "compat": [], "ro_compat": [], "incompat": []},
        "uuid": UUID, "storage_layout": "packed", "naming": "kvcellar",
        "created_by": "kvcellar 0.1.0", "created": "2026-01-01T00:00:00Z"},
        indent=2).encode() + b"\n"


def write_root(root):
    alone, third, sixth = Place(), Place(tp=(2, 8)), Place(tp=(5, 8))
    kv, odd = ("kv", [4096, 4096]), ("odd", [1, 4097])
    arenas = [
        Arena(alone, 8192, [
            Slot(LIVE, 1, b"full", alone, *kv, "full", 3, b"the page before", 900),
            Slot(FREE, 4),
            Slot(LIVE, 9, b"none", alone, *kv, "none", 70000, stamp=901, bucket=1),
            Slot(WRITING, 6, owner=DEAD_ENTRY)]),
        Arena(sixth, 12288, [
            Slot(LIVE, 1, b"ranked", sixth, *odd, "full", stamp=950),
            Slot(LIVE, 3, b"ranked", third, *odd, "sector", stamp=951, bucket=1)]),
    ]
    for arena in arenas:
        arena.write(root)
        write(root, arena.place.ns_id + "/namespace.json", arena.place.namespace_json())
    write(root, ".kvcellar/root.json", root_json())
    write(root, ".kvcellar/packed/root.lock", b"")
    write(root, ".kvcellar/packed/root.shm", root_shm(arenas))
    write(root, ".kvcellar/packed/intents.%d" % DEAD_ENTRY, intents(0, 3))


def names_text():
    """One object a line; byte j of the key in line i, from 0, is (107 + 7 * i + 31 * j) mod 256."""
    places = [Place(), Place(tp=(5, 8)), Place(is_mla=True, tp=(1, 2)),
              Place(tp=(0, 2), pp=(1, 2), cp=(2, 3), dcp=(3, 4))]
    text = ""
    for i, size in enumerate([0, 1, 3, 4, 8, 9, 16, 17, 64, 128, 129, 240, 241, 300, 1024, 1025]):
        place = places[i % len(places)]
        key = part_bytes(b"k", i, size)
        fingerprint = fingerprint_of("kv", [4096, i])
        ranks = " ".join("%d %d" % rank for rank in (place.tp, place.pp, place.cp, place.dcp))
        text += "%s mla %d pool %016x key %d g %016x v %016x\n" % (
            ranks, place.is_mla, fingerprint, size, group_of(place, key),
            object_of(place, fingerprint, key))
    return text


def main():
    write_root(os.path.join(sys.argv[1], "packed"))
    write(sys.argv[1], "packed-names.txt", names_text().encode())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main()
