import socket
import threading
from unittest.mock import Mock

import pytest
from worker.ranked import Rank

from epochmeter.shared import protocol
from epochmeter.shared.protocol import (
    Finished,
    NodeWindow,
    Proceed,
    Progress,
    Recorded,
    Trained,
    Translated,
    WindowClosed,
    encode,
)
from epochmeter.worker.connection import ControllerConnection, RankedConnection

HALF_A_SECOND_NS = 500_000_000


class Controller:
    """The other end of a real socket: reads messages, writes replies."""

    def __init__(self, connection):
        self.connection = connection
        self.lines = connection.makefile("r", encoding="utf-8")

    def received(self):
        return protocol.decode(self.lines.readline())

    def progress(self):
        """All progress messages, and the message after them."""
        messages = []
        while isinstance(message := self.received(), Progress):
            messages.append(message)
        return messages, message


@pytest.fixture
def listener(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen(1)
        yield listener


@pytest.fixture
def connection(listener):
    return ControllerConnection(listener.getsockname())


@pytest.fixture
def controller(listener, connection):
    controller = Controller(listener.accept()[0])
    assert controller.received() == protocol.Joined(0, True)
    yield controller
    controller.lines.close()
    controller.connection.close()


def test_replies_that_arrive_together_belong_to_their_messages(connection, controller):
    connection.reply_limit_s = 30
    waits = [connection.post(Trained()), connection.post(WindowClosed(1, 2))]
    replies = encode(Recorded(False, {"a": 1.0}, "")) + encode(Proceed())
    threading.Timer(0.2, controller.connection.sendall, [replies]).start()
    assert [reply() for reply in waits] == [Recorded(False, {"a": 1.0}, ""), Proceed()]


def test_controller_that_exits_or_does_not_answer_in_time_ends_the_process(connection, controller):
    connection.reply_limit_s = 0.01
    with pytest.raises(SystemExit, match="did not answer"):
        connection.request(Trained())
    controller.connection.shutdown(socket.SHUT_WR)
    with pytest.raises(SystemExit, match="the controller is gone"):
        connection.request(Trained())


def test_progress_is_sent_at_most_twice_per_second(connection, controller):
    computed = iter([{"copy_s": number} for number in range(4)])  # parts that are not sent are not computed
    for step in range(1, 2001):  # a step each millisecond, from some moment on
        connection.progress(step, 7_000_000_000 + step * 1_000_000, lambda: next(computed))
    connection.send(Finished())
    sent = [Progress(500 * number + 1, None, {"copy_s": number}) for number in range(4)]
    assert controller.progress() == (sent, Finished())


def test_progress_of_translating_is_sent_at_most_twice_per_second(connection, controller):
    for sentences in range(1, 1001):
        connection.note_translated(sentences, 1000, 7_000_000_000 + sentences * 2_000_000)
    connection.send(Finished())
    received = [controller.received() for _ in range(5)]
    assert received == [*(Translated(250 * number + 1, 1000) for number in range(4)), Finished()]


def test_stopped_controller_does_not_delay_training(connection, controller):
    def train():
        for step in range(1, 10_001):  # more than a socket has room for
            connection.progress(step, now_ns=step * HALF_A_SECOND_NS)

    training = threading.Thread(target=train, daemon=True)
    training.start()
    training.join(30)
    assert not training.is_alive()
    threading.Thread(target=connection.send, args=(Finished(),), daemon=True).start()  # waits for room in the socket
    messages, end = controller.progress()
    assert [message.steps for message in messages] == list(range(1, len(messages) + 1))
    assert end == Finished()


def test_first_rank_of_each_node_sends_the_request_and_all_ranks_get_the_replies(connection, controller):
    stop, other_node = Recorded(True, {}, ""), NodeWindow("n1", {"energy_j": 2.0}, {"cpu0": 2.0}, {}, "", [], [], [])
    controller.connection.sendall(encode(stop) + encode(other_node))
    first, second = Rank(0), Rank(1, stop)
    first.broadcast, second.is_node_leader = Mock(), False
    assert RankedConnection(connection, first).request(WindowClosed(1, 2)) == stop
    assert first.broadcast.call_count == 1
    assert RankedConnection(None, second).request(WindowClosed(3, 4)) == stop
    second.is_node_leader = True
    assert RankedConnection(connection, second).request_all(WindowClosed(5, 6)) == [stop, other_node]
    assert [controller.received() for _ in range(2)] == [WindowClosed(1, 2), WindowClosed(5, 6)]


def test_first_rank_sends_the_loss_after_every_so_many_steps_and_the_last(connection, controller):
    trained = []
    first, second = (RankedConnection(connection, Rank(rank)) for rank in (0, 1))
    for batch in first.logging(range(4), 2, last_loss=lambda: 10.0 * trained[-1]):
        trained.append(batch)
    assert [controller.received() for _ in range(2)] == [protocol.LossRead(2, 10.0), protocol.LossRead(4, 30.0)]
    assert list(second.logging(range(4), 2, last_loss=lambda: 1 / 0)) == [0, 1, 2, 3]
