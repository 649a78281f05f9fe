"""Facts of a process that the segmentation of its events needs."""

import math

import pytest
import torch
from torch.overrides import TorchFunctionMode

from epochmeter.agent.facts import FactsFile, as_float, process_facts, trained_gpu
from epochmeter.agent.samples import counted_by_length
from epochmeter.agent.tokens import count_tokens


class Functions(TorchFunctionMode):
    """Notes the functions of torch that are called, as a script may."""

    seen = 0

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        self.seen += 1
        return function(*arguments, **(keywords or {}))


def test_function_modes_of_a_script_see_no_reading_of_its_tensors(tmp_path):
    model = torch.nn.Linear(2, 1)
    optimizer, rate = torch.optim.SGD(model.parameters(), lr=0.1), torch.tensor(0.25)
    facts, ids = FactsFile(str(tmp_path)), torch.ones(2, 3, dtype=torch.long)
    with Functions() as functions:
        assert trained_gpu(optimizer) is None
        facts.optimizer_number(optimizer)
        assert as_float(rate) == 0.25
        assert count_tokens({"input_ids": ids, "attention_mask": ids}) == (6, 6)
        assert counted_by_length(2)(ids) == 2
        assert process_facts()["training"]["accelerator"] == "cpu"
    assert functions.seen == 0
    assert as_float(2) == 2
    assert math.isnan(as_float(None))


@pytest.mark.parametrize(
    ("variables", "local_ranks"),
    [
        ({}, 1),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, 2),
        ({"LOCAL_WORLD_SIZE": "2"}, 1),
    ],
    ids=["no launcher", "two of four on this node", "left by a launcher around a single process"],
)
def test_ranks_of_this_node_are_those_of_the_launcher(monkeypatch, variables, local_ranks):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert process_facts()["local_ranks"] == local_ranks
