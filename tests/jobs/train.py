"""Trains a text classifier: a table of word vectors, the mean over each text, two layers.

Plain PyTorch on one thread, the same numbers in every run. The words are numbered by frequency, as tokenizers do, and
the texts use the first part of them only, as a model of many languages trained on one does: of the table's rows, those
are hot and the others cold.
"""
import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

WIDTH = 64  # float32: 256 bytes a word


class Classifier(nn.Module):
    def __init__(self, words, labels):
        super().__init__()
        self.table = nn.EmbeddingBag(words, WIDTH, mode="mean", sparse=True)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, labels)

    def forward(self, texts):
        return self.out(F.relu(self.hidden(self.table(texts))))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=98304, help="rows of the table (default: 24 MiB of them)")
    parser.add_argument("--used", type=int, default=32768, help="rows that the texts use (default: 8 MiB of them)")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--length", type=int, default=32, help="words of a text")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0, help="no step begins after this time (default: all do)")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Classifier(options.words, 16)
    descent = torch.optim.SGD(model.parameters(), lr=0.5)
    source = torch.Generator().manual_seed(2)
    begin = time.monotonic()
    for step in range(options.steps):
        start = time.monotonic()
        if options.seconds and start - begin > options.seconds:
            break
        texts = torch.randint(options.used, (options.batch, options.length), generator=source)
        labels = texts[:, 0] % 16
        loss = F.cross_entropy(model(texts), labels)
        descent.zero_grad()
        loss.backward()
        descent.step()
        print(f"step {step} loss {loss.item().hex()} seconds {time.monotonic() - start:.4f}", flush=True)


if __name__ == "__main__":
    main()
