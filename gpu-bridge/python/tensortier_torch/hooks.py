"""The hooks that autograd calls for each tensor it saves."""
import atexit
import json
import os
import queue
import threading
import time
import weakref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .plan import Plan, Record
from .pool import Pool, slow_node

LEAST = 64 << 10


def _storage(tensor):
    """The untyped storage of a tensor, in old and new versions of torch."""
    if hasattr(tensor, "untyped_storage"):
        return tensor.untyped_storage()
    storage = tensor.storage()
    return storage.untyped() if hasattr(storage, "untyped") else storage._storage


def _bytes_of(storage):
    """The storage as a byte tensor that shares its memory."""
    return torch.empty(0, dtype=torch.uint8).set_(storage)


class _Left:
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


class _Handle:
    """What autograd keeps in place of a tensor."""

    __slots__ = ("left", "dtype", "size", "stride", "offset", "number", "record", "__weakref__")

    def __init__(self, left, tensor, offset, number, record):
        self.left, self.offset = left, offset
        self.dtype, self.size, self.stride = tensor.dtype, tensor.size(), tensor.stride()
        self.number, self.record = number, record
        left.handles += 1

    def tensor(self):
        found = torch.empty(0, dtype=self.dtype)
        return found.set_(_storage(self.left.hand_over()), self.offset, self.size, self.stride)


class Offload:
    """A context in which what autograd saves goes to a slow node. One can serve a whole program; see `install`."""

    def __init__(self, node=None, least=None, ahead=None):
        def number(name, given, default):
            return given if given is not None else int(os.environ.get(f"TENSORTIER_OFFLOAD_{name}", default))

        named = os.environ.get("TENSORTIER_OFFLOAD_NODE")
        self.node = node if node is not None else int(named) if named else slow_node()
        self.least = number("LEAST", least, LEAST)
        self.ahead = number("AHEAD", ahead, 2)
        self.pool = Pool(self.node)
        self.steps = self.packs = self.kept = self.out_bytes = self.fetched_ahead = 0
        self.peak_out = self._out = 0
        self._copied = [0, 0.0]
        self._plan = None
        self._record = Record()
        self._repeats = True
        self._backward = False
        self._seen = {}
        self._handles = {}
        self._parameters = None
        self._jobs = None

    def pack(self, tensor):
        """Called by autograd with a tensor to save."""
        if self._backward:
            self._end_step()
        storage = _storage(tensor)
        size = storage.nbytes()
        if not self._takes(tensor, storage, size):
            return _Kept(tensor)
        self.packs += 1
        known = self._known(tensor, storage)
        if known is not None:
            left, kept = known
            if kept:
                return _Kept(tensor)
        number = self._record.pack(size)
        plan = self._plan
        self._repeats = self._repeats and plan is not None and plan.fits(number, size)
        if known is None and self._repeats and plan.stays[number]:
            self.kept += 1
            self._remember(tensor, storage, None)
            return _Kept(tensor, number, self._record)
        if known is None:
            begun = time.perf_counter()
            left = _Left(self.pool, _bytes_of(storage))
            self._copied[0] += size
            self._copied[1] += time.perf_counter() - begun
            self.out_bytes += size
            self._count(size)
            weakref.finalize(left, self._count, -size)
            self._remember(tensor, storage, left)
        handle = _Handle(left, tensor, tensor.storage_offset(), number, self._record)
        self._handles[number] = weakref.ref(handle)
        return handle

    def unpack(self, packed):
        """Called by autograd when the backward pass needs what it saved."""
        if packed.record is not None and packed.record is self._record:
            self._backward = True
            packed.record.unpack(packed.number)
            if self._repeats and self.ahead > 0 and self._plan is not None:
                self._fetch_ahead(packed.number)
        return packed.tensor()

    def _count(self, size):
        self._out += size
        self.peak_out = max(self.peak_out, self._out)

    def _takes(self, tensor, storage, size):
        plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.is_quantized
        if not plain or size < self.least or tensor.is_conj() or tensor.is_neg():
            return False
        # A small view would take a large storage along.
        if tensor.numel() * tensor.element_size() * 2 < size:
            return False
        if self._parameters is None:
            self._parameters = {_storage(p).data_ptr() for p in _registered() if p.layout == torch.strided}
        return storage.data_ptr() not in self._parameters

    def _known(self, tensor, storage):
        """What became of a storage that was saved before in this step, unless it has changed since."""
        found = self._seen.get((storage._cdata, tensor._version))
        if found is None:
            return None
        _, left = found
        if left is None:
            return None, True
        left = left()
        return None if left is None else (left, False)

    def _remember(self, tensor, storage, left):
        # While a weak reference is held nobody else gets the same address.
        weak = StorageWeakRef(storage)
        self._seen[storage._cdata, tensor._version] = (weak, None if left is None else weakref.ref(left))

    def _end_step(self):
        """The first pack after a backward pass begins a step."""
        self.steps += 1
        if not self._repeats or self._plan is None or len(self._record.sizes) != len(self._plan.sizes):
            copied, seconds = self._copied
            self._plan = Plan(self._record, seconds / copied if copied else 0.0)
        self._record, self._repeats, self._backward = Record(), True, False
        self._seen.clear()
        self._handles.clear()
        self._parameters = None

    def _fetch_ahead(self, number):
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            threading.Thread(target=self._fetcher, name="tensortier-fetch", daemon=True).start()
        for following in self._plan.following(number, self.ahead):
            handle = self._handles.pop(following, lambda: None)()
            if handle is not None:
                self._jobs.put(weakref.ref(handle.left))

    def _fetcher(self):
        while True:
            left = self._jobs.get()()
            if left is not None and left.fetched is None:
                left.fetch()
                self.fetched_ahead += 1
            del left

    def report(self):
        """What was done so far."""
        return {
            "node": self.node, "bound": self.pool.bound, "steps": self.steps, "packs": self.packs, "kept": self.kept,
            "out_bytes": self.out_bytes, "peak_out_bytes": self.peak_out, "pool_bytes": self.pool.mapped,
            "fetched_ahead": self.fetched_ahead,
        }

    def __enter__(self):
        _watch()
        torch._C._autograd._push_saved_tensors_default_hooks(self.pack, self.unpack)
        return self

    def __exit__(self, *_):
        torch._C._autograd._pop_saved_tensors_default_hooks()


class _Kept:
    """A tensor that stays where it is. With hooks, autograd does not look whether it has changed; so it is done here."""

    __slots__ = ("kept", "version", "number", "record")

    def __init__(self, kept, number=None, record=None):
        self.kept, self.version = kept, kept._version
        self.number, self.record = number, record

    def tensor(self):
        if self.kept._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{list(self.kept.shape)} is at version {self.kept._version}; expected version {self.version}")
        return self.kept


_modules = weakref.WeakSet()
_watching = False


def _watch():
    """Notes every module that gets a parameter or a buffer from now on."""
    global _watching
    if _watching:
        return
    _watching = True
    module = torch.nn.Module
    for name in ("register_parameter", "register_buffer"):
        def noting(self, *args, _before=getattr(module, name), **kwargs):
            _modules.add(self)
            return _before(self, *args, **kwargs)

        setattr(module, name, noting)


def _registered():
    for module in list(_modules):
        yield from (p for p in module._parameters.values() if p is not None)
        yield from (b for b in module._buffers.values() if b is not None)


_installed = None


def install():
    """Has every saved activation of this thread handled from now on; gives the Offload. A second call changes nothing."""
    global _installed
    if _installed is None:
        _installed = Offload()
        _installed.__enter__()
        report = os.environ.get("TENSORTIER_OFFLOAD_REPORT")
        if report:
            atexit.register(_write, report, _installed)
    return _installed


def _write(path, offload):
    try:
        with open(path, "w") as file:
            json.dump(offload.report(), file)
    except OSError as error:
        print(f"tensortier: cannot write {path}: {error}")
