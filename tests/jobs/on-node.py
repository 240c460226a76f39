"""Runs a PyTorch script, unchanged, whose large tensors begin on a chosen NUMA node.

    on-node.py --node 1 [--ranges FILE] SCRIPT [ARGUMENTS]

On a real host a tensor begins on CXL because DRAM was full when it was first written. Filling a guest's DRAM would put
the interpreter's own code and heap on the slow node too, where an emulated device takes 570 ns an access: hours for an
import of torch. A memory policy for the whole process (`tensortier run --place`) does the same. So the policy holds
only while a tensor of at least --min-mib, about to be filled, gets its pages, and the default is back before it is
filled. Nothing binds the tensor to the node afterwards, and neither script nor torch are changed on disk.
"""
import argparse
import ctypes
import json
import os
import runpy
import sys

import torch

SYS_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}[os.uname().machine]
MPOL_DEFAULT, MPOL_PREFERRED = 0, 1


def set_mempolicy(mode, node=None):
    mask = ctypes.c_ulong(0 if node is None else 1 << node)
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit less than it is told.
    if libc.syscall(SYS_SET_MEMPOLICY, mode, None if node is None else ctypes.byref(mask), 65) != 0:
        raise OSError(ctypes.get_errno(), f"set_mempolicy for node {node}")


class Placing:
    """Gives large tensors their pages before they are filled, and tells observers where they are."""

    def __init__(self, node, at_least, file):
        self.node, self.at_least, self.file, self.ranges = node, at_least, file, []

    def around(self, fill):
        def filled(tensor, *args, **kwargs):
            size = tensor.nelement() * tensor.element_size()
            if size < self.at_least:
                return fill(tensor, *args, **kwargs)
            # Nothing but a memset under the policy: code that is first run there would be read into the slow node too.
            set_mempolicy(MPOL_PREFERRED, self.node)
            ctypes.memset(tensor.data_ptr(), 0, size)
            set_mempolicy(MPOL_DEFAULT)
            self.tell(tensor.data_ptr(), size)
            return fill(tensor, *args, **kwargs)
        return filled

    def tell(self, start, size):
        self.ranges.append([start, start + size])
        if self.file:
            with open(self.file + ".new", "w") as file:
                json.dump({"pid": os.getpid(), "ranges": self.ranges}, file)
            os.rename(self.file + ".new", self.file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--node", type=int, required=True)
    parser.add_argument("--min-mib", type=float, default=1, help="smallest tensor to place (default: 1)")
    parser.add_argument("--ranges", help="file for the process id and the addresses of what was placed, for observers")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()

    placing = Placing(options.node, options.min_mib * (1 << 20), options.ranges)
    for name in ("normal_", "uniform_"):
        setattr(torch.Tensor, name, placing.around(getattr(torch.Tensor, name)))
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(options.script))
    runpy.run_path(options.script, run_name="__main__")


main()
