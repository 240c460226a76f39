"""Trains a model whose memory is what it saves for the backward pass: little weights, hundreds of MiB of activations.

Plain PyTorch on one thread, the same numbers in every run. `images`: a convolution, batch norms, ReLUs, dropout and
pooling in channels_last. `perceptron`: residual blocks of norms, two layers, GELU, tanh and dropout. Small ones, since
an emulated machine computes slowly.
"""
import argparse
import os
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width * 4), nn.GELU(), nn.LayerNorm(width * 4), nn.Tanh(),
            nn.Dropout(0.1), nn.Linear(width * 4, width))

    def forward(self, x):
        return x + self.layers(x)


def perceptron():
    model = nn.Sequential(*(Block(16) for _ in range(5)), nn.Linear(16, 16))
    return model, lambda: torch.randn(4096, 16)


def images():
    layers = [nn.Conv2d(3, 16, 1)]
    for _ in range(2):
        layers += [nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.1), nn.MaxPool2d(3, 1, 1)]
    model = nn.Sequential(
        *layers, nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 16))
    model.to(memory_format=torch.channels_last)
    return model, lambda: torch.randn(36, 3, 96, 96).contiguous(memory_format=torch.channels_last)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    models = {"images": images, "perceptron": perceptron}
    parser.add_argument("--model", choices=sorted(models), default="images")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    print(f"torch {torch.__version__} process {os.getpid()}", flush=True)

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model, batch = models[options.model]()
    descent = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(options.steps):
        start = time.monotonic()
        inputs = batch()
        labels = torch.randint(16, (len(inputs),))
        loss = F.cross_entropy(model(inputs), labels)
        descent.zero_grad()
        loss.backward()
        descent.step()
        print(f"step {step} loss {loss.item().hex()} seconds {time.monotonic() - start:.4f}", flush=True)


if __name__ == "__main__":
    main()
