import pytest

from epochmeter.shared.protocol import (
    Built,
    Finished,
    NodeWindow,
    Progress,
    RankWindow,
    Recorded,
    WindowMeasured,
    WindowOpening,
    decode,
    encode,
)  # fmt: skip

RANK = RankWindow(1, 2, 0, {"e2e_s": 0.5}, ["a.png"], False, 4.0, 2.0, None)
NODE = NodeWindow("n1", {"energy_j": 3.0}, {"cpu0": 3.0}, {"end_j": 0.1}, "", ["process 7"])
MESSAGES = [
    Built({"parameters": 3}, {"torch": "2.1"}),
    WindowOpening("epoch", 3, 2, partial=True, epoch_steps=9),
    Progress(3, None, {"copy_s": 0.5}),
    WindowMeasured([RANK, RANK], [NODE]),
    Finished(),
    Recorded(True, {}, ""),
    NODE,
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_message_is_one_line_and_decodes_to_itself(message):
    line = encode(message)
    assert (line[-1:], line.count(b"\n")) == (b"\n", 1)
    decoded = decode(line)
    assert (type(decoded), decoded) == (type(message), message)
    if isinstance(message, WindowMeasured):
        assert (type(decoded.ranks[0]), type(decoded.nodes[0])) == (RankWindow, NodeWindow)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b'{"kind": "Unknown"}', KeyError),
        (b'{"kind": "Progress"}', TypeError),
        (b'{"kind": "Progress", "steps": 1, "extra": 2}', TypeError),
        (b"{", ValueError),
    ],
)
def test_invalid_line_is_rejected(line, error):
    with pytest.raises(error):
        decode(line)
