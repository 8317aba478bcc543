# SPDX-License-Identifier: Apache-2.0
"""Memory of tensors for the tensor calls of HiCacheStorage (get, set, batch_get, batch_set).

The library moves contiguous host memory. A tensor that is not, or that is on a GPU, goes through a
contiguous copy in host memory.
"""

from __future__ import annotations

from typing import Any


class TensorError(Exception):
    """What was passed is neither a tensor, nor a buffer, nor an address with a size."""


class Memory:
    """address, nbytes: contiguous host memory, or address 0 for a buffer object. buffer: what the
    library takes for it. Keeps what owns the memory alive."""

    __slots__ = ("address", "nbytes", "buffer", "owner")

    def __init__(self, address: int, nbytes: int, buffer: Any, owner: Any) -> None:
        self.address = address
        self.nbytes = nbytes
        self.buffer = buffer
        self.owner = owner


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "data_ptr") and hasattr(value, "element_size")


def _is_lazy(tensor: Any) -> bool:
    """A view whose bytes are not its values yet: conj() and neg views of torch."""
    return any(getattr(tensor, name, bool)() for name in ("is_conj", "is_neg"))


def _resolved(tensor: Any) -> Any:
    return tensor.resolve_conj().resolve_neg() if _is_lazy(tensor) else tensor


def _of_tensor(tensor: Any) -> Memory:
    """A contiguous tensor in host memory."""
    nbytes = int(tensor.numel()) * int(tensor.element_size())
    if nbytes == 0:
        return Memory(0, 0, bytearray(), tensor)
    address = int(tensor.data_ptr())
    return Memory(address, nbytes, (address, nbytes), tensor)


def _of_address(address: Any, nbytes: Any) -> Memory:
    if nbytes is None or int(nbytes) < 0 or int(address) <= 0:
        raise TensorError("an address needs its size in bytes")
    return Memory(int(address), int(nbytes), (int(address), int(nbytes)), None)


def _of_buffer(value: Any, *, writable: bool) -> Memory:
    try:
        view = memoryview(value)
    except TypeError:
        raise TensorError(f"{type(value).__name__} is no tensor, buffer or address") from None
    if not view.c_contiguous or (writable and view.readonly):
        kind = type(value).__name__
        raise TensorError(f"the memory of this {kind} is not contiguous, or read-only")
    return Memory(0, view.nbytes, value, value)


def source_of(value: Any, size: Any = None) -> Memory:
    """Memory to store from. Raises TensorError."""
    if _is_tensor(value):
        if value.device.type != "cpu":
            value = value.cpu()
        return _of_tensor(_resolved(value).contiguous())
    if isinstance(value, int):
        return _of_address(value, size)
    return _of_buffer(value, writable=False)


class Target(Memory):
    """Memory to read into. finish() gives the caller's tensor its bytes."""

    __slots__ = ("caller", "staged")

    def __init__(self, value: Any, size: Any = None) -> None:
        self.caller = value
        self.staged = False
        if _is_tensor(value):
            tensor = value
            if value.device.type != "cpu" or not value.is_contiguous() or _is_lazy(value):
                tensor = _empty_like(value)
                self.staged = True
            memory = _of_tensor(tensor)
        elif isinstance(value, int):
            self.caller = None  # there is no tensor to return
            memory = _of_address(value, size)
        else:
            memory = _of_buffer(value, writable=True)
        super().__init__(memory.address, memory.nbytes, memory.buffer, memory.owner)

    def finish(self) -> Any:
        """After the bytes have been read: the caller's tensor; None for an address."""
        if self.staged:
            self.caller.copy_(self.owner)
        return self.caller


def _empty_like(tensor: Any) -> Any:
    import torch

    return torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="cpu")
