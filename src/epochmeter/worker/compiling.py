"""Compile models with torch.compile. Compilation happens on the first batches, hence in the first epoch."""

import os
import shutil

import torch

COMPILERS = ("g++", "clang++", "c++")


def compile_model(model):
    """Return the compiled model, which shares its parameters; ValueError without `torch.compile` or C++ compiler."""
    if not hasattr(torch, "compile"):
        raise ValueError(
            "compile=true, but torch {} has no torch.compile (new in 2.0). Set compile=false, or set device.python to "
            "an interpreter with a newer torch.".format(torch.__version__)
        )
    cxx = os.environ.get("CXX")
    if not any(shutil.which(name) for name in ((cxx,) if cxx else COMPILERS)):
        raise ValueError(
            "compile=true, but torch.compile finds no C++ compiler: {} not found. Install one (Debian, Ubuntu: apt-get "
            "install g++), or set compile=false.".format(cxx or "/".join(COMPILERS))
        )
    return torch.compile(model)
