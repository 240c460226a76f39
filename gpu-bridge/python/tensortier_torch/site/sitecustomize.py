"""Installs the hooks as soon as a program imports torch. For a folder of its own on PYTHONPATH.

Another sitecustomize further on the path runs too.
"""
import importlib.machinery
import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


class _AfterTorch:
    """Finds torch as everyone else does, and has the hooks installed once it is loaded."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_install(module):
            load(module)
            try:
                import tensortier_torch

                tensortier_torch.install()
            except Exception as error:
                print(f"tensortier: activations are not offloaded: {error!r}", file=sys.stderr)

        spec.loader.exec_module = load_and_install
        return spec


if os.environ.get("TENSORTIER_OFFLOAD") == "1":
    _root = os.path.dirname(os.path.dirname(_here))
    if _root not in sys.path:
        sys.path.append(_root)
    sys.meta_path.insert(0, _AfterTorch())

_others = [entry for entry in sys.path if os.path.abspath(entry or ".") != _here]
_other = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _other is not None and _other.loader is not None:
    _other.loader.exec_module(importlib.util.module_from_spec(_other))
