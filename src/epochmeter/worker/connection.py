"""The training process's end of the socket to the controller, and its ties to the controller's life."""

import contextlib
import faulthandler
import os
import select
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, List, Optional

from epochmeter.shared.protocol import Joined, LossRead, Message, Progress, ReadParts, Translated, decode, encode
from epochmeter.worker.timeline import monotonic_ns

if TYPE_CHECKING:
    from epochmeter.worker.strategy import Single

PROGRESS_NS = 500 * 1000 * 1000


class ControllerGoneError(SystemExit):
    """The controller ended, and so does the training process."""


class ControllerConnection:
    """A process's own connection: when the process or the controller ends, the other one notices it."""

    reply_limit_s: Optional[float] = None

    def __init__(self, path: str, rank: Optional[int] = 0, sends_requests: bool = True) -> None:
        self._received = b""
        self._progress_ns = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
            self.send(Joined(rank, sends_requests))
        except BaseException:
            self._socket.close()  # else Python warns of it, in its development mode
            raise

    def send(self, message: Message) -> None:
        self._socket.sendall(encode(message), socket.MSG_NOSIGNAL)  # a script may let SIGPIPE end it

    def request(self, message: Message) -> Any:
        """Send a message and return its reply; SystemExit if the controller is gone, or silent for `reply_limit_s`."""
        return self.post(message)()

    def post(self, message: Message) -> Callable[[], Any]:
        """Send a message, and return a function that waits for its reply; replies have the order of the messages."""
        self.send(message)
        return self._reply

    def _reply(self) -> Any:
        while b"\n" not in self._received:
            poll = select.poll()  # unlike `select`, for any number of open files
            poll.register(self._socket, select.POLLIN)
            if not poll.poll(self.reply_limit_s and 1000 * self.reply_limit_s):
                raise ControllerGoneError("the controller did not answer for {} s".format(self.reply_limit_s))
            received = self._socket.recv(1 << 16)
            if not received:
                raise ControllerGoneError("the controller is gone")
            self._received += received
        reply, _, self._received = self._received.partition(b"\n")
        return decode(reply.decode("utf-8"))

    def die_with_controller(self) -> None:
        """Kill this process when the controller ends, although another program has started it."""

        def wait() -> None:
            poll = select.poll()
            poll.register(self._socket, 0)  # only for its end
            poll.poll()
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=wait, daemon=True).start()

    def close(self) -> None:
        """Close the connection, even if a child process inherited it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def progress(
        self,
        steps: int,
        now_ns: int,
        parts: Optional[ReadParts] = None,
        last_loss: Optional[Callable[[], float]] = None,
    ) -> None:
        """Send the steps of the open window, at most twice per second, with `parts()` and `last_loss()` if given.

        Training never waits here: if the controller does not read (it may be stopped), the message is dropped.
        """
        if self._is_due(now_ns):
            self.send_at_once(Progress(steps, last_loss() if last_loss else None, parts() if parts else None))

    def note_translated(self, sentences: int, of: int, now_ns: int) -> None:
        """Send the progress of translating after training, at most twice per second."""
        if self._is_due(now_ns):
            self.send_at_once(Translated(sentences, of))

    def _is_due(self, now_ns: int) -> bool:
        """Return whether progress may be sent again, and note that it is."""
        is_due = now_ns - self._progress_ns >= PROGRESS_NS
        if is_due:
            self._progress_ns = now_ns
        return is_due

    def send_at_once(self, message: Message) -> None:
        """Send a short message without waiting; it is dropped if the controller does not read (it may be stopped)."""
        with contextlib.suppress(BlockingIOError):  # a line this short is sent completely or not at all
            self._socket.send(encode(message), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


class RankedConnection:
    """The connection of all ranks: the first of a node sends the request when all have arrived; all get the reply."""

    def __init__(self, connection: ControllerConnection, strategy: "Single") -> None:
        self._connection, self._strategy = connection, strategy

    def request(self, message: Message) -> Any:
        return self.request_all(message)[0]

    def request_all(self, message: Message) -> List[Any]:
        """Return the replies of all nodes' controllers, the first node's first."""
        self._strategy.broadcast(None)
        reply = self._connection.request(message) if self._strategy.is_node_leader else None
        return [reply for reply in self._strategy.all_gather(reply) if reply is not None]

    def progress(
        self,
        steps: int,
        now_ns: int,
        parts: Optional[ReadParts] = None,
        last_loss: Optional[Callable[[], float]] = None,
    ) -> None:
        if self._strategy.rank == 0:
            self._connection.progress(steps, now_ns, parts, last_loss)

    def note_translated(self, sentences: int, of: int) -> None:
        """Send the progress of translating after training; the other ranks are about as far as the first one."""
        if self._strategy.rank == 0:
            self._connection.note_translated(sentences, of, monotonic_ns())

    def logging(self, batches: Iterable[Any], every: int, last_loss: Callable[[], float]) -> Iterable[Any]:
        """Return batches to train on; the first rank's loss is sent after every so many steps."""
        return self._logging(batches, every, last_loss) if self._strategy.rank == 0 else batches

    def _logging(self, batches: Iterable[Any], every: int, last_loss: Callable[[], float]) -> Iterator[Any]:
        for step, batch in enumerate(batches, 1):
            yield batch
            if step % every == 0:
                self._connection.send_at_once(LossRead(step, last_loss()))


def connect(rank: Optional[int], sends_requests: bool) -> ControllerConnection:
    """Connect to the controller that started this process, or exit if it has ended."""
    try:
        return ControllerConnection(os.environ["EPOCHMETER_SOCKET"], rank, sends_requests)
    except OSError:
        sys.exit("the controller has ended")


def dump_stack_on_signal() -> None:
    """Write the stacks of all threads to the log on a crash, and on the controller's SIGUSR1."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
