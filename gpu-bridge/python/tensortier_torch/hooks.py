"""The hooks that autograd calls for each tensor it saves, and the calls of modules around them."""
import atexit
import ctypes
import json
import os
import queue
import threading
import time
import weakref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from . import recompute
from .handles import Again, Kept, Left, Moved, bytes_of, storage_of
from .plan import Plan, Record
from .pool import Pool, slow_node

LEAST = 64 << 10
# Blocks that glibc gives back when they are freed, and the name of that threshold to mallopt(3).
GIVE_BACK = 1 << 20
M_MMAP_THRESHOLD = -3
# Entries of storages that are gone are looked for when there are so many, and twice as many as were left then.
SWEEP = 1024


class _Seen:
    """What this step knows of one version of a storage."""

    __slots__ = ("weak", "number", "maker", "call", "left", "kept")

    def __init__(self, storage):
        # While a weak reference is held nobody else gets the same address.
        self.weak = StorageWeakRef(storage)
        # Numbers of the first pack and of the call that made it, as the record counts.
        self.number = self.maker = None
        # The call, where it can be made again. Held until the backward pass begins, or the storage has gone.
        self.call = None
        # Where it is: in the pool (weak), or where it was.
        self.left, self.kept = None, False


class _Inside:
    """A call under way."""

    def __init__(self, number, key, call):
        self.number, self.key, self.call = number, key, call
        self.saved = 0


class Offload:
    """A context in which what autograd saves goes to a slow node. One can serve a whole program; see `install`."""

    def __init__(self, node=None, least=None, ahead=None, recompute=None):
        def number(name, given, default):
            return given if given is not None else int(os.environ.get(f"TENSORTIER_OFFLOAD_{name}", default))

        named = os.environ.get("TENSORTIER_OFFLOAD_NODE")
        self.node = node if node is not None else int(named) if named else slow_node()
        self.least = number("LEAST", least, LEAST)
        self.ahead = number("AHEAD", ahead, 2)
        self.recompute = bool(number("RECOMPUTE", recompute, 1))
        self.pool = Pool(self.node)
        self.steps = self.packs = self.kept = self.out_bytes = self.fetched_ahead = 0
        self.again = self.again_bytes = self.made_again = 0
        self.peak_out = self._out = 0
        self._copied = [0, 0.0]
        self._plan = None
        self._record = Record()
        self._repeats = True
        self._backward = False
        self._inside = None
        self._seen = {}
        self._sweep = SWEEP
        self._handles = {}
        self._parameters = None
        self._jobs = None
        weak = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: weak() and weak()._forked())

    def pack(self, tensor):
        """Called by autograd with a tensor to save."""
        if self._backward:
            self._end_step()
        inside, place = self._inside, None
        if inside is not None:
            place, inside.saved = inside.saved, inside.saved + 1
        storage = storage_of(tensor)
        size = storage.nbytes()
        if not self._takes(tensor, storage, size):
            return Kept(tensor)
        self.packs += 1
        seen = self._entry(tensor, storage)
        call = seen.call
        if inside is not None and call is None and (storage._cdata, tensor._version) != inside.key:
            seen.maker = inside.number
            call = inside.call if inside.call is not None and inside.call.known.places else None
        else:
            place = None
        number = self._record.pack(size, first=seen.number is None, maker=seen.maker)
        if seen.number is None:
            seen.number = number
        plan = self._plan
        self._repeats = self._repeats and plan is not None and plan.fits(number, size)
        left = self._left(seen)
        if seen.kept or left is None and self._repeats and plan.stays[number]:
            self.kept += not seen.kept
            seen.kept = True
            return Kept(tensor, number, self._record)
        if left is None and call is not None:
            self.again += 1
            self.again_bytes += size
            handle = Again(call, place, tensor, number, self._record)
        else:
            handle = Moved(left or self._move(seen, storage), tensor, number, self._record)
        self._handles[number] = weakref.ref(handle)
        return handle

    def unpack(self, packed):
        """Called by autograd when the backward pass needs what it saved."""
        if packed.record is not None and packed.record is self._record:
            if not self._backward:
                self._backward = True
                for seen in self._seen.values():
                    seen.call = None
            packed.record.unpack(packed.number)
            if self._repeats and self.ahead > 0 and self._plan is not None:
                self._fetch_ahead(packed.number)
        return packed.tensor()

    def call(self, module, forward, args, kwargs):
        """Called in place of a module; `forward` does what would have been done."""
        found = recompute.find(module, args, kwargs) if self._inside is None else None
        if found is None or not self._plain(args[0]):
            return forward(module, *args, **kwargs)
        if self._backward:
            self._end_step()
        tensor = args[0]
        storage = storage_of(tensor)
        small = tensor.numel() * tensor.element_size() < self.least
        seen = None if small else self._entry(tensor, storage)
        name, size = found[0].name, 0 if small else storage.nbytes()
        number = self._record.call(name, size, seen)
        wanted = self._plan.again.get(number) if self._repeats and self._plan is not None else None
        call = self._call(found, tensor, storage, seen, wanted) if wanted and wanted[:2] == (name, size) else None
        inside = _Inside(number, (storage._cdata, tensor._version), call)
        copied, begun = self._copied[1], time.perf_counter()
        self._inside = inside
        try:
            out = forward(module, tensor)
        finally:
            self._inside = None
        seconds = time.perf_counter() - begun - (self._copied[1] - copied)
        self._record.called(number, seconds)
        if type(out) is not torch.Tensor:
            return out
        if call is not None:
            if seen is not None and seen.kept and seen.number is None:
                # Autograd has not saved it, so it may be changed.
                seen.kept, call.held = False, Moved(self._move(seen, storage), tensor)
            call.ended(out, inside.saved)
        if self._plain(out) and storage_of(out)._cdata != storage._cdata:
            made = self._entry(out, storage_of(out))
            made.maker, made.call = number, call
        return out

    def _call(self, found, tensor, storage, seen, wanted):
        """A call that is to be made again; None where its input cannot be held safely."""
        if seen is None:
            # It may change after the call, which does not save it.
            held = tensor.detach().clone(memory_format=torch.preserve_format)
            held = Kept(held) if held.stride() == tensor.stride() else None
        elif not self._takes(tensor, storage, storage.nbytes()):
            held = None
        else:
            left, number = self._left(seen), wanted[2]
            # What autograd will save is kept where the plan keeps it.
            if left is None and number is not None and self._plan.stays[number]:
                seen.kept = True
            if seen.kept:
                held = Kept(tensor)
            elif left is None and seen.call is not None:
                held = Again(seen.call, None, tensor)
            else:
                held = Moved(left or self._move(seen, storage), tensor)
        return None if held is None else recompute.Call(*found, tensor, held, self)

    def _count(self, size):
        self._out += size
        self.peak_out = max(self.peak_out, self._out)

    def _plain(self, tensor):
        plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.is_quantized
        return plain and not tensor.is_conj() and not tensor.is_neg()

    def _takes(self, tensor, storage, size):
        if size < self.least or not self._plain(tensor):
            return False
        # A small view would take a large storage along.
        if tensor.numel() * tensor.element_size() * 2 < size:
            return False
        if self._parameters is None:
            self._parameters = {storage_of(p).data_ptr() for p in _registered() if p.layout == torch.strided}
        return storage.data_ptr() not in self._parameters

    def _entry(self, tensor, storage):
        """What is known of a storage as it is now; a change in place makes another one of it."""
        key = storage._cdata, tensor._version
        seen = self._seen.get(key)
        if seen is None:
            if len(self._seen) >= self._sweep:
                self._forget_gone()
            seen = self._seen[key] = _Seen(storage)
        return seen

    def _forget_gone(self):
        gone = [key for key, seen in self._seen.items() if seen.weak.expired()]
        for key in gone:
            # The record may hold the entry on.
            self._seen.pop(key).call = None
        self._sweep = max(SWEEP, 2 * len(self._seen))

    def _left(self, seen):
        return None if seen.left is None else seen.left()

    def _move(self, seen, storage):
        """Copies a storage to the pool."""
        size = storage.nbytes()
        begun = time.perf_counter()
        left = Left(self.pool, bytes_of(storage))
        self._copied[0] += size
        self._copied[1] += time.perf_counter() - begun
        self.out_bytes += size
        self._count(size)
        weakref.finalize(left, self._count, -size)
        seen.left = weakref.ref(left)
        return left

    def _end_step(self):
        """The first pack or call after a backward pass begins a step."""
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
            for left in () if handle is None else handle.lefts():
                self._jobs.put(weakref.ref(left))

    def _forked(self):
        # The thread is the parent's.
        self._jobs = None

    def _fetcher(self):
        jobs = self._jobs
        while True:
            left = jobs.get()()
            if left is not None and left.fetched is None:
                left.fetch()
                self.fetched_ahead += 1
            del left

    def report(self):
        """What was done so far."""
        return {
            "node": self.node, "bound": self.pool.bound, "steps": self.steps, "packs": self.packs, "kept": self.kept,
            "out_bytes": self.out_bytes, "peak_out_bytes": self.peak_out, "pool_bytes": self.pool.mapped,
            "fetched_ahead": self.fetched_ahead, "again": self.again, "again_bytes": self.again_bytes,
            "made_again": self.made_again,
        }

    def __enter__(self):
        _watch()
        torch._C._autograd._push_saved_tensors_default_hooks(self.pack, self.unpack)
        _here.offloads.append(self)
        return self

    def __exit__(self, *_):
        _here.offloads.pop()
        torch._C._autograd._pop_saved_tensors_default_hooks()


class _Here(threading.local):
    """The contexts of this thread; hooks are a thread's own too."""

    def __init__(self):
        self.offloads = []


_here = _Here()
_modules = weakref.WeakSet()
_watching = False


def _watch():
    """Notes modules that get a parameter or a buffer from now on, and is around every call of a module."""
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

    forward = module.__call__

    def calling(self, *args, **kwargs):
        offloads = _here.offloads
        if offloads and offloads[-1].recompute and type(self) in recompute.KNOWN:
            return offloads[-1].call(self, forward, args, kwargs)
        return forward(self, *args, **kwargs)

    module.__call__ = calling


def _registered():
    for module in list(_modules):
        yield from (p for p in module._parameters.values() if p is not None)
        yield from (b for b in module._buffers.values() if b is not None)


_installed = None


def install():
    """Has what this thread saves handled from now on; gives the Offload. A second call changes nothing."""
    global _installed
    if _installed is None:
        _give_back_freed()
        _installed = Offload()
        _installed.__enter__()
        report = os.environ.get("TENSORTIER_OFFLOAD_REPORT")
        if report:
            atexit.register(_write, report, _installed)
    return _installed


def _give_back_freed():
    """Has glibc give large blocks back when they are freed, unless the user has set its threshold.

    It raises the threshold to the largest block that was freed, at most 32 MiB; from then on tensors lie in the heap,
    which keeps what is freed below its top: on the fast node, in place of what has left it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        mallopt(M_MMAP_THRESHOLD, GIVE_BACK)


def _write(path, offload):
    try:
        with open(path, "w") as file:
            json.dump(offload.report(), file)
    except OSError as error:
        print(f"tensortier: cannot write {path}: {error}")
