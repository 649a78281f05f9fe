"""Numeric precision: fp32, TF32, bf16 and fp16, checked against the device before training."""

from typing import ContextManager, List, Tuple

import torch

from epochmeter.shared.problem import input_error

AMPERE = (8, 0)  # first CUDA compute capability whose tensor cores support TF32 and bfloat16


class NullContext:
    """A context without effects, as `contextlib.nullcontext`, which Python 3.6 lacks."""

    def __enter__(self) -> "NullContext":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def autocast_and_scaler(name: str, device: torch.device) -> "Tuple[ContextManager[object], torch.amp.GradScaler]":
    """Return the context manager of the forward pass and the gradient scaler; ValueError if it is not supported."""
    supported = supported_dtypes(device)
    if name not in supported:
        device_name = "a CPU" if device.type == "cpu" else torch.cuda.get_device_name(device)
        message = "precision={} is not supported by {}, which supports {}"
        message = message.format(name, device_name, ", ".join(supported))
        raise input_error(message, "set precision to one of these", key="precision")
    if device.type == "cuda":  # torch enables TF32 in convolutions by default
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name == "tf32"
    # Small gradients underflow in fp16, so they are scaled; bfloat16 has the range of fp32.
    amp = torch.amp if hasattr(getattr(torch, "amp", None), "GradScaler") else torch.cuda.amp  # new in torch 2.3
    scaler = amp.GradScaler(enabled=name == "fp16")
    if name in ("fp32", "tf32"):
        return NullContext(), scaler
    return torch.autocast(device.type, dtype={"bf16": torch.bfloat16, "fp16": torch.float16}[name]), scaler


def supported_dtypes(device: torch.device) -> List[str]:
    """Return the numeric precisions that a device supports."""
    if device.type == "cpu":
        return ["fp32", "bf16"]
    if torch.version.hip:
        return ["fp32", "bf16", "fp16"]
    return ["fp32", "tf32", "bf16", "fp16"] if torch.cuda.get_device_capability(device) >= AMPERE else ["fp32", "fp16"]
