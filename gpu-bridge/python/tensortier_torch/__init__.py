"""Keeps what autograd saves for the backward pass on a slow memory node.

    import tensortier_torch
    tensortier_torch.install()        # for the rest of the program, or
    with tensortier_torch.Offload():  # for a part of it
        loss = model(batch)
    loss.backward()

Under an unmodified script `tensortier run --offload-activations -- python train.py` does the same by way of
`site/sitecustomize.py`. Autograd hands each tensor that it saves to `Offload.pack`; its bytes are copied to the pool
(`pool`), which lies on the slow node, and copied back when the backward pass asks for them. The first step records the
order of packs and unpacks and what the modules between them took; from it follows what stays where it is, what is
fetched ahead and what is computed again in the backward pass instead of being stored (`plan`).

Values are never changed: the bytes of a storage go out and come back as they are, with sizes, strides and offset, and
only what is known to come out the same is computed again (`recompute` says what and why), so losses are equal to the
last bit. Parameters and buffers of modules are left alone. CPU tensors only.

Environment: TENSORTIER_OFFLOAD_NODE (number of the node; by default the first with memory and without CPUs),
TENSORTIER_OFFLOAD_LEAST (bytes below which a storage stays, 65536), TENSORTIER_OFFLOAD_AHEAD (storages fetched ahead,
2; 0 fetches on demand), TENSORTIER_OFFLOAD_RECOMPUTE (0 stores everything), TENSORTIER_OFFLOAD_REPORT (file that gets
one JSON object at the end).
"""
from .hooks import Offload, install

__all__ = ["Offload", "install"]
