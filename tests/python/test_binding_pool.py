# SPDX-License-Identifier: Apache-2.0
"""Pools, transfers, results and batches of the extension module."""

import array
import ctypes
import errno
import select
import sys
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

import kvcellar
from binding import PAGE_BYTES, Pages, Rig, Tensor, fault, indices, mem, rig


@pytest.fixture
def one() -> Iterator[Rig]:
    with rig() as it:
        yield it


def test_pages_come_back(one: Rig) -> None:
    stored = one.pool.set(["a", b"b"], indices(0, 1))
    read = one.pool.get(["b", "a", "c"], indices(2, 3, 4))
    assert stored.ok == [True, True]
    assert read.statuses == ["ok", "ok", "miss"]
    assert (one.pages[2], one.pages[3]) == (bytes([2]) * PAGE_BYTES, bytes([1]) * PAGE_BYTES)
    assert one.pool.exists(["a", "c", "b"]).ok == [True, False, True]
    assert one.pool.remove(["a", "c"]).statuses == ["ok", "miss"]
    assert one.pool.exists(["a"]).causes == ["absent"]


def test_result(one: Rig) -> None:
    one.pool.set(["a", "b"], [0, 1])
    result = one.pool.exists(["a", "x", "b"])
    assert (result.ok_count, result.prefix_count, len(result), bool(result)) == (2, 1, 3, False)
    assert result.ok is result.ok
    assert result.ok == [True, False, True]
    assert list(result) == result.statuses == ["ok", "miss", "ok"]
    assert (result[1], result[-1]) == ("miss", "ok")
    assert result.causes == ["none", "absent", "none"]
    assert result.errors == [0, 0, 0]
    assert result.present == b"\1\0\1"
    assert bool(one.pool.exists(["a", "b"]))
    assert repr(result) == "<kvcellar.Result: 2 of 3 pages ok>"
    with pytest.raises(IndexError):
        result[3]
    with pytest.raises(AttributeError):
        result.ok = []


def test_empty_batches(one: Rig) -> None:
    for result in (one.pool.get([], []), one.pool.set([], indices()), one.pool.exists([]),
                   one.pool.remove(()), *one.store.run([kvcellar.Transfer("get", one.pool, [])])):
        assert (len(result), bool(result), result.ok, result.present) == (0, True, [], b"")
    assert one.store.run([]) == []


def test_what_is_there_stays_unless_overwritten(one: Rig) -> None:
    one.pool.set(["a"], [0])
    assert one.pool.set(["a"], [1]).causes == ["existed"]
    one.pool.get(["a"], [7])
    assert one.pages[7] == one.pages[0]
    assert one.pool.set(["a"], [1], overwrite=True).causes == ["none"]
    one.pool.get(["a"], [7])
    assert one.pages[7] == one.pages[1]


def test_stop_at_miss(one: Rig) -> None:
    one.pool.set(["a", "c"], [0, 1])
    result = one.pool.exists(["a", "b", "c"], stop_at_miss=True)
    assert result.statuses == ["ok", "miss", "skipped"]


def test_parent_and_depth_are_stored(one: Rig) -> None:
    one.pool.set(["a", "b"], [0, 1], parent="before", depth=7)
    details = [one.store.object_stat(place["root"], place["path"])
               for key in ("a", "b") for place in one.pool.where(key)]
    assert [detail["depth"] for detail in details] == [7, 8]
    assert details[0]["parent_hash"] != 0
    assert details[1]["parent_hash"] == details[0]["group_hash"]
    assert [detail["kind"] for detail in details] == ["page", "page"]
    assert details[0]["part_bytes"] == [PAGE_BYTES]


@pytest.mark.parametrize("key", ["k", b"k", "k\u00e9", "k" * 3000, b"\xff\xfe\0k", "a/b", "",
                                 "0" * 64])
def test_keys_are_any_bytes(one: Rig, key: str | bytes) -> None:
    assert one.pool.set([key], [3]).ok == [True]
    assert one.pool.get([key], [5]).ok == [True]
    assert one.pages[5] == one.pages[3]
    as_other = key.encode() if isinstance(key, str) else key
    assert one.pool.exists([as_other, b"other" + as_other]).ok == [True, False]


def test_keys_may_come_from_any_iterable(one: Rig) -> None:
    assert one.pool.set((key for key in ("a", "b")), [0, 1]).ok_count == 2
    assert one.pool.exists({"a": 1, "b": 2}).ok_count == 2
    assert one.pool.exists(("a", "b")).ok_count == 2


@pytest.mark.parametrize(("keys", "error", "text"), [
    (["a", "b\ud800"], kvcellar.ConfigError, r"keys\[1\].*surrogates"),
    (["a", "b", 3], TypeError, r"keys\[2\]: a str or bytes expected, not int"),
    (["a", None], TypeError, r"keys\[1\]: a str or bytes expected, not NoneType"),
    (["a", bytearray(b"b")], TypeError, r"keys\[1\]: a str or bytes expected, not bytearray"),
    ("abc", TypeError, "keys: a sequence expected, not str"),
    (b"abc", TypeError, "keys: a sequence expected, not bytes"),
    (None, TypeError, "keys: a sequence expected, not NoneType"),
    (5, TypeError, "keys: a sequence expected, not int"),
])
def test_wrong_keys(one: Rig, keys: Any, error: type[Exception], text: str) -> None:
    for call in (one.pool.exists, one.pool.remove, lambda keys: one.pool.get(keys, [0, 1, 2]),
                 lambda keys: one.namespace.exists_many("x", keys)):
        with pytest.raises(error, match=text):
            call(keys)


def test_a_key_that_makes_no_name_is_an_error_of_its_page() -> None:
    with rig(mem(naming="nixl")) as it:
        result = it.pool.set(["a", "b/c", "d"], [0, 1, 2])
        assert result.statuses == ["ok", "error", "ok"]
        assert result.causes[1] == "name"
        assert result.errors[1] == errno.EINVAL


# ---------------------------------------------------------------- indices


def int64_arrays(*values: int) -> list[Any]:
    """The same indices in each form that is taken."""
    return [
        array.array("q", values),
        array.array("l", values),
        memoryview(array.array("q", values)),
        numpy.array(values, dtype=numpy.int64),
        numpy.array(values, dtype="<i8"),
        (ctypes.c_int64 * len(values))(*values),
        Tensor(array.array("q", values)),
        Tensor(array.array("q", values), dtype="int64"),
        list(values),
        tuple(values),
        list(numpy.array(values, dtype=numpy.int32)),
    ]


def test_forms_of_indices(one: Rig) -> None:
    for at, form in enumerate(int64_arrays(3, 1)):
        keys = [f"{at}-a", f"{at}-b"]
        assert one.pool.set(keys, form).ok == [True, True], form
        one.pages.fill(6, 0)
        assert one.pool.get(keys, form).ok == [True, True], form
        assert one.pool.get(keys[:1], [6]).ok == [True]
        assert one.pages[6] == one.pages[3], form
    assert one.pool.set(["r0", "r1"], range(2)).ok_count == 2


def test_every_index_stride_th_counts(one: Rig) -> None:
    for form in int64_arrays(2, 100, 100, 5):
        assert one.pool.set(["a", "b"], form, index_stride=3, overwrite=True).ok_count == 2
        one.pool.get(["a", "b"], [6, 7])
        assert (one.pages[6], one.pages[7]) == (one.pages[2], one.pages[5])


def test_token_indices() -> None:
    with rig(page_tokens=4) as it:
        pages = Pages(4)
        pool = pages.pool(it.namespace, token_indices=True)
        tokens = numpy.concatenate([numpy.arange(8, 12), numpy.arange(0, 4)])
        assert pool.set(["a", "b"], tokens, index_stride=4).ok_count == 2
        assert pool.get(["a", "b"], [4, 12]).ok_count == 2
        assert (pages[1], pages[3]) == (bytes([3]) * PAGE_BYTES, bytes([1]) * PAGE_BYTES)


class OddTensor(Tensor):
    def __init__(self, **options: Any) -> None:
        super().__init__(array.array("q", [0, 1, 2]), **options)


class Freed(OddTensor):
    """Like one whose untyped_storage().resize_(0) was called: it still has its shape."""

    def data_ptr(self) -> int:
        return 0


class NoSize:
    def data_ptr(self) -> int:
        return 1


class Raises:
    def data_ptr(self) -> int:
        raise RuntimeError("meta tensor")


@pytest.mark.parametrize(("form", "error", "text"), [
    (array.array("i", [0, 1, 2]), kvcellar.ConfigError, "format 'i', 4 bytes: int64 expected"),
    (array.array("d", [0, 1, 2]), kvcellar.ConfigError, "format 'd'"),
    (array.array("Q", [0, 1, 2]), kvcellar.ConfigError, "format 'Q'"),
    (b"012345678901234567890123", kvcellar.ConfigError, "format 'B'"),
    (numpy.arange(3, dtype=">i8"), kvcellar.ConfigError, "format '>[lq]'"),
    (numpy.arange(6)[::2], kvcellar.ConfigError, "indices: .*contiguous"),
    (numpy.arange(3.0), kvcellar.ConfigError, "format 'd'"),
    (OddTensor(item_bytes=4, dtype="torch.int32"), kvcellar.ConfigError, "dtype torch.int32"),
    (OddTensor(dtype="torch.float64"), kvcellar.ConfigError, "dtype torch.float64"),
    (OddTensor(device="cuda:0"), kvcellar.ConfigError, "indices is on device cuda:0"),
    (OddTensor(contiguous=False), kvcellar.ConfigError, "indices is not contiguous"),
    (Freed(), kvcellar.ConfigError, "indices: address 0"),
    (NoSize(), kvcellar.ConfigError, "no numel"),
    (Raises(), RuntimeError, "meta tensor"),
    ([0, "1", 2], TypeError, r"indices\[1\]: an int expected, not str"),
    ([0, 1.0, 2], TypeError, r"indices\[1\]: an int expected, not float"),
    ([0, 1, 2**63], kvcellar.ConfigError, r"indices\[2\].*too big|too large"),
    (7, TypeError, "indices: an int64 array, a tensor or a sequence of ints expected, not int"),
    (object(), TypeError, "indices: .* not object"),
    (indices(0, 1), kvcellar.ConfigError, "2 entries, 3 keys with index_stride 1 need 3"),
    ([0], kvcellar.ConfigError, "1 entries, 3 keys with index_stride 1 need 3"),
    (Tensor(array.array("q", [0])), kvcellar.ConfigError, "1 entries, 3 keys"),
    ([], kvcellar.ConfigError, "0 entries, 3 keys"),
    (None, kvcellar.ConfigError, "indices"),
])
def test_wrong_indices(one: Rig, form: Any, error: type[Exception], text: str) -> None:
    before = bytes(one.pages.memory)
    for call in (one.pool.get, one.pool.set):
        with pytest.raises(error, match=text):
            call(["a", "b", "c"], form)
    assert one.pool.exists(["a"]).ok == [False]
    assert one.pages.memory == before


def test_strides_that_make_no_sense(one: Rig) -> None:
    with pytest.raises(kvcellar.ConfigError, match="5 entries, 3 keys with index_stride 3 need 7"):
        one.pool.get(["a", "b", "c"], indices(*range(5)), index_stride=3)
    for stride in (0, 2**62, 2**64 - 1):
        with pytest.raises(kvcellar.ConfigError, match="index_stride"):
            one.pool.get(["a", "b", "c"], indices(*range(5)), index_stride=stride)
    for stride in (-1, 2**64):
        with pytest.raises(kvcellar.ConfigError, match=f"index_stride = {stride}"):
            one.pool.get(["a"], indices(0), index_stride=stride)
    with pytest.raises(TypeError, match="index_stride: an int expected, not str"):
        one.pool.get(["a"], indices(0), index_stride="1")


def test_an_index_of_no_page_is_an_error_of_its_page(one: Rig) -> None:
    result = one.pool.set(["a", "b", "c"], [0, 8, -1])
    assert result.statuses == ["ok", "error", "error"]
    assert result.causes[1:] == ["index", "index"]


# ---------------------------------------------------------------- buffers


@pytest.fixture
def two_parts(one: Rig) -> kvcellar.Pool:
    """A pool whose parts have no base: 8 and 16 bytes."""
    return one.namespace.pool("pair", [{"piece_bytes": 8, "piece_count": 1, "name": "k"},
                                       {"piece_bytes": 16, "piece_count": 1, "name": "v"}])


def test_tensors_without_memory(two_parts: kvcellar.Pool) -> None:
    """Freed ones are refused wherever a tensor may be given, empty ones are no error of theirs."""
    space = kvcellar.Store(mem()).namespace("x")
    for call in (lambda: two_parts.set(["a"], buffers=[Freed(), b"a" * 16]),
                 lambda: two_parts.get(["a"], buffers=[bytearray(8), Freed()]),
                 lambda: kvcellar.Transfer("get", two_parts, ["a"], buffers=[Freed()] * 2),
                 lambda: kvcellar.Transfer("get", two_parts, ["a"], Freed()),
                 lambda: space.put("p", "k", Freed()), lambda: space.get_into("p", "k", Freed()),
                 lambda: space.put_many("p", ["k"], [Freed()]),
                 lambda: space.get_many("p", ["k"], [Freed()])):
        with pytest.raises(kvcellar.ConfigError, match="address 0"):
            call()
    empty = Freed()
    empty.numel = lambda: 0  # type: ignore[method-assign]
    space.put("p", "empty", empty)
    assert space.get("p", "empty") == b""


def test_buffers_instead_of_indices(two_parts: kvcellar.Pool) -> None:
    assert two_parts.part_count == 2
    stored = two_parts.set(["a", "b"], buffers=[b"A" * 8, b"a" * 16, b"B" * 8, b"b" * 16])
    assert stored.ok == [True, True]
    plain, numbers = bytearray(8), numpy.zeros((4, 4), dtype=numpy.uint8)
    tensor, raw = Tensor(bytearray(8), dtype="torch.bfloat16", item_bytes=2), (ctypes.c_char * 16)()
    pair = (ctypes.addressof(raw), 16)
    assert two_parts.get(["b", "a"], buffers=[plain, numbers, tensor, pair]).ok == [True, True]
    assert (bytes(plain), numbers.tobytes()) == (b"B" * 8, b"b" * 16)
    assert (bytes(tensor.memory), raw.raw) == (b"A" * 8, b"a" * 16)
    plain.append(1)  # no longer held


def test_a_buffer_of_another_size_is_an_error_of_its_page(two_parts: kvcellar.Pool) -> None:
    result = two_parts.set(["a", "b"], buffers=[b"A" * 8, b"a" * 16, b"B" * 8, b"b" * 15])
    assert result.statuses == ["ok", "error"]
    assert result.causes[1] == "index"


@pytest.mark.parametrize(("buffers", "error", "text"), [
    ([bytearray(8)], kvcellar.ConfigError, "buffers has 1 entries, 1 keys of 2 parts need 2"),
    ([], kvcellar.ConfigError, "buffers has 0 entries"),
    ([bytearray(8), b"0" * 16], kvcellar.ConfigError, r"buffers\[1\].*not writable"),
    ([memoryview(b"0" * 8), bytearray(16)], kvcellar.ConfigError, r"buffers\[0\]"),
    ([bytearray(8), numpy.zeros(32, numpy.uint8)[::2]], kvcellar.ConfigError,
     r"buffers\[1\].*contig"),
    ([bytearray(8), "text"], TypeError, r"buffers\[1\]: a buffer, a CPU tensor or a pair"),
    ([bytearray(8), 5], TypeError, r"buffers\[1\]: .* not int"),
    ([bytearray(8), (1, 2, 3)], kvcellar.ConfigError, r"buffers\[1\]: a pair .* not 3 values"),
    ([bytearray(8), (0, 16)], kvcellar.ConfigError, r"buffers\[1\]: address 0"),
    ([bytearray(8), (-1, 16)], kvcellar.ConfigError, r"buffers\[1\] = -1"),
    ([bytearray(8), ("a", 16)], TypeError, r"buffers\[1\]: an int expected, not str"),
    ([bytearray(8), OddTensor(device="cuda:1")], kvcellar.ConfigError,
     r"buffers\[1\] is on device cuda:1"),
    ([bytearray(8), OddTensor(contiguous=False)], kvcellar.ConfigError, "not contiguous"),
    (bytearray(8), TypeError, "buffers: a sequence expected, not bytearray"),
    (7, TypeError, "buffers: a sequence expected, not int"),
])
def test_wrong_buffers(two_parts: kvcellar.Pool, buffers: Any, error: type[Exception],
                       text: str) -> None:
    with pytest.raises(error, match=text):
        two_parts.get(["a"], buffers=buffers)
    if isinstance(buffers, list):  # nothing is held after the error
        for buffer in buffers:
            if isinstance(buffer, bytearray):
                buffer.append(0)
                buffer.pop()


def test_indices_and_buffers_do_not_go_together(one: Rig, two_parts: kvcellar.Pool) -> None:
    with pytest.raises(kvcellar.ConfigError, match="both given"):
        two_parts.get(["a"], [0], buffers=[bytearray(8), bytearray(16)])
    for op, argument in (("exists", {"indices": [0]}), ("remove", {"buffers": [b""]})):
        with pytest.raises(kvcellar.ConfigError, match=f"{op} takes no {next(iter(argument))}"):
            kvcellar.Transfer(op, one.pool, ["a"], **argument)


# ---------------------------------------------------------------- pools


def test_layouts_share_pages() -> None:
    """What a layer-first pool stores, a page-first-direct one of the same model reads."""
    tokens, layers, heads, head_bytes, page_tokens = 8, 3, 2, 4, 2
    shape = {"token_count": tokens, "layer_count": layers, "head_count": heads,
             "head_bytes": head_bytes}
    source = numpy.arange(tokens * layers * heads * head_bytes, dtype=numpy.uint8)
    target = numpy.zeros_like(source)
    with rig(page_tokens=page_tokens) as it:
        writer = it.namespace.pool("shape", [{**shape, "base": source.ctypes.data}],
                                   layout="layer_first", owner=source)
        reader = it.namespace.pool("shape", [{**shape, "base": target.ctypes.data}],
                                   layout="page_first_direct", owner=target)
        assert writer.info()["page_bytes"] == page_tokens * layers * heads * head_bytes
        assert writer.info()["fingerprint"] == reader.info()["fingerprint"]
        assert writer.set(["a", "b", "c", "d"], range(4)).ok_count == 4
        assert reader.get(["a", "b", "c", "d"], range(4)).ok_count == 4
    by_layer = source.reshape(layers, tokens // page_tokens, page_tokens, heads * head_bytes)
    by_page = target.reshape(tokens // page_tokens, layers, page_tokens, heads * head_bytes)
    assert (by_page == by_layer.transpose(1, 0, 2, 3)).all()


def test_pieces_with_bases_of_their_own(one: Rig) -> None:
    layers = [bytearray(4 * 8) for _ in range(3)]
    views = [(ctypes.c_char * 32).from_buffer(layer) for layer in layers]
    pool = one.namespace.pool("pieces", [{"piece_bases": [ctypes.addressof(v) for v in views],
                                          "piece_bytes": 8, "page_stride_bytes": 8}],
                              page_count=4, owner=views)
    for number, layer in enumerate(layers):
        layer[8:16] = bytes([number + 1]) * 8
    assert pool.set(["a"], [1]).ok == [True]
    assert pool.get(["a"], [3]).ok == [True]
    assert [layer[24:32] for layer in layers] == [bytes([n + 1]) * 8 for n in range(3)]


def test_marker_pools(one: Rig) -> None:
    marker = one.namespace.pool("mark", marker=True)
    assert marker.part_count == 0
    assert marker.set(["a"]).ok == [True]
    assert marker.exists(["a", "b"]).ok == [True, False]


def test_pool_tells_about_itself(one: Rig) -> None:
    info = one.pool.info()
    assert (one.pool.name, one.pool.part_count) == ("kv", 1)
    assert info["page_bytes"] == PAGE_BYTES
    assert info["objects_per_page"] == 1
    assert isinstance(info["zero_copy"], bool)
    assert len(info["fingerprint"]) == 8
    place, = one.pool.where("a")
    assert (place["key"], place["pool"], place["namespace"]) == (b"a", "kv", one.namespace.id)
    assert repr(one.pool) == "<kvcellar.Pool 'kv'>"


@pytest.mark.parametrize(("arguments", "error", "text"), [
    ({"name": "UPPER"}, kvcellar.ConfigError, "name"),
    ({"name": None}, TypeError, "name: a str expected, not NoneType"),
    ({"name": 5}, TypeError, "name: a str expected, not int"),
    ({"name": "a\0b"}, kvcellar.ConfigError, "name has a NUL"),
    ({"parts": [5]}, TypeError, r"parts\[0\]: a dict expected, not int"),
    ({"parts": 5}, TypeError, "parts: a sequence expected"),
    ({"parts": [{"bytes": 5}]}, kvcellar.ConfigError, r"parts\[0\].bytes: there is no such field"),
    ({"parts": [{5: 5}]}, TypeError, "parts: a key: a str expected, not int"),
    ({"parts": [{"piece_bytes": "5"}]}, TypeError, r"parts\[0\].piece_bytes: an int expected"),
    ({"parts": [{"piece_bytes": -5}]}, kvcellar.ConfigError, r"parts\[0\].piece_bytes = -5"),
    ({"parts": [{"piece_count": 2**32}]}, kvcellar.ConfigError, r"parts\[0\].piece_count"),
    ({"parts": [{"piece_bases": [1, 2], "piece_count": 3}]}, kvcellar.ConfigError,
     r"parts\[0\].piece_bases has 2 addresses, piece_count is 3"),
    ({"parts": [{"piece_bases": [1, "2"]}]}, TypeError, r"parts\[0\].piece_bases: an int"),
    ({"parts": [{"name": "x" * 17, "piece_bytes": 8, "piece_count": 1}]}, kvcellar.ConfigError,
     "name"),
    ({"parts": []}, kvcellar.ConfigError, "part"),
    ({"layout": "tiled"}, kvcellar.ConfigError, "layout = 'tiled': one of explicit, page_first"),
    ({"byte_order": 3}, TypeError, "byte_order: a str expected"),
    ({"page_count": 1.5}, TypeError, "page_count: an int expected, not float"),
    ({"per_rank": 1}, TypeError, "per_rank: a bool or None expected, not int"),
    ({"marker": "yes"}, TypeError, "marker: a bool expected, not str"),
    ({"unknown": 1}, TypeError, "unexpected keyword argument 'unknown'"),
])
def test_wrong_pools(one: Rig, arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        one.namespace.pool(**{"name": "x", "parts": [one.pages.part()], **arguments})
    one.namespace.pool("x", [one.pages.part()], page_count=8).close()


def test_owner_lives_as_long_as_the_pool(one: Rig) -> None:
    owner = Pages()
    before = sys.getrefcount(owner)
    pool = owner.pool(one.namespace, "owned")
    assert sys.getrefcount(owner) == before + 1
    pool.close()
    del pool
    assert sys.getrefcount(owner) == before


# ---------------------------------------------------------------- several transfers


def test_run_takes_several_pools(one: Rig) -> None:
    other = Pages(4, 64)
    pool = other.pool(one.namespace, "mamba")
    results = one.store.run([
        kvcellar.Transfer("set", one.pool, ["a", "b"], [0, 1], parent="p", depth=2),
        kvcellar.Transfer("set", pool, ["a"], [2]),
        kvcellar.Transfer("exists", pool, ["zzz"]),
    ])
    assert [result.statuses for result in results] == [["ok", "ok"], ["ok"], ["miss"]]
    read = kvcellar.Transfer("get", one.pool, ["b"], [5])
    assert (len(read), repr(read)) == (1, "<kvcellar.Transfer: get of 1 pages of pool 'kv'>")
    for _ in range(3):
        one.pages.fill(5, 0)
        assert one.store.run([read, read])[1].ok == [True]
        assert one.pages[5] == one.pages[1]


def test_a_transfer_keeps_what_it_was_made_of(one: Rig) -> None:
    keys, numbers = ["a", "b"], array.array("q", [0, 1])
    transfer = kvcellar.Transfer("set", one.pool, keys, numbers)
    keys.clear()
    numbers[0] = 99
    numbers.append(5)
    assert one.store.run([transfer])[0].ok == [True, True]
    assert one.pool.exists(["a", "b"]).ok_count == 2


@pytest.mark.parametrize(("arguments", "error", "text"), [
    (("move", "POOL", ["a"]), kvcellar.ConfigError, "op = 'move': one of exists, get, set, remove"),
    (("get", "pool", ["a"]), TypeError, "pool: a Pool expected, not str"),
    (("get", "POOL"), TypeError, "missing required argument 'keys'"),
    (("get", "POOL", ["a"], [0], 1), TypeError, "at most 4 positional arguments"),
    (("get", "POOL", ["a"], [0, 1], {"depth": -1}), kvcellar.ConfigError, "depth = -1"),
    (("get", "POOL", ["a"], [0], {"parent": 5}), TypeError, "parent: a str or bytes expected"),
    (("get", "POOL", ["a"], [0], {"timeout_ms": 2**32}), kvcellar.ConfigError, "timeout_ms"),
    (("get", "POOL", ["a"], [0], {"keys": ["b"]}), TypeError, "multiple values"),
])
def test_wrong_transfers(one: Rig, arguments: tuple[Any, ...], error: type[Exception],
                         text: str) -> None:
    named = arguments[-1] if isinstance(arguments[-1], dict) else {}
    placed = [one.pool if value == "POOL" else value
              for value in arguments if not isinstance(value, dict)]
    with pytest.raises(error, match=text):
        kvcellar.Transfer(*placed, **named)


def test_flags_that_an_operation_does_not_have(one: Rig) -> None:
    for op, flag in (("get", {"overwrite": True}), ("set", {"stop_at_miss": True})):
        with pytest.raises(kvcellar.ConfigError, match="transfer 0"):
            one.store.run([kvcellar.Transfer(op, one.pool, ["a"], [0], **flag)])


def test_run_refuses_what_is_not_its_own(one: Rig) -> None:
    with rig() as other, pytest.raises(kvcellar.ConfigError, match="transfer 1: .*store"):
        one.store.run([kvcellar.Transfer("exists", one.pool, ["a"]),
                       kvcellar.Transfer("exists", other.pool, ["a"])])
    with pytest.raises(TypeError, match="transfers: Transfer objects expected, not str"):
        one.store.run(["transfer"])
    with pytest.raises(TypeError, match="transfers: a sequence expected, not Transfer"):
        one.store.run(kvcellar.Transfer("exists", one.pool, ["a"]))


# ---------------------------------------------------------------- started batches


def test_started_batches(one: Rig) -> None:
    batch = one.store.start([kvcellar.Transfer("set", one.pool, ["a"], [0]),
                             kvcellar.Transfer("set", one.pool, ["b", "c"], [1, 2])])
    assert select.select([batch], [], [], 30)[0] == [batch]
    assert batch.done() is True
    assert [result.statuses for result in batch.wait(0)] == [["ok"], ["ok", "ok"]]
    assert batch.wait() == batch.wait()
    batch.cancel()
    assert one.pool.exists(["a", "b", "c"]).ok_count == 3
    assert one.store.start([]).wait() == []


def test_waiting_for_a_batch_that_takes_long() -> None:
    with rig(fault("read stall_ms=300 name=*.kv.*")) as it:
        it.pool.set(["a"], [0])
        batch = it.store.start([kvcellar.Transfer("get", it.pool, ["a"], [1])])
        assert batch.wait(0) is None
        assert batch.wait(-1) is None
        assert batch.wait(0.01) is None
        assert batch.done() is False
        with pytest.raises(kvcellar.Error, match="batch") as caught:
            it.pool.close()
        assert caught.value.errno == errno.EBUSY
        assert batch.wait()[0].ok == [True]
        assert it.pages[1] == it.pages[0]
        with pytest.raises(kvcellar.ConfigError, match="not a number"):
            batch.wait(float("nan"))
        with pytest.raises(TypeError):
            batch.wait("1")


def test_closing_the_store_ends_its_batches() -> None:
    it = Rig(fault("read stall_ms=60000 name=*.kv.*", io_threads=1))
    it.pool.set(["a"], [0])
    batches = [it.store.start([kvcellar.Transfer("get", it.pool, ["a"], [1], timeout_ms=500)])
               for _ in range(3)]
    it.store.close()
    for batch in batches:
        result, = batch.wait()
        assert result.statuses[0] in ("timeout", "skipped")
    with pytest.raises(ValueError, match="closed"):
        batches[0].fileno()


def test_a_dropped_batch_is_cancelled() -> None:
    with rig(fault("read stall_ms=60000 name=*.kv.*")) as it:
        it.pool.set(["a"], [0])
        batch = it.store.start([kvcellar.Transfer("get", it.pool, ["a"], [1], timeout_ms=300)])
        del batch
        assert it.pool.exists(["a"]).ok == [True]
        it.pool.close()
