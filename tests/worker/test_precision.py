import pytest
import torch
from torch import nn

from epochmeter.worker.precision import autocast_and_scaler, supported_dtypes

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SWITCHES = (torch.backends.cuda.matmul, torch.backends.cudnn)


@pytest.fixture
def gpu(monkeypatch):
    """gpu(capability): a GPU; torch's TF32 settings are restored."""
    before = [switches.allow_tf32 for switches in SWITCHES]

    def make(capability):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
        return GPU

    yield make
    for switches, value in zip(SWITCHES, before, strict=True):
        switches.allow_tf32 = value


def test_bf16_multiplies_in_bfloat16_and_keeps_weights_and_gradients_in_fp32():
    autocast, scaler = autocast_and_scaler("bf16", CPU)
    layer = nn.Linear(4, 4)
    for _ in range(2):  # it is entered for every step
        with autocast:
            outputs = layer(torch.ones(2, 4))
        assert outputs.dtype == torch.bfloat16
    scaler.scale(outputs.float().sum()).backward()
    assert layer.weight.grad.dtype == layer(torch.ones(2, 4)).dtype == torch.float32


def test_cpus_gpus_before_ampere_and_amd_gpus_reject_unsupported_precisions(gpu, monkeypatch):
    for names, device, supported in (
        (("tf32", "fp16"), CPU, "fp32, bf16"),
        (("tf32", "bf16"), gpu((7, 0)), "fp32, fp16"),
    ):
        name = "a CPU" if device is CPU else "Some GPU"
        for precision in names:
            with pytest.raises(ValueError, match=f"{precision} is not supported by {name}, which supports {supported}"):
                autocast_and_scaler(precision, device)
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert supported_dtypes(gpu((9, 4))) == ["fp32", "bf16", "fp16"]


@pytest.mark.filterwarnings("error", "ignore:.*CUDA is not available")
def test_tf32_is_off_unless_configured_and_only_fp16_scales_gradients(gpu, monkeypatch):
    monkeypatch.setattr(torch.amp, "GradScaler", dict)
    for name, tf32 in (("fp32", False), ("tf32", True), ("bf16", False), ("fp16", False)):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not tf32
        assert autocast_and_scaler(name, gpu((8, 0)))[1] == {"enabled": name == "fp16"}
        assert [switches.allow_tf32 for switches in SWITCHES] == [tf32, tf32]
