"""Requests to jtop's service by the real client, in a process of their own."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src"
pytestmark = pytest.mark.skipif(not find_spec("jtop"), reason="jetson-stats is not installed")

SERVED = """
import json, sys, tempfile, threading
sys.path.insert(0, sys.argv[1])
import jtop_service
import jtop.service
from epochmeter.power.knobs import jetson

jtop.service.JTOP_PIPE = tempfile.mkdtemp() + "/socket"
service = jtop_service.Service({"interval_s": 0.05})
server = jtop_service.serve(service, jtop.service.JTOP_PIPE)
threading.Thread(target=server.serve_forever, daemon=True).start()
results = []
for call in sys.argv[2:]:
    service.requests.changes, service.script["locked"] = [], call == "request_clocks(False)"
    service.data.update(service.sample(1.0))
    try:
        eval("jetson." + call)
        results.append(service.requests.changes)
    except RuntimeError as error:
        results.append(str(error))
print(json.dumps(results), flush=True)
"""


def test_requests_to_the_service():
    """Requests never have `force`, which would reboot the board, and modes must have the same number."""
    expected = {
        "request_mode(1, '7W')": [{"nvp": {"id": 1, "force": False}}],
        "request_mode(2, '7W')": "jtop has no power mode 2 named 7W",
        "request_mode(0, '7W')": "jtop has no power mode 0 named 7W",
        "request_clocks(True)": [{"jc": {"enable": True}}],
        "request_clocks(False)": [{"jc": {"enable": False}}],
        "request_fan('manual', 100.0)": [
            {"fan": {"command": "profile", "name": "pwmfan", "profile": "manual"}},
            {"fan": {"command": "speed", "name": "pwmfan", "speed": 100.0, "idx": 0}},
        ],
        "request_fan('cool', 30.0)": [{"fan": {"command": "profile", "name": "pwmfan", "profile": "cool"}}],
        "request_fan('nvfancontrol', 30.0)": 'Profile "nvfancontrol" does not exist for Fan "pwmfan".',
    }
    command = [sys.executable, "-c", SERVED, str(Path(__file__).parents[1]), *expected]
    output = subprocess.check_output(command, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)})
    for (call, requests), sent in zip(expected.items(), json.loads(output), strict=True):
        assert sent == requests or (call.startswith("request_fan('nvfancontrol'") and requests in sent), call
