import pytest
import torch
from quick_replies import Connection
from torch.optim.optimizer import register_optimizer_step_post_hook

from epochmeter.agent import hooks, recorder
from epochmeter.agent.agent import Agent


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """An agent whose controller replies at once."""
    monkeypatch.setattr(recorder, "ScriptConnection", Connection)
    monkeypatch.setattr(recorder, "COLLECT_INTERVAL_NS", 10_000_000)  # tests have short epochs
    agent = Agent("", str(tmp_path), steps_per_window=5)
    hook = register_optimizer_step_post_hook(agent.optimizer_stepped)
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)  # restored at the end
    agent.remove_backward_hook = hooks.hook_backward_passes(agent.backward_ended)
    yield agent
    hook.remove()
    agent.end()
