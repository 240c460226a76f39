"""Run with a python that has torch: python3 -m unittest discover gpu-bridge/python/tests"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tensortier_torch import Offload  # noqa: E402
from tensortier_torch.plan import Plan, Record  # noqa: E402
from tensortier_torch.pool import Pool, _numbers, slow_node  # noqa: E402

torch.set_num_threads(1)


class Text(nn.Module):
    """Attention, dropout, GELU, norms: what a transformer's block saves."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.2, activation="gelu", batch_first=True)
        self.out = nn.Linear(32, 5)

    def forward(self, x):
        return self.out(self.block(self.words(x)).mean(1))


class Image(nn.Module):
    """Convolutions, batch norms, pooling and a ReLU in place."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.Dropout(0.3))
        self.out = nn.Linear(16, 5)

    def forward(self, x):
        return self.out(self.layers(x).mean((2, 3)))


def train(kind, steps, offload=None, batch=lambda step: 8):
    """Losses and final parameters of a few steps, as exact bytes."""
    torch.manual_seed(3)
    if offload is not None:
        offload.__enter__()
    try:
        if kind == "text":
            model = Text()
        else:
            model = Image().to(memory_format=torch.channels_last)
        descent = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for step in range(steps):
            size = batch(step)
            if kind == "text":
                x = torch.randint(50, (size, 16))
            else:
                x = torch.randn(size, 3, 16, 16).contiguous(memory_format=torch.channels_last)
            loss = F.cross_entropy(model(x), torch.randint(5, (size,)))
            descent.zero_grad()
            loss.backward()
            descent.step()
            losses.append(loss.detach().numpy().tobytes())
    finally:
        if offload is not None:
            offload.__exit__()
    return losses, [p.detach().numpy().tobytes() for p in model.parameters()]


class Losses(unittest.TestCase):
    def equal(self, kind, **options):
        offload = Offload(least=256)
        self.assertEqual(train(kind, 6, offload, **options), train(kind, 6, **options))
        self.assertGreater(offload.out_bytes, 0)
        self.assertGreaterEqual(offload.steps, 5)
        return offload

    def test_with_dropout(self):
        self.equal("text")

    def test_channels_last_and_in_place(self):
        self.equal("image")

    def test_batches_of_changing_size(self):
        self.equal("text", batch=lambda step: 4 + step % 3)

    def test_what_the_plan_keeps_and_fetches_ahead_changes_nothing(self):
        offload = Offload(least=256, ahead=3)
        # Half stays, however fast the machine is.
        decide = Plan.__init__

        def every_other(self, record, seconds):
            decide(self, record, seconds)
            self.stays = [number % 2 == 0 for number in range(len(self.sizes))]

        Plan.__init__ = every_other
        try:
            self.assertEqual(train("text", 6, offload), train("text", 6))
        finally:
            Plan.__init__ = decide
        self.assertGreater(offload.kept, 0)

    def test_everything_leaves_and_is_given_back(self):
        offload = Offload(least=256)
        decide = Plan.__init__

        def all_leave(self, record, seconds):
            decide(self, record, 0.0)

        Plan.__init__ = all_leave
        try:
            train("image", 6, offload)
        finally:
            Plan.__init__ = decide
        self.assertEqual(offload.kept, 0)
        self.assertEqual(offload._out, 0, "all that left has been released")
        self.assertLess(offload.peak_out * 3, offload.out_bytes, "blocks are used again")

    def test_after_the_first_steps_the_pool_grows_no_more(self):
        # cases.md row 16: memory that is allocated in every step makes the copies wait.
        mapped = []
        for steps in (2, 8):
            offload = Offload(least=256, recompute=0)
            offload.pool = Pool(None, arena=1 << 12)
            train("image", steps, offload)
            mapped.append(offload.pool.mapped)
        self.assertEqual(*mapped)


class Tensors(unittest.TestCase):
    def saved(self, tensor):
        # A new one each time, so that there is no plan by which anything stays.
        offload = Offload(least=1)
        handle = offload.pack(tensor)
        self.assertTrue(hasattr(handle, "left"), "it leaves")
        return offload.unpack(handle)

    def test_strides_formats_and_offsets_stay(self):
        image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
        for tensor in (image, image.permute(1, 0, 3, 2), torch.randn(8, 8).t(), torch.arange(64).view(8, 8)[1:, 1:],
                       torch.zeros(9, dtype=torch.bool), torch.randn(3, 3, dtype=torch.complex64)):
            back = self.saved(tensor)
            self.assertTrue(torch.equal(back, tensor))
            self.assertEqual((back.stride(), back.dtype, back.storage_offset()),
                             (tensor.stride(), tensor.dtype, tensor.storage_offset()))
        self.assertTrue(self.saved(image).is_contiguous(memory_format=torch.channels_last))

    def test_views_of_one_storage_are_copied_once_and_changes_are_seen(self):
        offload = Offload(least=1)
        tensor = torch.randn(16, 16)
        first, second = offload.pack(tensor), offload.pack(tensor.t())
        self.assertIs(first.left, second.left)
        before = tensor.clone()
        tensor.add_(1)
        third = offload.pack(tensor)
        self.assertIsNot(first.left, third.left)
        for handle, expected in ((first, before), (second, before.t()), (third, tensor), (first, before)):
            self.assertTrue(torch.equal(offload.unpack(handle), expected))

    def test_parameters_stay(self):
        with Offload(least=1) as offload:
            layer = nn.Linear(8, 8)
            self.assertEqual((offload.packs, offload.out_bytes), (0, 0))
            for tensor in (layer.weight.detach(), layer.weight.t()):
                self.assertEqual(offload.unpack(offload.pack(tensor)).data_ptr(), tensor.data_ptr())
            self.assertEqual((offload.packs, offload.out_bytes), (0, 0))
            offload.pack(layer.weight * 2)
            self.assertGreaterEqual(offload.packs, 1)

    def test_a_second_backward_pass_finds_the_same(self):
        x = torch.randn(32, 32, requires_grad=True)
        with Offload(least=1):
            loss = (x.sin() * x.exp()).sum()
        first, = torch.autograd.grad(loss, x, retain_graph=True)
        second, = torch.autograd.grad(loss, x)
        self.assertTrue(torch.equal(first, second))

    def test_a_saved_tensor_that_changes_is_still_an_error_where_it_stays(self):
        offload = Offload(least=1)
        record = Record()
        record.pack(4096, 0.0)
        record.unpack(0, 1e-9)
        offload._plan = Plan(record, 1.0)
        with offload:
            x = torch.randn(32, 32, requires_grad=True)
            y = x.exp()
            loss = y.sum()
        self.assertEqual(offload.kept, 1)
        y.detach().add_(1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()


class Plans(unittest.TestCase):
    def test_what_is_idle_for_too_short_stays(self):
        record = Record()
        for size, at in ((1000, 0.0), (1000, 1.0), (1000, 8.0)):
            record.pack(size, at)
        for number, at in ((2, 8.5), (1, 20.0), (0, 40.0)):
            record.unpack(number, at)
        plan = Plan(record, 1e-3)
        self.assertEqual(plan.stays, [False, False, True])
        self.assertEqual(plan.following(2, 5), [1, 0])
        self.assertEqual(plan.following(1, 1), [0])
        self.assertTrue(plan.fits(1, 1000) and not plan.fits(1, 999) and not plan.fits(3, 1000))


class Pools(unittest.TestCase):
    def test_blocks_are_used_again_and_do_not_overlap(self):
        pool = Pool(None, arena=1 << 16)
        one, two = pool.take(1000), pool.take(1000)
        one.fill_(1)
        two.fill_(2)
        self.assertTrue(bool((one == 1).all()))
        address = one.data_ptr()
        pool.give(one)
        self.assertEqual(pool.take(1000).data_ptr(), address)
        before = pool.mapped
        self.assertEqual(pool.take(1 << 20).numel(), 1 << 20)
        self.assertEqual(pool.mapped - before, 1 << 20, "large blocks waste nothing")

    def test_memory_is_bound_to_the_node(self):
        pool = Pool(0)
        block = pool.take(1 << 20).fill_(1)
        self.assertTrue(pool.bound)
        with open("/proc/self/numa_maps") as maps:
            mine = [line for line in maps if " bind:0 " in f" {line.split(' ', 1)[1]}"]
        self.assertTrue(mine, f"no mapping bound to node 0 has {block.data_ptr():x}")

    def test_what_a_forked_child_does_is_its_own(self):
        layer = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        x = torch.randn(32, 64)
        with Offload(least=1) as offload:
            for _ in range(3):
                layer(x).sum().backward()
            saved = offload.pool.take(4096).fill_(7)
            loss = layer(x).sum()
            child = os.fork()
            if child == 0:
                # Takes the same blocks.
                for _ in range(3):
                    layer(x * 2).sum().backward()
                saved.fill_(9)
                os._exit(0)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            layer.zero_grad()
            loss.backward()
        mine = [p.grad for p in layer.parameters()]
        self.assertTrue(bool((saved == 7).all()))
        layer.zero_grad()
        layer(x).sum().backward()
        self.assertTrue(all(torch.equal(one, p.grad) for one, p in zip(mine, layer.parameters())))

    def test_a_node_that_is_not_there_is_said_and_done_without(self):
        with self.assertWarnsRegex(RuntimeWarning, "mbind to node 900"):
            pool = Pool(900)
            pool.take(100).fill_(1)
        self.assertFalse(pool.bound)

    def test_the_slow_node_has_memory_and_no_cpus(self):
        self.assertEqual(_numbers("0-2,5\n"), {0, 1, 2, 5})
        with tempfile.TemporaryDirectory() as root:
            self.assertIsNone(slow_node(root))
            for name, text in (("has_memory", "0-2"), ("has_cpu", "0-1")):
                with open(f"{root}/{name}", "w") as file:
                    file.write(text + "\n")
            self.assertEqual(slow_node(root), 2)


SCRIPT = """
import torch
torch.manual_seed(1)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(256, 1))
for _ in range(4):
    loss = model(torch.randn(512, 64)).pow(2).mean()
    model.zero_grad()
    loss.backward()
    print(loss.item().hex())
"""


class Script(unittest.TestCase):
    def test_an_unmodified_script_runs_the_same_and_offloads(self):
        with tempfile.TemporaryDirectory() as folder:
            script, report = os.path.join(folder, "train.py"), os.path.join(folder, "report.json")
            with open(script, "w") as file:
                file.write(SCRIPT)
            plain = dict(os.environ)
            plain.pop("TENSORTIER_OFFLOAD", None)
            site = os.path.join(ROOT, "tensortier_torch", "site")
            ours = dict(plain, TENSORTIER_OFFLOAD="1", PYTHONPATH=site, TENSORTIER_OFFLOAD_REPORT=report)
            one, other = (subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=True)
                          for env in (plain, ours))
            self.assertEqual(one.stdout, other.stdout)
            with open(report) as file:
                found = json.load(file)
            self.assertGreater(found["out_bytes"], 512 * 256 * 4)
            self.assertGreaterEqual(found["steps"], 3)

    def test_freed_memory_goes_back(self):
        # Without that a tensor between two others stays resident after it is freed, once one as large has been.
        script = """
import torch
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
def fill(mib):
    return torch.ones(mib << 20, dtype=torch.uint8)
fill(24)
below, tensor, above = fill(24), fill(24), fill(2)
before = resident()
del tensor
print(before - resident())
"""
        site = os.path.join(ROOT, "tensortier_torch", "site")
        for enabled in ("0", "1"):
            environment = dict(os.environ, TENSORTIER_OFFLOAD=enabled, PYTHONPATH=site)
            environment.pop("MALLOC_MMAP_THRESHOLD_", None)
            done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(int(done.stdout) > 20 << 20, enabled == "1", done.stdout)


if __name__ == "__main__":
    unittest.main()
