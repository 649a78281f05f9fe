"""The connection of a script's process to the controller, which delays the script as little as possible."""

import os
import socket
import struct

from torch import distributed

from epochmeter.shared.protocol import Proceed, Recorded, WindowClosed, WindowMeasured
from epochmeter.worker.connection import ControllerConnection, ControllerGoneError

LIMIT_S = 30
"""How long the script waits for the controller, which may be stopped (SIGSTOP)."""
NO_ENERGY = "the first rank has the energy of all ranks"


def own_rank():
    """Return this process's rank, the number of ranks, and whether it is the first rank on its node."""
    rank, ranks, first = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)), 0
    if distributed.is_available() and distributed.is_initialized():
        first = rank = distributed.get_rank()
        ranks = distributed.get_world_size()
    return rank, ranks, int(os.environ.get("LOCAL_RANK", first)) == 0


class ScriptConnection(ControllerConnection):
    """The connection of the first rank: a controller that neither reads nor replies for `LIMIT_S` is an error."""

    def __init__(self, path, rank=0, sends_requests=True):
        super().__init__(path, rank, sends_requests)
        self.reply_limit_s = LIMIT_S
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", LIMIT_S, 0))

    def send(self, message):
        """Send a message that has no reply."""
        try:
            super().send(message)
        except BlockingIOError:
            self._socket.setblocking(False)  # further messages fail at once
            raise ControllerGoneError("the controller read nothing for {} s".format(LIMIT_S)) from None


class UnansweredConnection(ScriptConnection):
    """The connection of a rank other than the first: it waits neither for the controller nor for another rank.

    The script itself keeps its ranks together. The controller merges the windows of the ranks by time.
    """

    def post(self, message):
        """Send a message, and return a function that gives the rank's own metrics; the controller does not reply."""
        self.send(message)
        if isinstance(message, WindowClosed):
            self._name = message.window
        if not isinstance(message, WindowMeasured):
            return Proceed
        parts = message.ranks[0].parts
        recorded = Recorded(False, {"{}/{}".format(self._name, key): part for key, part in parts.items()}, NO_ENERGY)
        return lambda: recorded

    def progress(self, steps, now_ns, parts=None, last_loss=None):
        """Send nothing: the steps of the first rank are shown."""
