import pytest
from recorded import Connection, Script

from epochmeter.agent import recording


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A script whose agent has a controller that replies at once."""
    monkeypatch.setattr(recording, "ScriptConnection", lambda *_: Connection(tmp_path / "events"))
    script = Script(tmp_path)
    yield script
    script.unhook()
    script.agent.end()
