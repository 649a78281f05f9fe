"""Models compiled by torch.compile, which does it as the first batches come: it is in the first epoch."""

import os
import shutil

import torch

COMPILERS = ("g++", "clang++", "c++")


def compiled(model):
    """The model, compiled when it is first called, with the same parameters; ValueError where it cannot be."""
    if not hasattr(torch, "compile"):
        raise ValueError(
            "compile=true asked for, and torch {} has no torch.compile, which came with 2.0. Leave it out, or name an "
            "interpreter that has a newer torch by device.python.".format(torch.__version__)
        )
    named = os.environ.get("CXX")
    if not any(shutil.which(each) for each in ((named,) if named else COMPILERS)):
        raise ValueError(
            "compile=true asked for, and there is no C++ compiler for torch.compile: {} was not found. Install one "
            "(Debian, Ubuntu: apt-get install g++), or leave it out.".format(named or "/".join(COMPILERS))
        )
    return torch.compile(model)
