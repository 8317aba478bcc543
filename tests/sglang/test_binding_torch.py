# SPDX-License-Identifier: Apache-2.0
"""Real tensors as indices and as memory of the extension module."""

import itertools
from collections.abc import Iterator

import pytest
import torch

import kvcellar

_places = itertools.count()
PAGES, ELEMENTS = 8, 64


@pytest.fixture
def namespace() -> Iterator[kvcellar.Namespace]:
    config = {"plugin": {"mem": {"active": True}}, "storage_dirs": [f"/mem-torch-{next(_places)}"]}
    with kvcellar.Store(config) as store:
        yield store.namespace("model", identity="test", page_tokens=4)


def pool_over(namespace: kvcellar.Namespace, tensor: torch.Tensor, **options: bool) -> kvcellar.Pool:
    page_bytes = tensor[0].numel() * tensor.element_size()
    return namespace.pool("kv", [{"base": tensor.data_ptr(), "piece_bytes": page_bytes,
                                  "piece_count": 1, "page_stride_bytes": page_bytes}],
                          page_count=len(tensor), owner=tensor, **options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn,
                                   torch.float32, torch.float64, torch.int32, torch.int64])
def test_pages_of_each_dtype(namespace: kvcellar.Namespace, dtype: torch.dtype) -> None:
    memory = torch.randn(PAGES, ELEMENTS).to(dtype)
    pool = pool_over(namespace, memory)
    assert pool.set(["a", "b"], torch.tensor([0, 3])).ok == [True, True]
    assert pool.get(["b", "a"], torch.tensor([5, 6])).ok == [True, True]
    assert memory[5].view(torch.uint8).equal(memory[3].view(torch.uint8))
    assert memory[6].view(torch.uint8).equal(memory[0].view(torch.uint8))
    target = torch.zeros(ELEMENTS, dtype=dtype)
    assert namespace.put("side", "k", memory[1])
    assert namespace.get_into("side", "k", target) == target.numel() * target.element_size()
    assert target.view(torch.uint8).equal(memory[1].view(torch.uint8))


def test_token_indices_as_the_controller_has_them(namespace: kvcellar.Namespace) -> None:
    memory = torch.arange(PAGES * ELEMENTS).reshape(PAGES, ELEMENTS)
    pool = pool_over(namespace, memory, token_indices=True)
    tokens = torch.cat([torch.arange(page * 4, page * 4 + 4) for page in (2, 0, 7)])
    assert pool.set(["a", "b", "c"], tokens, index_stride=4).ok_count == 3
    assert pool.get(["c"], tokens[4:8], index_stride=4).ok == [True]
    assert memory[0].equal(memory[7])


@pytest.mark.parametrize(("indices", "text"), [
    (torch.tensor([0, 1], dtype=torch.int32), "dtype torch.int32: int64 expected"),
    (torch.tensor([0.0, 1.0], dtype=torch.float64), "dtype torch.float64"),
    (torch.arange(4)[::2], "indices is not contiguous"),
    (torch.arange(2, device="meta"), "indices is on device meta"),
    (torch.arange(1), "1 entries, 2 keys with index_stride 1 need 2"),
])
def test_wrong_indices(namespace: kvcellar.Namespace, indices: torch.Tensor, text: str) -> None:
    pool = pool_over(namespace, torch.zeros(PAGES, ELEMENTS))
    for call in (pool.get, pool.set):
        with pytest.raises(kvcellar.ConfigError, match=text):
            call(["a", "b"], indices)


def test_wrong_memory(namespace: kvcellar.Namespace) -> None:
    for tensor, text in ((torch.zeros(8, 8)[:, ::2], "not contiguous"),
                         (torch.zeros(8, device="meta"), "on device meta")):
        with pytest.raises(kvcellar.ConfigError, match=text):
            namespace.put("side", "k", tensor)
        with pytest.raises(kvcellar.ConfigError, match=text):
            namespace.get_into("side", "k", tensor)
