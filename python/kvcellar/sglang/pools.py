# SPDX-License-Identifier: Apache-2.0
"""How the pages of an SGLang host pool lie in memory, found out once, when the pool is registered.

A host pool says where a page is by get_page_buffer_meta(indices), page by page. Asked for a few
pages it shows that the addresses grow by a constant stride, and then the C library computes them
itself: one call per batch, with the index tensor as it is. `plans()` yields what fits, best first:

    MEMORY   every piece of a page lies at a constant stride: addresses are known to the library
    BUFFERS  pages move about in the pool (shared arenas): its addresses are asked for in each call
    COPY     no addresses: get_data_page() and set_from_flat_data_page(), through a bounce buffer
    MARKER   no bytes at all (the logical anchor of DeepSeek V4): the keys alone are stored

Where the pool does not offer addresses for its layout, they are taken from the view that
get_data_page(flat=False) returns (DSA indexer, layer_first), from its buffers of one row per slot
(Mamba with side states), or of one block per page (page_unified).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

MEMORY = "memory"
BUFFERS = "buffers"
COPY = "copy"
MARKER = "marker"

PARTS_MAX = 64
PIECES_MAX = 256
MARKER_BYTES = 4096
PEER_ALIGNMENT = 4096

# Pools of one order share objects. page_first_direct and gathered layer_first have the same bytes.
BYTE_ORDERS = {
    "page_first": "token_major",
    "page_first_direct": "layer_major",
    "layer_first": "layer_major",
    "page_head": "head_major",
}


class NoPlan(Exception):
    """Why a way to reach the pages does not fit this pool."""


@dataclass(frozen=True)
class Piece:
    """Addresses of one contiguous run of bytes in every page."""

    base: int
    page_stride: int
    nbytes: int


@dataclass(frozen=True)
class Plan:
    """One way to reach the pages of a pool.

    parts: per part of a page its pieces in stored order; for COPY one part without an address.
    page_tokens: indices per page, the first of which addresses it. groups: head groups per part,
    each a piece of 1/groups of the bytes. reason: why pages are copied in Python, or "".
    """

    kind: str
    parts: tuple[tuple[Piece, ...], ...] = ()
    page_tokens: int = 1
    page_count: int = 0
    byte_order: str = "token_major"
    format_tag: str = ""
    groups: int = 1
    copy_mode: bool = False
    reason: str = ""
    regions: tuple[tuple[int, int], ...] = ()
    owner: Any = field(default=None, compare=False, repr=False)

    @property
    def part_bytes(self) -> tuple[int, ...]:
        """Payload of each part of a page on this rank."""
        return tuple(sum(piece.nbytes for piece in part) for part in self.parts)

    @property
    def page_bytes(self) -> int:
        return sum(self.part_bytes)

    def holds(self, address: int, nbytes: int) -> bool:
        """Whether these bytes lie in the pool's memory, as far as that is known."""
        if not self.regions:
            return True
        return any(
            at <= address and address + nbytes <= at + length for at, length in self.regions
        )

    def part_dicts(self, *, with_memory: bool) -> list[dict[str, Any]]:
        """kvcellar's parts: with addresses, or for transfers that bring buffers."""
        return [self._part_dict(part, with_memory) for part in self.parts]

    def _part_dict(self, pieces: Sequence[Piece], with_memory: bool) -> dict[str, Any]:
        if not with_memory:
            nbytes = sum(piece.nbytes for piece in pieces) // self.groups
            return {"piece_bytes": nbytes, "piece_count": 1}
        part: dict[str, Any] = {
            "piece_bytes": pieces[0].nbytes // self.groups,
            "piece_count": len(pieces),
            "page_stride_bytes": pieces[0].page_stride,
        }
        if self.groups > 1:
            part["group_stride_bytes"] = part["piece_bytes"]
        strides = {b.base - a.base for a, b in zip(pieces, pieces[1:])}
        if len(strides) <= 1 and all(stride >= pieces[0].nbytes for stride in strides):
            part["base"] = pieces[0].base
            part["piece_stride_bytes"] = strides.pop() if strides else pieces[0].nbytes
        else:
            part["piece_bases"] = [piece.base for piece in pieces]
        return part


def page_tokens_of(pool: Any) -> int:
    """Indices per page: tokens of a page as the radix tree counts them (all of a DCP group)."""
    if int(getattr(pool, "dcp_size", 1) or 1) > 1:
        return int(pool.logical_page_size)
    return int(getattr(pool, "page_size", 1) or 1)


def page_count_of(pool: Any) -> int:
    if int(getattr(pool, "dcp_size", 1) or 1) > 1:
        return int(pool.logical_size) // int(pool.logical_page_size)
    return int(pool.size) // page_tokens_of(pool)


def is_marker(pool: Any, anchor: bool) -> bool:
    """The anchor without tensors: its pages have no bytes, yet their keys are looked up."""
    return anchor and getattr(pool, "kv_buffer", None) is None and not pool_tensors(pool)


def has_heads_of_this_rank(pool: Any) -> bool:
    """K and V by attention head: different bytes on each tp rank even beside an MLA pool."""
    return hasattr(pool, "v_buffer") and hasattr(pool, "head_num")


def plans(
    pool: Any, *, anchor: bool, groups: int = 1, direct_io: bool = False, peer_naming: bool = False
) -> Iterator[Plan]:
    """The ways that fit, best first; the caller takes the first one that the library accepts.

    groups: head groups that a page is split into (tp_lcm_size / tp_size); only for page_head.
    peer_naming: copy mode is chosen as HiCacheNixl chooses it, since it is part of the names there.
    Raises NoPlan, with the reasons, when nothing is left.
    """
    layout = str(getattr(pool, "layout", ""))
    base = Plan(
        kind=MEMORY,
        page_tokens=page_tokens_of(pool),
        page_count=page_count_of(pool),
        byte_order=BYTE_ORDERS.get(layout, "layer_major"),
        format_tag=_format_tag(pool, layout),
        regions=regions_of(pool),
        owner=tuple(pool_tensors(pool)),
    )
    if is_marker(pool, anchor):
        yield replace(base, kind=MARKER, copy_mode=True)
        return
    base = replace(base, copy_mode=peer_naming and not _peer_zero_copy(pool, anchor, direct_io))
    reasons: list[str] = []
    for way in (_plan_from_meta, _plan_from_view, _plan_from_rows, _plan_translated, _plan_copy):
        if groups > 1 and way is not _plan_from_meta:
            continue
        try:
            plan = way(pool, base)
            if groups > 1:
                plan = _with_groups(pool, plan, groups)
        except NoPlan as error:
            reasons.append(str(error))
            continue
        yield replace(plan, reason="" if plan.kind == MEMORY else "; ".join(reasons))
    raise NoPlan("; ".join(reasons) or "the library accepts none of the ways to its pages")


# ---------------------------------------------------------------- tensors


def pool_tensors(pool: Any) -> list[Any]:
    """The tensors that hold the pool's pages, each once."""
    found: list[Any] = []
    hybrid = getattr(pool, "get_hybrid_pool_buffer", None)
    if hybrid is not None:
        try:
            found.extend(_flat(hybrid()))
        except (AttributeError, TypeError, NotImplementedError):  # a layout without them
            pass
    for name in (
        "kv_buffer",
        "k_buffer",
        "v_buffer",
        "index_k_buffer",
        "index_k_scale_buffer",
        "index_k_with_scale_buffer",
        "_host_page_buffer_view",
    ):
        found.extend(_flat(getattr(pool, name, None)))
    seen: dict[tuple[int, int], Any] = {}
    for tensor in found:
        first, end = _extent(tensor)
        if end > first:
            seen.setdefault((first, end), tensor)
    return list(seen.values())


def regions_of(pool: Any) -> tuple[tuple[int, int], ...]:
    """(address, bytes) of the pool's memory; views that overlap are one region."""
    merged: list[list[int]] = []
    for first, end in sorted(_extent(tensor) for tensor in pool_tensors(pool)):
        if merged and first < merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([first, end])
    return tuple((first, end - first) for first, end in merged)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)
    elif hasattr(value, "data_ptr") and hasattr(value, "element_size"):
        yield value


def _extent(tensor: Any) -> tuple[int, int]:
    """First byte and the one after the last that the tensor's elements occupy."""
    first = int(tensor.data_ptr())
    shape = [int(n) for n in tensor.shape]
    if 0 in shape:
        return first, first
    steps = sum((n - 1) * int(stride) for n, stride in zip(shape, tensor.stride()))
    return first, first + (steps + 1) * int(tensor.element_size())


def _check_inside(plan: Plan) -> None:
    """Every byte of every page lies in the pool's tensors; else they were misunderstood."""
    last = plan.page_count - 1
    for part in plan.parts:
        for piece in part:
            first = min(piece.base, piece.base + last * piece.page_stride)
            end = max(piece.base, piece.base + last * piece.page_stride) + piece.nbytes
            if not plan.holds(first, end - first):
                raise NoPlan("the addresses it gives are outside of its tensors")


# ---------------------------------------------------------------- the ways


def make_indices(first: int, count: int) -> Any:
    """Indices first .. first + count - 1 as SGLang passes them: an int64 tensor where torch is."""
    torch = sys.modules.get("torch")
    values = range(first, first + count)
    return array("q", values) if torch is None else torch.tensor(list(values), dtype=torch.int64)


def _pages_to_ask(page_count: int) -> list[int]:
    return sorted({page for page in (0, 1, 2, page_count - 1) if 0 <= page < page_count})


def page_addresses(pool: Any, indices: Any) -> tuple[list[int], list[int]]:
    """Addresses and sizes from the pool. Raises NoPlan when it has none for its layout."""
    if not hasattr(pool, "get_page_buffer_meta"):
        raise NoPlan("it gives no addresses")
    try:
        meta = pool.get_page_buffer_meta(indices)
    except (NotImplementedError, ValueError, AttributeError, AssertionError, TypeError) as error:
        raise NoPlan(f"it gives no addresses ({error or type(error).__name__})") from None
    if not meta or not meta[0] or len(meta[0]) != len(meta[1]):
        raise NoPlan("it gives no addresses")
    return [int(at) for at in meta[0]], [int(nbytes) for nbytes in meta[1]]


def _plan_from_meta(pool: Any, base: Plan) -> Plan:
    if getattr(pool, "shared_allocation_domain", None) is not None:
        raise NoPlan("its pages move about in an arena that pools share")
    asked = _pages_to_ask(base.page_count)
    answers = [
        page_addresses(pool, make_indices(page * base.page_tokens, base.page_tokens))
        for page in asked
    ]
    pieces = _linear(asked, [at for at, _ in answers], [nbytes for _, nbytes in answers])
    plan = replace(base, parts=_group(pool, pieces))
    _check_inside(plan)
    return plan


def _linear(
    asked: list[int], addresses: list[list[int]], sizes: list[list[int]]
) -> list[Piece]:
    """Pieces whose address is base + page * stride for every page that was asked for."""
    if not asked:
        raise NoPlan("it has no pages")
    if any(size != sizes[0] for size in sizes) or any(n <= 0 for n in sizes[0]):
        raise NoPlan("its pages differ in size")
    if any(at <= 0 for page in addresses for at in page):
        raise NoPlan("its memory was given up")
    pieces = []
    for j, first in enumerate(addresses[0]):
        stride = addresses[1][j] - first if len(asked) > 1 else sizes[0][j]
        if stride <= 0:
            raise NoPlan("its pages have no constant distance")
        for page, at in zip(asked, addresses):
            if at[j] != first + page * stride:
                raise NoPlan("its pages have no constant distance")
        pieces.append(Piece(first, stride, sizes[0][j]))
    return pieces


def _group(pool: Any, pieces: list[Piece]) -> tuple[tuple[Piece, ...], ...]:
    """Pieces to parts: layer_first lists K, V of layer 0, K, V of layer 1, ...; they are gathered
    to K of all layers, V of all layers, which is what page_first_direct has in one piece."""
    layers = int(getattr(pool, "layer_num", 0) or 0)
    parts = len(pieces)
    if getattr(pool, "layout", "") == "layer_first" and layers > 1 and len(pieces) % layers == 0:
        parts = len(pieces) // layers
    if parts > PARTS_MAX or len(pieces) > PIECES_MAX:
        raise NoPlan(f"a page lies in {len(pieces)} pieces")
    grouped = tuple(tuple(pieces[j::parts]) for j in range(parts))
    for part in grouped:
        if len({(piece.nbytes, piece.page_stride) for piece in part}) > 1:
            raise NoPlan("the pieces of a part differ in size")
    return grouped


def _plan_from_view(pool: Any, base: Plan) -> Plan:
    """From the strides of the view that get_data_page(flat=False) returns."""
    if getattr(pool, "shared_allocation_domain", None) is not None:
        raise NoPlan("its pages move about")
    asked = _pages_to_ask(base.page_count)
    addresses, sizes = [], []
    for page in asked:
        try:
            view = pool.get_data_page(page * base.page_tokens, flat=False)
            at, nbytes = _runs(view)
        except (NotImplementedError, ValueError, AttributeError, TypeError, IndexError) as error:
            raise NoPlan(f"no view of a page ({error or type(error).__name__})") from None
        addresses.append(at)
        sizes.append(nbytes)
    if not base.regions:
        raise NoPlan("no tensors of the pool are known")
    pieces = _linear(asked, addresses, sizes)
    parts = 2 if has_heads_of_this_rank(pool) and len(pieces) % 2 == 0 else 1
    size = len(pieces) // parts
    plan = replace(
        base, parts=tuple(tuple(pieces[j * size : (j + 1) * size]) for j in range(parts))
    )
    _check_inside(plan)
    return plan


def _runs(view: Any) -> tuple[list[int], list[int]]:
    """Contiguous runs of a strided tensor, in its element order."""
    nbytes = int(view.element_size())
    dims = [(int(n), int(s) * nbytes) for n, s in zip(view.shape, view.stride()) if int(n) != 1]
    while dims and dims[-1][1] == nbytes:
        nbytes *= dims.pop()[0]
    offsets = [0]
    for count, stride in dims:
        if stride < 0 or len(offsets) * count > PIECES_MAX:
            raise NoPlan("a page lies in too many pieces")
        offsets = [at + i * stride for at in offsets for i in range(count)]
    first = int(view.data_ptr())
    return [first + at for at in offsets], [nbytes] * len(offsets)


def _plan_from_rows(pool: Any, base: Plan) -> Plan:
    """From buffers with one contiguous row per page: their first dimension counts the pages."""
    if getattr(pool, "shared_allocation_domain", None) is not None:
        raise NoPlan("its pages move about")
    buffers = list(base.owner)
    whole = getattr(pool, "kv_buffer", None)
    if getattr(pool, "layout", "") == "page_unified" and hasattr(whole, "data_ptr"):
        buffers = [whole]
    elif base.page_tokens != 1:
        raise NoPlan("its buffers are not by page")
    parts = []
    for buffer in buffers:
        rows = int(buffer.shape[0])
        runs = _runs(buffer[0])[1] if rows else []
        if rows < base.page_count or len(runs) != 1:
            raise NoPlan("its buffers have no row per page")
        stride = int(buffer.stride()[0]) * int(buffer.element_size())
        parts.append((Piece(int(buffer.data_ptr()), stride, runs[0]),))
    plan = replace(base, parts=tuple(parts))
    if not parts or len(parts) > PARTS_MAX:
        raise NoPlan("its buffers have no row per page")
    if getattr(pool, "layout", "") != "page_unified" and plan.page_bytes != flat_page_bytes(pool):
        raise NoPlan("its rows are not the whole page")
    _check_inside(plan)
    return plan


def _plan_translated(pool: Any, base: Plan) -> Plan:
    """Addresses of each call; one piece per part."""
    if getattr(pool, "shared_allocation_domain", None) is None:
        asked = _pages_to_ask(base.page_count)
    else:
        asked = []  # a page has an address only while it is allocated
    sizes = [int(getattr(pool, "item_bytes", 0) or 0)]
    for page in asked[:1]:
        at, sizes = page_addresses(pool, make_indices(page * base.page_tokens, base.page_tokens))
        if len(at) > PARTS_MAX:
            raise NoPlan(f"a page lies in {len(at)} pieces")
    if any(nbytes <= 0 for nbytes in sizes):
        raise NoPlan("the size of its pages is not known")
    return replace(
        base, kind=BUFFERS, parts=tuple((Piece(0, 0, nbytes),) for nbytes in sizes)
    )


def flat_page_bytes(pool: Any) -> int:
    """Bytes of the pool's flat page. Raises NoPlan when it has none."""
    try:
        page = pool.get_dummy_flat_data_page()
        return int(page.numel()) * int(page.element_size())
    except (NotImplementedError, ValueError, AttributeError, TypeError) as error:
        raise NoPlan(f"it has no flat page ({error or type(error).__name__})") from None


def _plan_copy(pool: Any, base: Plan) -> Plan:
    nbytes = flat_page_bytes(pool)
    if nbytes <= 0:
        raise NoPlan("its flat page is empty")
    return replace(base, kind=COPY, parts=((Piece(0, 0, nbytes),),))


# ---------------------------------------------------------------- head groups


def _with_groups(pool: Any, plan: Plan, groups: int) -> Plan:
    """The plan with its parts split into head groups, checked against what the pool says."""
    if getattr(pool, "layout", "") != "page_head":
        raise NoPlan("head groups need the layout page_head")
    split = getattr(pool, "get_split_heads_page_buffer_meta", None)
    if split is None or any(len(part) != 1 or part[0].nbytes % groups for part in plan.parts):
        raise NoPlan(f"its heads cannot be split into {groups} groups")
    for page in _pages_to_ask(plan.page_count):
        want = []
        for group in range(groups):
            for (piece,) in plan.parts:
                nbytes = piece.nbytes // groups
                want.append((piece.base + page * piece.page_stride + group * nbytes, nbytes))
        try:
            indices = make_indices(page * plan.page_tokens, plan.page_tokens)
            meta = split(indices, groups)
        except (NotImplementedError, ValueError, AssertionError) as error:
            raise NoPlan(f"its heads cannot be split into {groups} groups ({error})") from None
        if [(int(at), int(n)) for at, n in zip(*meta)] != want:
            raise NoPlan("its head groups lie elsewhere than its pages")
    return replace(plan, groups=groups)


# ---------------------------------------------------------------- formats


def dtype_text(pool: Any, kv_cache_dtype: str | None, *, tensors: bool) -> str | None:
    """The logical dtype of a pool: "bfloat16"; where it stores plain bytes, what SGLang was told
    to keep in them ("fp8_e4m3"). tensors: of all its tensors, for pools of several."""
    found = [getattr(tensor, "dtype", None) for tensor in pool_tensors(pool)] if tensors else []
    names = []
    for dtype in found or [getattr(pool, "dtype", None)]:
        name = str(dtype).removeprefix("torch.")
        if name in ("uint8", "int8") and kv_cache_dtype:
            name = kv_cache_dtype
        if dtype is not None and name not in names:
            names.append(name)
    return "+".join(names) or None


def _format_tag(pool: Any, layout: str) -> str:
    """What tells page formats of equal size and order apart, beside the dtype."""
    if layout in BYTE_ORDERS:
        return ""
    unified = getattr(pool, "page_unified_layout", None)
    groups = getattr(unified, "head_group_num", None)
    return f";{layout}" if groups is None else f";{layout}-{groups}"


def _peer_zero_copy(pool: Any, anchor: bool, direct_io: bool) -> bool:
    """Whether HiCacheNixl stores the parts of this pool one by one (sglang 0.5.23, observed)."""
    if anchor:
        if getattr(pool, "layout", "") not in ("page_first", "page_first_direct"):
            return False
    else:
        if not hasattr(pool, "get_page_buffer_meta"):
            return False
        if not getattr(pool, "get_hybrid_pool_buffer", list)():
            return False
    return not direct_io or bool(pool.is_stride_page_aligned(PEER_ALIGNMENT))
