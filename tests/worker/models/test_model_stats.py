import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from epochmeter.worker.models import model_stats
from epochmeter.worker.models.lenet import LeNet
from epochmeter.worker.models.model_stats import OperatorCounter, cache_bytes, compute_model_stats, flop_counter
from epochmeter.worker.models.transformer import Transformer
from epochmeter.worker.models.vision import classifier
from epochmeter.worker.tasks import Classification, Regression, Translation

CPU = torch.device("cpu")
FLOAT, LONG = 4, 8
BATCH = 8
PLAIN = {"_target_": "torch.optim.SGD", "lr": 0.1}
IMAGES = Classification(auxiliary=0.4)


def job(optimizer=PLAIN, precision="fp32", **dataset):
    return {"dataset": dataset, "batch": BATCH, "optimizer": optimizer, "precision": precision}


def stats_of(model, keys, task, device="cpu"):
    return compute_model_stats(model, keys, task, torch.device(device))


def metrics_of(*arguments, **keywords):
    return stats_of(*arguments, **keywords).metrics


def of_polynomial(layer=None, **how):
    return metrics_of(layer or nn.Linear(4, 1), job(features=4, **how), Regression("smooth_l1_loss"))


def of_images(model, size, channels=1, **how):
    return metrics_of(model, job(size=size, channels=channels, classes=10, **how), IMAGES)


def test_linear_layer_stats_match_manual_calculation():
    stats = of_polynomial()
    assert {name: stats.get(name) for name in stats if "operator" not in name} == {
        "parameters": 4 + 1,
        "weight_bytes": 5 * FLOAT,
        "gradient_bytes": 5 * FLOAT,
        "optimizer_bytes": 0,
        "recomputed_flops_per_sample": 0,
        "uncached_bytes_per_sample": stats["operator_bytes_per_sample"] if not cache_bytes(CPU) else 0,
        "flops_per_sample": 2 * 4 + 2 * 4,  # a product and a sum a weight, forward, and once more for its gradient
        "activation_bytes": BATCH * (4 + 1 + 1) * FLOAT,  # the layer's input; the loss's output and target
    }


def test_optimizer_state_size_by_optimizer_and_activation_bytes_by_precision():
    momentum, adam = {**PLAIN, "momentum": 0.9}, {"_target_": "torch.optim.AdamW"}
    for optimizer, kept in ((momentum, 5 * FLOAT), (adam, 2 * 5 * FLOAT + 2 * FLOAT)):
        assert of_polynomial(optimizer=optimizer)["optimizer_bytes"] == kept
    assert "activation_bytes" not in of_polynomial(precision="bf16")
    assert of_polynomial(precision="tf32")["activation_bytes"] == of_polynomial()["activation_bytes"]


def test_flops_match_the_published_products_per_pass_also_with_grouped_convolutions():
    published = ("resnet18", 1.814e9, 64 * 3 * 49, 1e-3), ("mobilenet_v3_large", 0.219e9, 16 * 3 * 9, 0.02)
    for architecture, products, stem, error in published:
        with torch.device("meta"):
            model = classifier(architecture, 3, 1000)
        expected = 3 * products - 112 * 112 * stem  # the stem's input needs no gradient
        assert of_images(model, 224, channels=3)["flops_per_sample"] / 2 == pytest.approx(expected, rel=error)


def test_activation_bytes_count_each_storage_once_without_weights():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 10), nn.BatchNorm1d(10), nn.ReLU(inplace=True))
    stats = of_images(model, 4)
    images, hidden = BATCH * 16 * FLOAT, BATCH * 10 * FLOAT
    normed, statistics = hidden, 2 * 10 * FLOAT  # the ReLU works in the norm's output, which is its own then
    scores, targets, weights = hidden, BATCH * LONG, FLOAT  # of the loss: log-probabilities, labels, their number
    assert stats["activation_bytes"] == images + hidden + statistics + normed + scores + targets + weights
    assert (stats["weight_bytes"], stats["gradient_bytes"]) == ((170 + 20 + 20) * FLOAT + LONG, (170 + 20) * FLOAT)
    model[1].requires_grad_(False)
    frozen = of_images(model, 4)
    assert (frozen["parameters"], frozen["gradient_bytes"], frozen["weight_bytes"]) == (20, 80, stats["weight_bytes"])


class DataDependent(nn.Linear):
    """Reads a value, which the meta device does not have."""

    def forward(self, inputs):
        return super().forward(inputs) * float(inputs.sum().item() < 1e9)


def test_unavailable_stats_are_absent():
    counts = {"parameters": 5, "weight_bytes": 5 * FLOAT, "gradient_bytes": 5 * FLOAT}
    unavailable = stats_of(DataDependent(4, 1), job(features=4), Regression("smooth_l1_loss"))
    assert unavailable == (counts, None, {})


def test_operators_are_counted_with_calls_flops_and_bytes_except_views():
    first, second = torch.ones(4, 8), torch.ones(4, 8)
    with flop_counter() as flop_counts, OperatorCounter(flop_counts, cache_bytes=4 * 40) as counter:
        product = first @ second.t()  # the transposed matrix is a view
        product += 1
        product.exp()
    read_and_written = {"mm": (32 + 32 + 16) * FLOAT, "add_": (16 + 16) * FLOAT, "exp": (16 + 16) * FLOAT}
    assert counter.totals == {"calls": 3, "flops": 2 * 4 * 4 * 8, "operator_bytes": sum(read_and_written.values()),
                              "uncached_bytes": read_and_written["mm"]}  # fmt: skip
    assert counter.operators == {"aten::mm": {"calls": 1, "flops": 256, "bytes": read_and_written["mm"]}}


def test_operators_of_the_optimizer_are_counted_on_a_cpu_only(monkeypatch):
    monkeypatch.setattr(model_stats, "cache_bytes", lambda device: 0)
    layer, task = nn.Linear(4, 1), Regression("mse_loss")
    cpu, gpu = (metrics_of(layer, job(features=4), task, device)["operator_calls"] for device in ("cpu", "cuda"))
    assert cpu == gpu + 2, "one per parameter: weights and bias"


class Checkpointed(nn.Sequential):
    def forward(self, inputs):
        return checkpoint(super().forward, inputs, use_reentrant=False)


def test_recomputed_forward_operators_are_counted_separately():
    def stats(kind):
        return of_images(nn.Sequential(nn.Flatten(), nn.Linear(16, 16), kind(nn.Linear(16, 16), nn.Linear(16, 10))), 4)

    plain, checkpointed = stats(nn.Sequential), stats(Checkpointed)
    recomputed = checkpointed["recomputed_flops_per_sample"]
    assert plain["recomputed_flops_per_sample"] == 0
    assert recomputed >= 2 * 16 * 16  # the last layer is not needed again
    assert checkpointed["flops_per_sample"] == plain["flops_per_sample"] + recomputed


def test_conventions_of_flops_per_sample_leave_model_and_random_state_unchanged():
    words, length, width, layers = 20, 6, 8, 2
    model, state = Transformer(words, length, width, 2, 1, 16, 0.1), torch.random.get_rng_state()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = stats_of(model, job(words=words, length=length), Translation()).conventions
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), state)
    weights = sum(parameter.numel() for parameter in model.parameters()) - 2 * words * width
    share = 1 + length / (6 * width) + words / (12 * layers * width)
    assert found["6n"] == 6 * weights * length
    assert found["megatron"] == pytest.approx(72 * length * layers * width**2 * share)
    assert found["torchtitan"] == found["6n"] + 12 * layers * width * length**2
    assert found["counted"] > 0
    images = stats_of(LeNet(1, 10), job(size=32, channels=1, classes=10, length=length), IMAGES)
    assert list(images.conventions) == ["counted"], "images have no tokens"
