"""Tokens of batches with `input_ids` or an attention mask."""

import collections
import math
from types import SimpleNamespace

import pytest
import torch
from recorded import Connection, Script

from epochmeter.agent import recording
from epochmeter.agent.tokens import count_tokens

INPUTS = torch.zeros(2, 3, dtype=torch.long)
MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])
UNKNOWN = (pytest.approx(math.nan, nan_ok=True), 6)


@pytest.mark.parametrize(
    ("batch", "counted"),
    [
        ({"input_ids": INPUTS, "attention_mask": MASK}, (3, 6)),
        ({"input_ids": INPUTS, "attention_mask": MASK.bool()}, (3, 6)),
        ({"input_ids": INPUTS}, (6, 0)),
        ({"input_features": torch.ones(2, 9), "attention_mask": MASK}, (3, 6)),
        (collections.UserDict(input_ids=INPUTS, attention_mask=MASK), (3, 6)),
        (SimpleNamespace(input_ids=INPUTS, attention_mask=MASK), (3, 6)),
        (collections.namedtuple("Batch", "input_ids attention_mask")(INPUTS, MASK), (3, 6)),
        ({"input_ids": INPUTS, "attention_mask": MASK.float()}, UNKNOWN),
        ({"input_ids": INPUTS, "attention_mask": MASK[:, None]}, UNKNOWN),
        ({"input_ids": INPUTS, "attention_mask": torch.tensor([[1, 1, 2], [1, 0, 0]])}, UNKNOWN),  # packed sequences
        ({"input_ids": INPUTS, "attention_mask": -MASK}, UNKNOWN),
        ({"input_ids": INPUTS[:0], "attention_mask": MASK[:0]}, (0, 0)),
        ({"input_ids": INPUTS, "attention_mask": MASK.to("meta")}, UNKNOWN),
        ({"labels": INPUTS}, None),
        ((INPUTS, MASK), None),
        ([INPUTS], None),
        (INPUTS, None),
        (None, None),
    ],
)
def test_tokens_are_the_inputs_that_the_mask_does_not_mask(batch, counted):
    assert count_tokens(batch) == counted


def test_object_whose_attributes_fail_has_no_tokens():
    class Failing:
        def __getattr__(self, name):
            raise RuntimeError(name)

    assert count_tokens(Failing()) is None


def test_windows_have_the_tokens_of_their_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "ScriptConnection", lambda *_: Connection(tmp_path / "events"))
    script = Script(tmp_path)

    def parts(*batches):
        for _ in script.batches([*batches]):
            script.step(torch.ones(2, 4))
        return script.parts[-1]

    masked = {"input_ids": INPUTS, "attention_mask": MASK}
    on_gpu = {"input_ids": INPUTS, "attention_mask": MASK.to("meta")}
    found = [parts(masked, masked), parts({"input_ids": INPUTS}), parts(masked, on_gpu), parts(masked, [INPUTS])]
    tokens = [(window.get("tokens"), window.get("padding_tokens")) for window in found]
    assert tokens == [(6, 6), (6, None), (None, None), (None, None)]
    script.unhook()
    script.agent.end()


def test_looking_for_tokens_changes_no_batch():
    class Made(collections.UserDict):
        def __missing__(self, name):
            self[name] = torch.ones(2, 3)
            return self[name]

    class Asked:
        asked = 0

        def __getattr__(self, name):
            self.asked += 1
            raise AttributeError(name)

    made, default, asked = Made(x=1), collections.defaultdict(list, x=1), Asked()
    assert [count_tokens(batch) for batch in (made, default, asked)] == [None] * 3
    assert (list(made), list(default), asked.asked) == (["x"], ["x"], 0)
