"""FLOPs of steps whose operators torch's observer has written, against counts by hand."""

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from epochmeter.agent import operators
from epochmeter.agent.operators import Recorder
from epochmeter.trace.flops import FORMULAS, is_uncounted
from epochmeter.trace.operators import COMPILED_KERNELS, OTHER_THREADS, UnreadableError, count_step

BATCH = 3
library = torch.library.Library("epochmeter_trace", "FRAGMENT")


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """counted(act, cache_bytes=) -> the step in which the act is called."""

    monkeypatch.setattr(operators, "is_alone", lambda path: True)

    def count(act, cache_bytes=0):
        act()  # before, so that nothing is initialized in it
        recorder = Recorder(str(tmp_path / "step.json"))
        try:
            act()
        finally:
            recorder.end()
        return count_step(tmp_path / "step.json", cache_bytes)

    return count


def training(model, *shape):
    """Return an act that trains a model once, without gradients of its inputs."""
    inputs = torch.randn(BATCH, *shape)

    def train():
        output = model(inputs)
        (output[0] if isinstance(output, tuple) else output).sum().backward()

    return train


@pytest.mark.parametrize(
    ("model", "shape", "forward", "passes"),
    [
        (nn.Linear(5, 7), (5,), 2 * 5 * 7, 2),
        (nn.Conv2d(4, 6, 3, padding=1), (4, 8, 8), 2 * 6 * 64 * 4 * 9, 2),
        (nn.Conv2d(4, 4, 3, padding=1, groups=4), (4, 8, 8), 2 * 4 * 64 * 9, 2),
        (nn.ConvTranspose2d(4, 6, 2, stride=2), (4, 8, 8), 2 * 4 * 64 * 6 * 4, 2),
        (nn.LSTM(5, 6, batch_first=True), (7, 5), 7 * 2 * 4 * 6 * (5 + 6), 3),
    ],
    ids=["linear", "convolution", "depthwise", "transposed", "LSTM"],
)
def test_layers_have_the_flops_of_their_products_for_each_gradient(counted, model, shape, forward, passes):
    """The gradient of the first inputs is computed by recurrent layers only."""
    step = counted(training(model, *shape))
    assert (step.flops, step.recomputed, dict(step.not_counted)) == (passes * BATCH * forward, 0, {})
    assert set(step.precisions) == {("fp32", isinstance(model, (nn.Conv2d, nn.ConvTranspose2d)))}
    assert sum(counts["flops"] for counts in step.operators.values()) == step.flops


def test_embedding_and_elementwise_operators_count_as_nothing(counted):
    table = nn.Embedding(9, 4)
    step = counted(lambda: functional.gelu(table(torch.tensor([[1, 2]]))).exp().sum().backward())
    assert (step.flops, step.operators, dict(step.not_counted)) == (0, {}, {})


@pytest.mark.parametrize("causal", [True, False])
def test_attention_counts_all_pairs_and_its_backward_pass_computes_the_scores_again(counted, causal):
    heads, positions, width = 2, 10, 8
    query = torch.randn(BATCH, heads, positions, width, requires_grad=True)
    attend = functional.scaled_dot_product_attention
    step = counted(lambda: attend(query, query, query, is_causal=causal).sum().backward())
    assert step.flops == (2 + 5) * BATCH * heads * 2 * positions * positions * width
    assert dict(step.not_counted) == {}


def test_operators_of_others_are_named(counted):
    @torch.library.custom_op("epochmeter_trace::hidden", mutates_args=())
    def hidden(values: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(values.detach().numpy() * 2)

    hidden.register_autograd(lambda context, gradient: gradient * 2)
    library.define("scale(Tensor values) -> Tensor")
    library.impl("scale", lambda values: values * 2, "CPU")

    class Hidden(torch.autograd.Function):
        @staticmethod
        def forward(context, values):
            return values.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient.contiguous()

    class Open(Hidden):
        @staticmethod
        def backward(context, gradient):
            return gradient * 2

    values = torch.ones(4, 4, requires_grad=True)

    def act():
        torch.ops.epochmeter_trace.scale(values.detach())
        hidden(values).sum().backward()
        Hidden.apply(values).sum().backward()
        Open.apply(values).sum().backward()
        torch.linalg.inv(torch.eye(3))

    assert dict(counted(act).not_counted) == {
        "epochmeter_trace::scale": 1, "GeneratedBackwardFor_epochmeter_trace_hidden_default": 1, "HiddenBackward": 1,
        "aten::linalg_inv": 1,
    }  # fmt: skip


def test_custom_operator_with_a_product_is_counted(counted):
    @torch.library.custom_op("epochmeter_trace::product", mutates_args=())
    def product(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first @ second

    step = counted(lambda: product(torch.ones(2, 3), torch.ones(3, 4)))
    assert (step.flops, dict(step.not_counted)) == (2 * 2 * 3 * 4, {})


def test_products_of_other_threads_are_named_and_not_counted(counted):
    def act():
        thread = threading.Thread(target=lambda: torch.ones(2, 2) @ torch.ones(2, 2))
        thread.start()
        thread.join()
        torch.ones(2, 3) @ torch.ones(3, 4)

    step = counted(act)
    assert (step.flops, dict(step.not_counted)) == (2 * 2 * 3 * 4, {OTHER_THREADS: 1})


def test_products_of_vmap_are_those_of_all_samples(counted):
    weights, rows = torch.ones(4, 3), torch.ones(5, 3)
    step = counted(lambda: torch.func.vmap(lambda row: weights @ row)(rows))
    assert step.flops == 2 * 5 * 4 * 3


@pytest.mark.parametrize("reentrant", [True, False])
def test_operators_that_checkpointing_repeats_are_recomputed(counted, reentrant):
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
    other = nn.Linear(4, 4)
    inputs = torch.randn(BATCH, 4, requires_grad=True)

    def act():
        for _ in range(2):  # the second time is after the exception by which the first recomputation ends
            checkpoint(layers, inputs, use_reentrant=reentrant).sum().backward()
            other(inputs).sum().backward()

    step, each = counted(act), 2 * BATCH * 4 * 4
    assert step.recomputed == 2 * 2 * each
    assert step.flops == step.recomputed + 2 * 3 * 3 * each


def test_gradients_of_gradients_are_not_recomputed(counted):
    layer, inputs = nn.Linear(4, 4), torch.randn(BATCH, 4, requires_grad=True)

    def act():
        (gradient,) = torch.autograd.grad(layer(inputs).square().sum(), inputs, create_graph=True)
        gradient.square().sum().backward()

    step, each = counted(act), 2 * BATCH * 4 * 4
    assert step.recomputed == 0
    assert step.flops > 3 * each


@pytest.fixture
def compiler():
    """Forgets what a test has compiled: an agent in another test would see it."""
    yield
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def test_compiled_graphs_are_named_and_their_external_products_are_counted(compiler, counted):
    layer = nn.Linear(16, 16)
    step = counted(training(torch.compile(layer, backend="aot_eager"), 16))
    assert step.flops == 2 * BATCH * 2 * 16 * 16
    assert set(step.not_counted) == {COMPILED_KERNELS}


def test_half_precision_and_bytes_beyond_the_cache_are_known(counted):
    first = torch.ones(8, 8, dtype=torch.bfloat16)
    step = counted(lambda: first @ first, cache_bytes=3 * 8 * 8 * 2 - 1)
    assert step.precisions == {("bf16", False): 2 * 8**3}
    assert (step.calls, step.bytes, step.uncached_bytes) == (1, 3 * 8 * 8 * 2, 3 * 8 * 8 * 2)
    assert counted(lambda: first @ first, cache_bytes=3 * 8 * 8 * 2).uncached_bytes == 0


def test_calls_and_bytes_are_those_that_run_without_views(counted):
    values = torch.ones(4, 4)
    step = counted(lambda: (values.view(16).add(values.view(16)), values.t().reshape(1, 4, 4), values.relu_()))
    assert (step.calls, step.bytes) == (2, 3 * 64 + 2 * 64)


@pytest.mark.parametrize("text", ["{}", '{"nodes": [{}]}', '{"nodes": []}', '{"nodes": [{"name": "a", "attrs": []}]}'])
def test_file_of_another_format_is_refused(tmp_path, text):
    (tmp_path / "step.json").write_text(text)
    with pytest.raises(UnreadableError):
        count_step(tmp_path / "step.json")


def test_names_of_uncounted_operators_have_no_formula_and_are_no_elementwise_ones():
    uncounted = [f"aten::{name}" for name in ("_sparse_mm", "linalg_svd", "_fft_r2c", "_grouped_mm", "bilinear")]
    assert all(map(is_uncounted, uncounted))
    others = ("_thnn_fused_lstm_cell", "linalg_vector_norm", "add", "comm_hook", "glu", "addcmul_", "relu")
    assert not any(is_uncounted(f"aten::{name}") for name in others)
    assert not any(map(is_uncounted, FORMULAS))


def test_other_products_and_recurrent_layers_of_a_gpu():
    def flops(name, shapes, values=(), outputs=()):
        return FORMULAS[f"aten::{name}"](shapes, values, outputs)

    assert flops("mv", [[3, 4], [4]]) == 2 * 3 * 4
    assert flops("baddbmm", [[], [2, 3, 4], [2, 4, 5]]) == 2 * 2 * 3 * 4 * 5
    weights = [[24, 5], [24, 6], [24], [24]]
    assert flops("_cudnn_rnn", [[7, 3, 5], weights]) == 2 * 21 * 24 * 11
    for mask, passes in (([True, True, True, True], 2), ([False, False, False, True], 1)):
        assert flops("_cudnn_rnn_backward", [[7, 3, 5], weights], [mask, []]) == passes * 2 * 21 * 24 * 11
