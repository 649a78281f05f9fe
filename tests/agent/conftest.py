import pytest
from quick_replies import Connection
from torch.optim.optimizer import register_optimizer_step_post_hook

from epochmeter.agent import agent as module


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """An agent whose controller replies at once."""
    monkeypatch.setattr(module, "ControllerConnection", Connection)
    agent = module.Agent("", str(tmp_path), steps_per_window=5)
    hook = register_optimizer_step_post_hook(agent.optimizer_stepped)
    yield agent
    hook.remove()
    agent.end()
