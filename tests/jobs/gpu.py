"""Copies between host memory and a GPU by CUDA's own libraries when it is told: one command a line of its input.

    load PATH              opens the driver and makes a context
    runtime PATH           opens the runtime library
    arena NAME BYTES NODE  memory that begins on a node; -1 where it begins is open. Says its address
    copy FUNCTION NAME OFFSET BYTES TIMES
                           calls a copy function of either library, by its signature
    register NAME BYTES | unregister NAME | allocate NAME BYTES
    loop NAME,... BYTES FILE
                           copies to the GPU, ten times a second, until there is such a file
    pid                    its number
    sleep SECONDS
    link SOCKET            asks the agent for a link: 1 where it gave one
    node NAME              the node that the agent's placement has for an arena; -1 for none
    hint KIND NAME BYTES TIMES
                           says it of an arena; KIND as the protocol numbers it
    noise BYTES            sends that much of no message

Each command is answered by a line: its result, a code of CUDA's or an address.
"""
import array
import ctypes
import mmap
import os
import socket
import struct
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
        self.placement = self.hints = None

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

    def loop(self, names, size, end):
        worst = 0
        while not os.path.exists(end):
            worst = max(worst, *(self.copy("cuMemcpyHtoD_v2", name, 0, size, 1) for name in names.split(",")))
            time.sleep(0.1)
        return worst

    @staticmethod
    def pid():
        return os.getpid()

    def link(self, path):
        agent = socket.socket(socket.AF_UNIX)
        agent.connect(path)
        agent.sendall(b'{"link":{}}\n')
        line, given = b"", array.array("i")
        while not line.endswith(b"\n"):
            data, extra, _flags, _address = agent.recvmsg(4096, socket.CMSG_SPACE(8))
            for _level, _kind, fds in extra:
                given.frombytes(fds)
            line += data
        if len(given) != 2:
            print(line.decode().strip(), file=sys.stderr, flush=True)
            return 0
        self.placement, self.hints = given[0], socket.socket(fileno=given[1])
        return 1

    def node(self, name):
        magic, _version, capacity, generation, *_ = struct.unpack("8Q", os.pread(self.placement, 64, 0))
        if magic != int.from_bytes(b"ttplace\0", "little") or generation == 0:
            return -1
        size = 8 * (4 + 4 * capacity)
        buffer = os.pread(self.placement, size, 64 + generation % 2 * size)
        _sequence, _generation, _at, count = struct.unpack_from("4Q", buffer)
        for number in range(count):
            start, end, node, *_ = struct.unpack_from("2Q4I", buffer, 32 + 32 * number)
            if start <= self.arenas[name] < end:
                return node
        return -1

    def hint(self, kind, name, size, times):
        header = struct.pack("4s3I", b"tthi", 1, 1, 0)
        record = struct.pack("2Q2IQ", self.arenas[name], int(size), int(kind), int(times), time.monotonic_ns())
        return int(self.hints.send(header + record) != len(header + record))

    def noise(self, size):
        return int(self.hints.send(b"\xa5" * int(size)) != int(size))

    def sleep(self, seconds):
        time.sleep(float(seconds))
        return 0


job = Job()
for line in sys.stdin:
    command, *words = line.split()
    answer = getattr(job, "runtime_" if command == "runtime" else command)(*words)
    print(answer, flush=True)
