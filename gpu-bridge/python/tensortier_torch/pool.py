"""Memory on a given NUMA node, as byte tensors.

Arenas are anonymous mappings bound with mbind(2) before their first page is touched. A block of a size that was given
back is used again for the same size: training steps repeat. Arenas live as long as the process.
"""
import ctypes
import mmap
import os
import threading
import warnings
import weakref

ARENA = 64 << 20
ALIGN = 64
MPOL_BIND = 2
MADV_POPULATE_WRITE = 23
_MBIND = {"x86_64": 237, "aarch64": 235}


def slow_node(root="/sys/devices/system/node"):
    """The first node with memory and without CPUs; None where there is none."""
    try:
        with open(f"{root}/has_memory") as memory, open(f"{root}/has_cpu") as cpus:
            slow = sorted(_numbers(memory.read()) - _numbers(cpus.read()))
    except OSError:
        return None
    return slow[0] if slow else None


def _numbers(text):
    """The set that a list such as 0-2,5 means."""
    found = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return found


def _bind(area, node):
    """Binds a mapping to a node; raises OSError."""
    number = _MBIND.get(os.uname().machine)
    if number is None:
        raise OSError(f"mbind's number on {os.uname().machine} is not known")
    libc = ctypes.CDLL(None, use_errno=True)
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    mask = (ctypes.c_ulong * (node // bits + 1))()
    mask[node // bits] = 1 << (node % bits)
    anchor = ctypes.c_char.from_buffer(area)
    try:
        result = libc.syscall(
            ctypes.c_long(number), ctypes.c_void_p(ctypes.addressof(anchor)), ctypes.c_ulong(len(area)),
            ctypes.c_int(MPOL_BIND), mask, ctypes.c_ulong(len(mask) * bits + 1), ctypes.c_uint(0))
    finally:
        del anchor
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"mbind to node {node}: {os.strerror(error)}")


class Pool:
    """Blocks of bytes on `node`, or wherever the kernel likes where `node` is None."""

    def __init__(self, node=None, arena=ARENA):
        self.node = node
        self.bound = False
        self.mapped = 0
        self._arena = arena
        self._rest = None
        self._free = {}
        # Blocks come back from finalizers, which may run in the middle of `take`.
        self._lock = threading.RLock()
        weak = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: weak() and weak()._forked())

    def take(self, count):
        """A block of `count` bytes as a uint8 tensor of the pool's memory; `give` takes it back."""
        size = -(-max(count, 1) // ALIGN) * ALIGN
        with self._lock:
            free = self._free.get(size)
            block = free.pop() if free else self._cut(size)
        return block[:count]

    def give(self, block):
        """Takes a block back that `take` gave; nobody may use it any more."""
        size = -(-max(block.numel(), 1) // ALIGN) * ALIGN
        with self._lock:
            self._free.setdefault(size, []).append(block.as_strided((size,), (1,)))

    def _forked(self):
        # Another thread of the parent may have held it.
        self._lock = threading.RLock()

    def _cut(self, size):
        if 4 * size >= self._arena:
            # Of an arena the last part would be lost.
            return self._map(size)
        if self._rest is None or self._rest.numel() < size:
            self._rest = self._map(self._arena)
        block, self._rest = self._rest[:size], self._rest[size:]
        return block

    def _map(self, size):
        import torch

        # Private: what a forked child, a DataLoader's worker say, writes to it is not its parent's.
        area = mmap.mmap(-1, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if self.node is not None:
            try:
                _bind(area, self.node)
                self.bound = True
            except OSError as error:
                warnings.warn(f"activations stay on the default nodes: {error}", RuntimeWarning, stacklevel=2)
                self.node = None
        try:
            # Its pages now: the first copies would take the faults for their own time, and the plan believes them.
            area.madvise(MADV_POPULATE_WRITE)
        except OSError:
            # Before Linux 5.14.
            pass
        self.mapped += len(area)
        return torch.frombuffer(area, dtype=torch.uint8)
