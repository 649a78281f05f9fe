import pytest

from epochmeter.shared import protocol
from epochmeter.shared.problem import Place, Problem
from epochmeter.shared.protocol import NodeWindow, RankWindow, WindowMeasured, decode, encode

RANK = RankWindow(1, 2, 0, {"e2e_s": 0.5}, ["a.png"], False, 4.0, 2.0, None)
NODE = NodeWindow(
    "n1", {"energy_j": 3.0}, {"cpu0": 3.0}, {"end_j": 0.1}, "", ["process 7"], ["gpu0 is 3"], ["shared_gpu"]
)
MESSAGES = [
    protocol.WindowOpening("epoch", 3, 2, partial=True, epoch_steps=9),
    protocol.Progress(3, None, {"copy_s": 0.5}),
    WindowMeasured([RANK, RANK], [NODE]),
    protocol.Finished(),
    protocol.PeaksBorder(),
    protocol.Disturbance("process 7"),
    protocol.RankFailed(Problem("no memory", "reduce it", "oom", Place(key="batch")), 1),
    protocol.TraceFailed(Problem("no trace: no memory", "trace fewer steps", "oom")),
    protocol.NotMeasured(Problem("torch 1.9 cannot be measured", "upgrade it")),
    protocol.RankFailed(Problem("Two sentences. As they are."), 0),
    NODE,
]


def test_message_is_one_line_and_decodes_to_itself():
    for message in MESSAGES:
        line = encode(message)
        assert (line[-1:], line.count(b"\n")) == (b"\n", 1)
        decoded = decode(line)
        assert (type(decoded), decoded) == (type(message), message)
        if isinstance(message, WindowMeasured):
            assert (type(decoded.ranks[0]), type(decoded.nodes[0])) == (RankWindow, NodeWindow)


def test_invalid_line_is_rejected():
    invalid = {
        b'{"kind": "Unknown"}': KeyError,
        b'{"kind": "Progress"}': TypeError,
        b'{"kind": "Progress", "steps": 1, "extra": 2}': TypeError,
        b"{": ValueError,
        b'{"kind": "RankFailed", "problem": "no memory", "rank": 0}': ValueError,
        b'{"kind": "RankFailed", "problem": {"message": 1}, "rank": 0}': ValueError,
        b'{"kind": "RankFailed", "problem": {"where": {"file": []}}, "rank": 0}': ValueError,
    }
    for line, error in invalid.items():
        with pytest.raises(error):
            decode(line)
