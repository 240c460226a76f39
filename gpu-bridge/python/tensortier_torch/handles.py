"""What autograd keeps in place of a tensor: the tensor itself, its bytes in the pool, or how to compute it again."""
import threading

import torch


def storage_of(tensor):
    """The untyped storage of a tensor, in old and new versions of torch."""
    if hasattr(tensor, "untyped_storage"):
        return tensor.untyped_storage()
    storage = tensor.storage()
    return storage.untyped() if hasattr(storage, "untyped") else storage._storage


def bytes_of(storage):
    """The storage as a byte tensor that shares its memory."""
    return torch.empty(0, dtype=torch.uint8).set_(storage)


class Left:
    """A storage whose bytes are in the pool."""

    def __init__(self, pool, source):
        self.pool = pool
        self.block = pool.take(source.numel())
        self.block.copy_(source)
        self.handles = 0
        self.asked = 0
        self.lock = threading.Lock()
        self.fetched = None

    def fetch(self):
        """The bytes back in ordinary memory; one copy for all who ask until all have asked."""
        with self.lock:
            if self.fetched is None:
                self.fetched = torch.empty(self.block.numel(), dtype=torch.uint8)
                self.fetched.copy_(self.block)
            return self.fetched

    def hand_over(self):
        """As `fetch`, for a handle: once each has asked, the bytes belong to autograd alone."""
        found = self.fetch()
        self.asked += 1
        if self.asked >= self.handles:
            self.asked, self.fetched = 0, None
        return found

    def __del__(self):
        self.pool.give(self.block)


class Kept:
    """A tensor that stays where it is. With hooks, autograd does not look whether it has changed: it is done here."""

    __slots__ = ("kept", "version", "number", "record")

    def __init__(self, kept, number=None, record=None):
        # Detached: an operation that saves its own result would else hold itself. The version is counted together.
        self.kept, self.version = kept.detach(), kept._version
        self.number, self.record = number, record

    def tensor(self):
        if self.kept._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{list(self.kept.shape)} is at version {self.kept._version}; expected version {self.version}")
        return self.kept

    def lefts(self):
        return ()


class _View:
    """A tensor without its storage: type, sizes, strides and offset."""

    __slots__ = ("dtype", "size", "stride", "offset", "number", "record", "__weakref__")

    def __init__(self, tensor, number, record):
        self.dtype, self.size, self.stride = tensor.dtype, tensor.size(), tensor.stride()
        self.offset = tensor.storage_offset()
        self.number, self.record = number, record

    def over(self, storage):
        return torch.empty(0, dtype=self.dtype).set_(storage, self.offset, self.size, self.stride)


class Moved(_View):
    """A tensor over a storage whose bytes are in the pool."""

    __slots__ = ("left",)

    def __init__(self, left, tensor, number=None, record=None):
        super().__init__(tensor, number, record)
        self.left = left
        left.handles += 1

    def tensor(self):
        return self.over(storage_of(self.left.hand_over()))

    def lefts(self):
        """What is to be fetched for it."""
        return (self.left,)


class Again(_View):
    """A tensor that a call made, which is made again: the call's result, or what it saved as number `place`."""

    __slots__ = ("call", "place")

    def __init__(self, call, place, tensor, number=None, record=None):
        super().__init__(tensor, number, record)
        self.call, self.place = call, place
        call.handles += 1

    def tensor(self):
        return self.over(storage_of(self.call.result(self.place, self)))

    def lefts(self):
        return self.call.lefts()
