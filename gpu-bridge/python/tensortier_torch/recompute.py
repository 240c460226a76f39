"""Computes again what a module's call made, bit for bit, instead of storing it.

A call is computed again only where its result is known to depend on nothing but
 - one input tensor, held with its strides: where it is, in the pool, or as one to be computed again itself;
 - numbers and small parameters of the module, copied at the call;
 - the state of the random generator, of autocast, and the number of threads, noted at the call.
So `KNOWN` lists the modules of torch.nn of which that is so, by their exact types, and `find` refuses what could
differ: hooks, another `forward`, a replaced function, work in place, large parameters, tracing. User-written modules
are never run twice, since nothing says what else they do; the modules of `KNOWN` within them are found all the same.

The second run saves the same tensors in the same order as the first, so what the first saved is found by its place. The
layout of each result and the generator's state after the call must be as the first time; else the backward pass ends
with an error rather than with other numbers. Batch norms are run without their running statistics, which a training
step changes and its result does not depend on; they save less then, so only their results are computed again.
"""
import contextlib
import threading
from typing import Any, Callable, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as module_globals

from .handles import storage_of

# Bytes of parameters that are copied at a call.
LARGEST_PARAMETER = 1 << 20


class Function(NamedTuple):
    """The function that a module calls."""

    owner: Any
    name: str
    function: Callable
    # Its arguments besides the tensor, from the module; None where it is not to be computed again.
    arguments: Callable
    forward: Callable
    random: bool
    # Whether what it saves is saved in the same places the second time.
    places: bool


def _named(*names):
    def arguments(module):
        return None if getattr(module, "inplace", False) else {name: getattr(module, name) for name in names}

    return arguments


def _softmax(module):
    return None if module.dim is None else {"dim": module.dim}


def _dropout(module):
    # Without training the result is the input itself.
    works = module.training and module.p > 0 and not getattr(module, "inplace", False)
    return {"p": module.p, "training": True} if works else None


def _max_pool(module):
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    return None if module.return_indices else {name: getattr(module, name) for name in names}


def _batch_norm(module):
    if not module.training:
        return None
    return {"running_mean": None, "running_var": None, "weight": module.weight, "bias": module.bias, "training": True,
            "eps": module.eps}


def _table():
    rows = [
        (nn.ReLU, F, "relu", _named()), (nn.LeakyReLU, F, "leaky_relu", _named("negative_slope")),
        (nn.ELU, F, "elu", _named("alpha")), (nn.GELU, F, "gelu", _named("approximate")),
        (nn.SiLU, F, "silu", _named()), (nn.Mish, F, "mish", _named()),
        (nn.Softplus, F, "softplus", _named("beta", "threshold")),
        (nn.Hardswish, F, "hardswish", _named()), (nn.Tanh, torch, "tanh", _named()),
        (nn.Sigmoid, torch, "sigmoid", _named()), (nn.Softmax, F, "softmax", _softmax),
        (nn.LogSoftmax, F, "log_softmax", _softmax),
        (nn.LayerNorm, F, "layer_norm", _named("normalized_shape", "weight", "bias", "eps")),
        (nn.GroupNorm, F, "group_norm", _named("num_groups", "weight", "bias", "eps")),
        (nn.MaxPool2d, F, "max_pool2d", _max_pool),
        (nn.AvgPool2d, F, "avg_pool2d",
         _named("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")),
        (nn.Dropout, F, "dropout", _dropout), (nn.Dropout2d, F, "dropout2d", _dropout),
        (nn.AlphaDropout, F, "alpha_dropout", _dropout),
        *((kind, F, "batch_norm", _batch_norm) for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)),
    ]
    return {
        kind: Function(owner, name, getattr(owner, name), arguments, kind.forward, arguments is _dropout,
                       arguments is not _batch_norm)
        for kind, owner, name, arguments in rows
    }


KNOWN = _table()


def find(module, args, kwargs):
    """The function of a call and its arguments besides the tensor; None where the call is not to be computed again."""
    known = KNOWN.get(type(module))
    if known is None or kwargs or len(args) != 1 or type(args[0]) not in (torch.Tensor, nn.Parameter):
        return None
    if not torch.is_grad_enabled() or torch._C._get_tracing_state() is not None or _hooked(module):
        return None
    if getattr(known.owner, known.name) is not known.function or type(module).forward is not known.forward:
        return None
    options = known.arguments(module)
    if options is None or any(_large(option) for option in options.values()):
        return None
    return known, options


def _hooked(module):
    """Whether the call of a module does more than its `forward`."""
    ours = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return "forward" in module.__dict__ or any(
        getattr(module, name, None) or getattr(module_globals, f"_global{name}", None) for name in ours)


def _large(option):
    return isinstance(option, torch.Tensor) and option.numel() * option.element_size() > LARGEST_PARAMETER


class _State:
    """What a result depends on besides the arguments."""

    def __init__(self, random):
        self.random = torch.get_rng_state() if random else None
        self.autocast = {"enabled": torch.is_autocast_cpu_enabled(), "dtype": torch.get_autocast_cpu_dtype()}
        self.threads = torch.get_num_threads()

    @contextlib.contextmanager
    def restored(self):
        random, threads = self.random is not None and torch.get_rng_state(), torch.get_num_threads()
        try:
            if self.random is not None:
                torch.set_rng_state(self.random)
            if threads != self.threads:
                torch.set_num_threads(self.threads)
            with torch.autocast("cpu", cache_enabled=False, **self.autocast):
                yield
        finally:
            if self.random is not None:
                torch.set_rng_state(random)
            if threads != self.threads:
                torch.set_num_threads(threads)


class Call:
    """A call that can be made again. `held` gives its input, as the handles do."""

    def __init__(self, known, options, tensor, held, counts):
        self.known, self.held, self.counts = known, held, counts
        self.options = {name: _copied(option) for name, option in options.items()}
        self.needs_grad = tensor.requires_grad
        self.state = _State(known.random)
        self.after = self.layout = self.saved = None
        self.made = self.out = None
        self.handles = self.asked = 0
        self.lock = threading.RLock()

    def ended(self, out, saved):
        """Notes what the first run left: the result's layout, the number of saved tensors, the generator."""
        self.layout, self.saved = _layout(out), saved
        self.after = torch.get_rng_state() if self.known.random else None

    def lefts(self):
        """What is to be fetched before it is made again."""
        return self.held.lefts() if self.out is None else ()

    def result(self, place, like):
        """The result, or what was saved as number `place`, for a handle; kept until each handle has asked."""
        with self.lock:
            if self.out is None:
                self._make()
            found = self.out
            if place is not None:
                found = self.made[place]
                if (found.dtype, found.size(), found.stride(), found.storage_offset()) != \
                        (like.dtype, like.size, like.stride, like.offset):
                    raise self._differs(f"saved {list(found.shape)} as number {place} where it had saved {like.size}")
            self.asked += 1
            if self.asked >= self.handles:
                self.asked, self.made, self.out = 0, None, None
            return found

    def _make(self):
        made = []
        tensor = self.held.tensor().detach().requires_grad_(self.needs_grad)
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda saved: made.append(saved.detach()), _never)
        with self.state.restored(), torch.enable_grad(), hooks:
            out = self.known.function(tensor, **self.options)
            after = torch.get_rng_state() if self.known.random else None
        if _layout(out) != self.layout or self.known.places and len(made) != self.saved:
            now = f"{_layout(out)} and {len(made)} saved tensors"
            raise self._differs(f"gave {now}, not {self.layout} and {self.saved}")
        if after is not None and not torch.equal(after, self.after):
            raise self._differs("drew other random numbers; does another thread draw from the same generator?")
        self.made, self.out = made, out.detach()
        self.counts.made_again += 1

    def _differs(self, what):
        return RuntimeError(f"{self.known.name}, computed again for the backward pass, {what}; "
                            "TENSORTIER_OFFLOAD_RECOMPUTE=0 stores everything instead")


def _copied(option):
    if not isinstance(option, torch.Tensor):
        return option
    return option.detach().clone().requires_grad_(option.requires_grad)


def _layout(tensor):
    return tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset(), storage_of(tensor).nbytes()


def _never(_):
    raise RuntimeError("what was computed again is not differentiated")
