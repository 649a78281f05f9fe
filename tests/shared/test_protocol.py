import pytest

from epochmeter.shared.protocol import (
    KINDS,
    Built,
    Finished,
    NodeWindow,
    Proceed,
    RankWindow,
    WindowMeasured,
    WindowOpening,
    decode,
    encode,
)  # fmt: skip

RANK = RankWindow(1, 2, 0, {"e2e_s": 0.5}, ["a.png"], False, 4.0, 2.0, None)
NODE = NodeWindow("n1", {"energy_j": 3.0}, {"cpu0": 3.0}, {"end_j": 0.1}, "", ["process 7"])
MESSAGES = [
    Built({"parameters": 3}, {"torch": "2.1"}, ["a note"]),
    WindowOpening("epoch", 3, 2, partial=True, epoch_steps=9),
    WindowMeasured([RANK, RANK], [NODE]),
    Finished(),
    Proceed(stop=True),
    NODE,
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_message_is_one_line_and_decodes_to_itself(message):
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    decoded = decode(line)
    assert decoded == message
    assert type(decoded) is type(message)


def test_ranks_and_nodes_of_a_window_keep_their_types():
    decoded = decode(encode(WindowMeasured([RANK], [NODE])))
    assert isinstance(decoded.ranks[0], RankWindow)
    assert isinstance(decoded.nodes[0], NodeWindow)


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


def test_every_kind_is_listed_under_its_name():
    assert all(name == kind.__name__ for name, kind in KINDS.items())
