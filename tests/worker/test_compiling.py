"""Compiling a model, and the errors where torch cannot."""

import pytest
import torch

from epochmeter.worker import compiling
from epochmeter.worker.compiling import compile_model


def test_torch_without_compile_is_rejected(monkeypatch):
    monkeypatch.delattr(torch, "compile")
    with pytest.raises(ValueError, match=r"compile=true, but torch .* has no torch\.compile"):
        compile_model(torch.nn.Linear(1, 1))


@pytest.mark.parametrize(("named", "looked_for"), [(None, r"g\+\+/clang\+\+/c\+\+"), ("icc", "icc")])
def test_missing_compiler_is_an_error_with_a_remedy(monkeypatch, named, looked_for):
    monkeypatch.delenv("CXX", raising=False)
    if named:
        monkeypatch.setenv("CXX", named)
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match=rf"no C\+\+ compiler: {looked_for} not found"):
        compile_model(torch.nn.Linear(1, 1))


def test_compiled_model_shares_parameters(monkeypatch):
    monkeypatch.setattr(compiling.shutil, "which", lambda name: name)
    model = torch.nn.Linear(2, 1)
    assert [id(parameter) for parameter in compile_model(model).parameters()] == [
        id(parameter) for parameter in model.parameters()
    ]
