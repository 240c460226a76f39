"""What is computed again is equal to the last bit, or is not computed again."""
import gc
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tensortier_torch import Offload  # noqa: E402
from tensortier_torch.handles import storage_of  # noqa: E402
from tensortier_torch.plan import Plan, Record  # noqa: E402
from tensortier_torch.recompute import KNOWN, _State  # noqa: E402

torch.set_num_threads(1)

ONE_OF_EACH = [
    nn.ReLU(), nn.LeakyReLU(0.2), nn.ELU(0.7), nn.GELU(), nn.SiLU(), nn.Mish(), nn.Softplus(2, 3), nn.Hardswish(),
    nn.Tanh(), nn.Sigmoid(), nn.Softmax(1), nn.LogSoftmax(-1), nn.LayerNorm(6), nn.GroupNorm(2, 4), nn.MaxPool2d(2, 1),
    nn.AvgPool2d(2, 1), nn.Dropout(0.3), nn.Dropout2d(0.3), nn.AlphaDropout(0.3), nn.BatchNorm2d(4)]


class Everything(Plan):
    """Makes every call again, whatever it takes, and keeps nothing."""

    def __init__(self, record, seconds_per_byte):
        for call in record.calls:
            call.seconds = -1.0
        super().__init__(record, 0.0)

    def _choose(self, record, both_ways):
        super()._choose(record, 1.0)


class Forced(unittest.TestCase):
    """Under a plan that computes again all that it may."""

    plan = Everything

    def setUp(self):
        import tensortier_torch.hooks as hooks

        before, hooks.Plan = hooks.Plan, self.plan
        self.addCleanup(setattr, hooks, "Plan", before)

    def trained(self, make, data, offload=None, steps=4, between=lambda model: None, after=None):
        """Losses, gradients, buffers and the generator's next numbers of some steps, as bytes."""
        torch.manual_seed(5)
        model = make()
        descent = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = []
        if offload is not None:
            offload.__enter__()
        try:
            for step in range(steps):
                inputs = data(step).requires_grad_(True)
                loss = model(inputs).float().pow(2).mean()
                between(model)
                descent.zero_grad()
                loss.backward()
                descent.step()
                seen += [loss, inputs.grad, torch.rand(3)]
                if after is not None:
                    after(offload)
        finally:
            if offload is not None:
                offload.__exit__()
        seen += [*model.parameters(), *model.buffers()]
        return [value.detach().contiguous().view(torch.uint8).numpy().tobytes() if value.dim() else value.item().hex()
                for value in seen if value.dtype == torch.float32]

    def equal(self, make, data, again=True, **options):
        offload = Offload(least=1)
        self.assertEqual(self.trained(make, data, offload, **options), self.trained(make, data, **options))
        self.assertEqual(offload.again > 0, again)
        self.assertEqual(offload.made_again > 0, again)
        return offload

    def test_every_known_module(self):
        self.assertEqual({type(module) for module in ONE_OF_EACH} | {nn.BatchNorm1d, nn.BatchNorm3d}, set(KNOWN))
        for module in ONE_OF_EACH:
            def make(module=module):
                # What comes after saves the result.
                return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), module, nn.Conv2d(4, 2, 1))

            for form in (torch.contiguous_format, torch.channels_last):
                with self.subTest(f"{type(module).__name__} {form}"):
                    for weights in module.parameters():
                        nn.init.uniform_(weights)
                    torch.manual_seed(1)
                    before = {name: value.clone() for name, value in module.state_dict().items()}
                    results = []
                    for offload in (Offload(least=1), None):
                        module.load_state_dict(before)
                        results.append(self.trained(
                            make, lambda step: torch.randn(2, 3, 6, 6).contiguous(memory_format=form), offload))
                        if offload is not None:
                            self.assertGreater(offload.made_again, 0)
                    self.assertEqual(*results)

    def test_a_chain_is_made_again_from_what_autograd_saved_before_it(self):
        def make():
            return nn.Sequential(
                nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 2))

        offload = self.equal(make, lambda step: torch.randn(5, 8))
        # Of six results before the last layer only its input and that of the first norm are stored.
        self.assertLessEqual(offload.again, offload.packs)
        self.assertGreaterEqual(offload.again, 3 * 4)

    def test_a_users_block_of_views_sums_and_dropout(self):
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                # Not GELU: torch 1.13 differentiates it wrongly where its gradient has other strides than its input.
                self.norm, self.act, self.drop = nn.LayerNorm(8), nn.SiLU(), nn.Dropout(0.4)
                self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

            def forward(self, x):
                for _ in range(2):
                    y = self.drop(self.act(self.up(self.norm(x.transpose(0, 1))))).transpose(0, 1)
                    x = x + self.drop(self.down(y))
                return x

        self.equal(Block, lambda step: torch.randn(3, 4, 8))
        self.equal(Block, lambda step: torch.randn(2 + step % 2, 4, 8), again=False)

    def test_autocast(self):
        class Cast(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.Sequential(
                    nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.Softmax(-1), nn.Dropout(), nn.Linear(8, 8))

            def forward(self, x):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    return self.layers(x)

        self.equal(Cast, lambda step: torch.randn(4, 8))

    def test_the_state_is_that_of_the_call_and_then_that_of_before(self):
        def state():
            return torch.is_autocast_cpu_enabled(), torch.get_num_threads(), torch.get_rng_state().tolist()

        # Of torch 1.13's functions for CPUs none in `KNOWN` obeys autocast, so no result would show it.
        with torch.autocast("cpu", dtype=torch.bfloat16):
            at_the_call, noted = state(), _State(True)
        torch.set_num_threads(2)
        self.addCleanup(torch.set_num_threads, 1)
        torch.rand(3)
        before = state()
        with noted.restored():
            self.assertEqual(state(), at_the_call)
            torch.rand(5)
        self.assertEqual(state(), before)

    def test_what_changes_between_the_passes_changes_nothing(self):
        def between(model):
            model[1].p = 0.9
            model.eval()
            model[2].eps = 1.0
            model[2].bias.data.add_(0.5)
            model.train()
            torch.rand(7)

        self.equal(lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.LayerNorm(8), nn.Linear(8, 2)),
                   lambda step: torch.randn(4, 8), between=between)

    def test_changes_in_place_before_and_after(self):
        class InPlace(nn.Module):
            def __init__(self):
                super().__init__()
                self.one, self.two, self.drop = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.5)

            def forward(self, x):
                y = self.one(x) * 2
                z = self.drop(y)
                # Autograd has not saved the dropout's input, so a script may do this.
                y.detach().add_(1)
                u = self.two(z)
                w = self.drop(u * 1)
                # A result that has changed since is not the call's any more.
                w.add_(3)
                return self.two(w)

        self.equal(InPlace, lambda step: torch.randn(4, 8))

    def test_what_could_differ_is_refused(self):
        def hooked():
            module = nn.Dropout(0.5)
            module.register_forward_hook(lambda module, inputs, out: out * 2)
            return module

        def replaced():
            module = nn.ReLU()
            module.forward = lambda x: x.relu() + 1
            return module

        class Own(nn.GELU):
            def forward(self, x):
                return super().forward(x) + torch.rand(())

        for make in (hooked, replaced, Own, lambda: nn.ReLU(inplace=True), lambda: nn.Dropout(0.5).eval(),
                     lambda: nn.BatchNorm1d(8).eval(), lambda: nn.Dropout(0)):
            self.equal(lambda: nn.Sequential(nn.Linear(8, 8), make(), nn.Linear(8, 2)),
                       lambda step: torch.randn(4, 8), again=False)

    def test_a_function_that_was_replaced_is_refused(self):
        gelu = F.gelu
        F.gelu = lambda x, **options: gelu(x, **options) * 2
        self.addCleanup(setattr, F, "gelu", gelu)
        self.equal(lambda: nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2)),
                   lambda step: torch.randn(4, 8), again=False)

    def test_a_parameter_as_input_is_refused_and_a_switch_turns_all_off(self):
        class Dropped(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight, self.drop = nn.Parameter(torch.randn(8, 8)), nn.Dropout(0.5)

            def forward(self, x):
                return x @ self.drop(self.weight)

        self.equal(Dropped, lambda step: torch.randn(4, 8), again=False)
        off = Offload(least=1, recompute=0)
        make = lambda: nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2))  # noqa: E731
        self.trained(make, lambda step: torch.randn(4, 8), off)
        self.assertEqual((off.again, off.made_again), (0, 0))

    def test_another_draw_meanwhile_is_an_error_and_not_another_mask(self):
        rand, dropout = torch.rand, nn.Dropout(0.5)
        forward = nn.Dropout.forward

        def disturbed(self, x):
            out = forward(self, x)
            rand(1)
            return out

        from tensortier_torch import recompute

        nn.Dropout.forward = disturbed
        known = KNOWN[nn.Dropout]
        recompute.KNOWN[nn.Dropout] = known._replace(forward=disturbed)
        self.addCleanup(setattr, nn.Dropout, "forward", forward)
        self.addCleanup(recompute.KNOWN.__setitem__, nn.Dropout, known)
        with self.assertRaisesRegex(RuntimeError, "dropout, computed again.*other random numbers"):
            self.trained(lambda: nn.Sequential(nn.Linear(8, 8), dropout, nn.Linear(8, 2)),
                         lambda step: torch.randn(4, 8), Offload(least=1))

    def test_a_second_backward_pass_finds_the_same(self):
        model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 2))
        with Offload(least=1) as offload:
            for _ in range(3):
                loss = model(torch.randn(4, 8)).sum()
                one = torch.autograd.grad(loss, model[0].weight, retain_graph=True)[0]
                two = torch.autograd.grad(loss, model[0].weight)[0]
                self.assertTrue(torch.equal(one, two))
        self.assertGreater(offload.made_again, 2)

    def test_nothing_is_held_after_the_backward_pass_or_without_one(self):
        model = nn.Sequential(nn.Linear(8, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.5), nn.Linear(64, 2))
        gc.disable()
        self.addCleanup(gc.enable)
        with Offload(least=1) as offload:
            for _ in range(4):
                model(torch.randn(4, 8)).sum().backward()
            self.assertGreater(offload.made_again, 0)
            self.assertEqual(offload._out, 0, "all has been given back without the collector of cycles")
            # Never differentiated, as a validation that forgets no_grad: no more is held than of one step.
            one = model(torch.randn(4, 8))
            most = offload._out
            del one
            for _ in range(300):
                model(torch.randn(4, 8))
            self.assertLessEqual(offload._out, most)
            self.assertLess(len(offload._seen), 1100)


class Stays(unittest.TestCase):
    def test_a_result_that_its_operation_saved_goes_with_it(self):
        gc.disable()
        self.addCleanup(gc.enable)
        with Offload(least=1 << 30):
            out = torch.tanh(torch.randn(8, requires_grad=True))
            weak = StorageWeakRef(storage_of(out))
            del out
            self.assertTrue(weak.expired(), "a cycle holds it")


class Value:
    def __init__(self, number=None, maker=None):
        self.number, self.maker = number, maker


class Choices(unittest.TestCase):
    """Of a chain: linear, gelu, dropout, linear. A copy out and back of 1000 bytes takes 2 seconds."""

    def plan(self, gelu, dropout, idle=100.0):
        record = Record()
        hidden, result = Value(), Value(maker=0)
        first = record.call("gelu", 1000, hidden)
        hidden.number = record.pack(1000, 0.0)
        record.called(first, gelu)
        second = record.call("dropout", 1000, result)
        record.pack(1000, 1.0, maker=second)
        record.called(second, dropout)
        record.pack(1000, 2.0, maker=second)
        for number in (2, 1, 0):
            record.unpack(number, idle)
        return Plan(record, 1e-3)

    def test_the_cheaper_of_copies_and_calls(self):
        both = {0: ("gelu", 1000, 0), 1: ("dropout", 1000, None)}
        self.assertEqual(self.plan(1.0, 1.0).again, both, "2 s of calls against 4 s of copies")
        self.assertEqual(self.plan(1.0, 3.5).again, {}, "4.5 s of calls against 4 s of copies")
        self.assertEqual(self.plan(9.0, 1.0).again, {1: both[1]}, "3 s with a copy of the dropout's input")
        self.assertEqual(self.plan(9.0, 2.5).again, {})
        self.assertEqual(self.plan(1.0, 1.0, idle=2.1).again, {}, "what stays costs no copies")


if __name__ == "__main__":
    unittest.main()
