import time

import pytest

from epochmeter.agent import recorder
from epochmeter.agent.recorder import ScriptConnection
from epochmeter.run import launch
from epochmeter.shared.protocol import NotMeasured, Trained
from epochmeter.worker.connection import ControllerGoneError


def test_script_waits_for_a_controller_that_neither_reads_nor_replies_for_a_limited_time(monkeypatch):
    monkeypatch.setattr(recorder, "LIMIT_S", 1)
    with launch.listening_socket() as listener:
        script = ScriptConnection(listener.getsockname())
        with pytest.raises(ControllerGoneError, match="did not answer for 1 s"):
            script.request(Trained())
        with pytest.raises(ControllerGoneError, match="read nothing for 1 s"):
            script.send(NotMeasured("longer than the socket has room for" * 100_000))
        begun_s = time.monotonic()
        with pytest.raises(ControllerGoneError):
            script.send(NotMeasured("the controller read nothing"))
        assert time.monotonic() - begun_s < 0.5, "it waits once"
        script.close()
