"""Copies between host memory and a GPU by CUDA's own libraries when it is told: one command a line of its input.

    load PATH              opens the driver and makes a context
    runtime PATH           opens the runtime library
    arena NAME BYTES NODE  memory that begins on a node; -1 where it begins is open. Says its address
    copy FUNCTION NAME OFFSET BYTES TIMES
                           calls a copy function of either library, by its signature
    register NAME BYTES | unregister NAME | allocate NAME BYTES
    loop NAME BYTES SECONDS
                           copies to the GPU, ten times a second
    sleep SECONDS

Each command is answered by a line: its result, a code of CUDA's or an address.
"""
import ctypes
import mmap
import sys
import time

WORD = ctypes.c_uint64
BLOCK, MBIND, PREFERRED = 2 << 20, 237, 1
ROOM = 64 << 20


class Job:
    def __init__(self):
        self.driver = self.runtime = None
        self.arenas, self.kept = {}, []
        self.device = WORD()

    def load(self, path):
        self.driver = ctypes.CDLL(path)
        context = ctypes.c_void_p()
        calls = [("cuInit", 0), ("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)]
        for name, *arguments in calls:
            self.check(getattr(self.driver, name)(*arguments))
        self.check(self.driver.cuCtxSetCurrent(context))
        self.check(self.driver.cuMemAlloc_v2(ctypes.byref(self.device), ctypes.c_size_t(ROOM)))
        return 0

    def runtime_(self, path):
        self.runtime = ctypes.CDLL(path)
        return 0

    @staticmethod
    def check(code):
        if code:
            sys.exit(f"the driver answers {code}")

    def arena(self, name, size, node):
        size, node = int(size), int(node)
        memory = mmap.mmap(-1, size + BLOCK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        start = -(-first // BLOCK) * BLOCK
        if node >= 0:
            mask = ctypes.c_ulong(1 << node)
            arguments = (WORD(start), WORD(size), PREFERRED, ctypes.byref(mask), WORD(65), 0)
            self.check(ctypes.CDLL(None).syscall(MBIND, *arguments))
        memory[start - first : start - first + size] = bytes(size)
        self.kept.append(memory)
        self.arenas[name] = start
        return start

    def copy(self, function, name, offset, size, times):
        host, device, size = WORD(self.arenas[name] + int(offset)), self.device, WORD(int(size))
        name, _, kind = function.partition(":")
        to_host = "DtoH" in function or kind in ("back", "2")
        arguments = [host, device, size] if to_host else [device, host, size]
        if name.startswith("cuda"):
            arguments.append(int(kind))
        if "Async" in name:
            arguments.append(WORD(0))
        call = getattr(self.runtime if name.startswith("cuda") else self.driver, name)
        return max(call(*arguments) for _ in range(int(times)))

    def register(self, name, size):
        return self.driver.cuMemHostRegister_v2(WORD(self.arenas[name]), WORD(int(size)), 0)

    def unregister(self, name):
        return self.driver.cuMemHostUnregister(WORD(self.arenas[name]))

    def allocate(self, name, size):
        address = WORD()
        self.check(self.driver.cuMemHostAlloc(ctypes.byref(address), WORD(int(size)), 0))
        self.arenas[name] = address.value
        return address.value

    def loop(self, name, size, seconds):
        end, worst = time.monotonic() + float(seconds), 0
        while time.monotonic() < end:
            worst = max(worst, self.copy("cuMemcpyHtoD_v2", name, 0, size, 1))
            time.sleep(0.1)
        return worst

    def sleep(self, seconds):
        time.sleep(float(seconds))
        return 0


job = Job()
for line in sys.stdin:
    command, *words = line.split()
    answer = getattr(job, "runtime_" if command == "runtime" else command)(*words)
    print(answer, flush=True)
