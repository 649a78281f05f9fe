"""Opens and closes the windows of a script: its clock, the messages to the controller, the steps in the record.

The connection to the controller delays the script as little as possible.
"""

import collections
import contextlib
import os
import socket
import struct

import torch
from torch import distributed

from epochmeter.shared.protocol import Built, Proceed, RankWindow, Recorded, WindowClosed, WindowMeasured, WindowOpening
from epochmeter.shared.record import Record
from epochmeter.worker.clock import Clock
from epochmeter.worker.connection import ControllerConnection, ControllerGoneError
from epochmeter.worker.device import describe_device, make_timeline
from epochmeter.worker.timeline import monotonic_ns

LIMIT_S = 30  # how long the script waits for the controller, which may be stopped (SIGSTOP)
NO_ENERGY = "the first rank has the energy of all ranks"
NO_PARTS = "no training step in a pass over a torch DataLoader: an epoch is {} {}, and waits for data are not measured"
LOADER_PARTS = ("data_stall_s", "host_wait_s", "compute_s", "overhead_s", "loader_start_s", "loader_stop_s")
"""Absent without a DataLoader."""
COLLECT_INTERVAL_NS = 400 * 1000 * 1000
"""Interval between two reads of the device's timestamps: a read takes 0.1 ms of a script's step.

It allows two progress reports per second, and needs at most the events of 2,000 steps.
"""
AWAIT_INTERVAL_NS = 10 * 1000 * 1000 * 1000
"""How long the script opens windows without waiting for the controller, which updates MLflow while the script waits."""
MAX_UNREAD = 16  # number of unread replies for which the socket has room


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
        try:
            super().send(message)
        except BlockingIOError:
            self._socket.setblocking(False)  # further messages fail at once
            raise ControllerGoneError("the controller read nothing for {} s".format(LIMIT_S)) from None


class UnansweredConnection(ScriptConnection):
    """The connection of a rank other than the first, without replies: the controller merges the ranks by time."""

    def post(self, message):
        """Send a message, and return a function that gives the rank's own metrics."""
        self.send(message)
        if isinstance(message, WindowClosed):
            self._name = message.window
        if not isinstance(message, WindowMeasured):
            return Proceed
        parts = message.ranks[0].parts
        recorded = Recorded(False, {"{}/{}".format(self._name, key): part for key, part in parts.items()}, NO_ENERGY)
        return lambda: recorded


class WindowRecorder:
    """Measures and records the windows of a script; `observe` is that of `Clock`.

    If counters are read at the borders of windows, the script waits for the controller there, otherwise rarely.
    """

    def __init__(self, socket, folder, observe):
        self.clock = None  # of the last window
        self.epochs = 0  # number of measured epochs
        self.expected_epochs = None  # number of epochs at the script's end; None: not known
        self.recorded = {}  # the controller's reply to the last window of each name, after `read_replies`
        self._socket, self._record, self._observe = socket, Record(folder), observe
        self.connection = self.device = None  # before the first window
        self._reads_counters = self._awaits_next = True
        self._awaited_ns = 0
        self._unread = collections.deque()  # names of windows, and functions that wait for the replies to them

    def connect(self):
        rank, ranks, self.is_first = own_rank()
        make_connection = ScriptConnection if self.is_first else UnansweredConnection
        self.connection = make_connection(self._socket, rank, self.is_first)
        facts = describe_device(used_device())
        try:
            reply = self.connection.request(Built({}, dict(facts, ranks=ranks) if ranks > 1 else facts))
        except (ControllerGoneError, ConnectionError):
            reason = "the controller is gone or silent, or it measures another process of the script"
            raise RuntimeError(reason) from None
        self._reads_counters = self.is_first and reply.reads_counters

    def open(self, window):
        """Open a window: the controller reads its counters, then the clock starts."""
        if window.device != self.device:
            self.device = window.device
            timeline, interval_ns = make_timeline(window.device), COLLECT_INTERVAL_NS
            self.clock = Clock(timeline, observe=self._observe, collect_interval_ns=interval_ns, copies=False)
        if window.device.type == "cuda":
            torch.cuda.synchronize()
        is_awaited = self.is_first and self._awaits_next
        name = window.name or "epoch"
        steps = window.limit or window.length or 0
        opening = WindowOpening(name, self.epochs, steps, epochs=self.expected_epochs, is_awaited=is_awaited)
        reply = self.connection.post(opening)
        if is_awaited:
            self.read_replies()
            reply()
            self._awaited_ns = monotonic_ns()
        else:
            self.read_replies(unread=MAX_UNREAD)
        self.clock.open()

    def close(self, window, name):
        """Record a closed window under a name; discard it if the name is None."""
        times = self.clock.opened_ns, self.clock.closed_ns
        epoch = self.epochs if name == "epoch" else max(0, self.epochs - 1)
        steps = window.batches if window.is_partial and window.batches != window.limit else None
        reply = self.connection.post(WindowClosed(*times, name or "", epoch, steps, self._reads_counters))
        parts = self._parts(window)
        if name == "epoch":
            if window.learning_rate is not None:
                parts["learning_rate"] = float(window.learning_rate)
            if self.is_first:
                self._record.append_steps(self.clock.rows, durably=False)  # the controller waits for the disk
            self.epochs += 1
        if self._reads_counters:
            reply()
        if name:
            measured = RankWindow(*times, 0, parts, [], False, 0.0, 0.0, None)
            self._awaits_next = self._reads_counters or monotonic_ns() - self._awaited_ns >= AWAIT_INTERVAL_NS
            self._unread.append((name, self.connection.post(WindowMeasured([measured], [], self._awaits_next))))

    def read_replies(self, unread=0):
        """Read the controller's replies to windows until this number of replies is unread."""
        while len(self._unread) > unread:
            name, reply = self._unread.popleft()
            self.recorded[name] = reply()

    def end(self, messages):
        """Send the last messages and close the connection."""
        if self.connection is not None:
            with contextlib.suppress(OSError, ControllerGoneError):
                for message in messages:
                    self.connection.send(message)
            with contextlib.suppress(OSError):  # the script may have closed all files
                self.connection.close()

    def _parts(self, window):
        """Return a window's measurements, without those that are unknown."""
        parts = self.clock.parts()
        if window.is_counted:
            parts = {part: value for part, value in parts.items() if part not in LOADER_PARTS}
        elif window.is_exhausted:
            late_s = self.clock.tail_s - parts["loader_stop_s"]
            parts.update(compute_s=parts["compute_s"] + late_s, overhead_s=parts["overhead_s"] - late_s)
        if window.samples is not None:
            parts["samples"] = window.samples
        if not self.is_first:
            parts["first_gap_s"] = self.clock.first_gap_s  # so that the controller can leave out the time before
        return parts


def used_device():
    """Return the device of the script: the current GPU if it has initialized CUDA, else the CPU."""
    if torch.cuda.is_initialized():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
