"""Trains a model most of whose memory is the optimizer's: weights, gradients and Adam's two moments, which each step
sweeps once, in order, as an optimizer does that is offloaded to the host.

Plain PyTorch on one thread, the same numbers in every run. Small, since an emulated machine computes slowly.
"""
import argparse
import os
import time

import torch
from torch import nn
from torch.nn import functional as F


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=18)
    options = parser.parse_args()
    print(f"torch {torch.__version__} process {os.getpid()}", flush=True)

    torch.set_num_threads(1)
    torch.manual_seed(1)
    layers = (layer for _ in range(options.layers) for layer in (nn.Linear(options.width, options.width), nn.ReLU()))
    model = nn.Sequential(*layers)
    adam = torch.optim.Adam(model.parameters(), lr=1e-4)
    for step in range(options.steps):
        start = time.monotonic()
        batch = torch.randn(options.batch, options.width)
        loss = F.mse_loss(model(batch), batch)
        adam.zero_grad(set_to_none=False)
        loss.backward()
        adam.step()
        print(f"step {step} loss {loss.item().hex()} seconds {time.monotonic() - start:.4f}", flush=True)


if __name__ == "__main__":
    main()
