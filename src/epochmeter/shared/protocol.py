"""Messages between the controller and the training process.

They are JSON objects, one per line, over a Unix stream socket that the controller listens on. Each rank has its own
connection, and so has torchrun where it starts them. Only the first rank of a node sends requests. It waits for the
reply, and all ranks wait for it, so that nobody trains while the controller reads counters. The ranks of a script do
not wait for each other, and only the first rank gets replies. Messages without `is_awaited` get no reply: the first
rank sends them if no counters are read at the borders of windows.

    message           sender                      reply         meaning
    Joined            every process               -             connected
    Built             first rank of each node     Proceed       model and data are ready
    WindowOpening     first rank of each node     Proceed       prepare the page cache, read the counters
    Progress          first rank                  -             the open window so far, at most twice per second
    WindowClosed      first rank of each node     Proceed,      read the counters; the controller of a node that is
                                                  NodeWindow    not the first replies with the energy of its node
    WindowMeasured    first rank of each node     Recorded,     record and publish the window; the controller of a
                                                  Proceed       node that is not the first replies with Proceed
    Trained           first rank of each node     Proceed       all windows are recorded
    Traced            first rank                  -             the profiler's trace is written
    TraceFailed       any rank                    -             a result of the profiler is missing, and why
    NotMeasured       agent of a script           -             why measurements are missing
    Finished          every rank                  -             the process exits with 0
    RankFailed        any rank                    -             an exception ended the rank
    RankExited        torchrun                    -             a rank ended without a message, for example by a signal
"""

import json
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Union


class Joined(NamedTuple):
    """First message on a connection; `rank` is None for torchrun, the first rank of a node sends requests."""

    rank: Optional[int]
    sends_requests: bool


class Built(NamedTuple):
    """The training process is ready, with facts for the record."""

    model: Mapping[str, Any]
    training: Mapping[str, Any]


class WindowOpening(NamedTuple):
    """A window (one epoch of training, or one evaluation) begins after the reply.

    Attributes:
        window: `epoch`, `val`, or a name of a script's own.
        epoch: from 0.
        steps: 0 if it is not known.
        partial: whether the run ends before the last step of this epoch.
        epoch_steps: of a complete epoch, if `partial`.
        epochs: number of epochs of a script; None if it is not known.
        is_awaited: whether the sender waits for the reply.
    """

    window: str
    epoch: int
    steps: int
    partial: bool = False
    epoch_steps: Optional[int] = None
    epochs: Optional[int] = None
    is_awaited: bool = True


class Progress(NamedTuple):
    """The open window so far.

    Attributes:
        steps: number of steps that the device has finished.
        loss: loss of the last step, if it is to be shown.
        parts: times of these steps in seconds (`data_stall_s`, `copy_s`, `compute_s`, `overhead_s`); times that are
            not measured are absent.
    """

    steps: int
    loss: Optional[float] = None
    parts: Optional[Dict[str, float]] = None


class WindowClosed(NamedTuple):
    """A window has ended. Times are of the monotonic clock of the first rank of the node.

    Attributes:
        window: its name, if that is known only at its end; empty: the window is discarded.
        epoch: its epoch, if that is known only at its end.
        steps: its number of steps, if it is less than announced.
        is_awaited: whether the sender waits for the reply.
    """

    opened_ns: int
    closed_ns: int
    window: Optional[str] = None
    epoch: Optional[int] = None
    steps: Optional[int] = None
    is_awaited: bool = True


class RankWindow(NamedTuple):
    """One rank's measurements of one window; `parts` are metrics by their names without prefix.

    Attributes:
        opened_ns: monotonic clock of the rank's node, as `closed_ns`.
        bad: the first samples that could not be read.
        paused: whether the process was stopped and continued (SIGCONT) in the window.
        weight: number of targets that the loss is a mean of.
        loss_sum: sum of the loss over them.
        correct: number of correct predictions; None if the task has no accuracy.
    """

    opened_ns: int
    closed_ns: int
    node: int
    parts: Dict[str, float]
    bad: List[str]
    paused: bool
    weight: float
    loss_sum: float
    correct: Optional[float]


class NodeWindow(NamedTuple):
    """The energy that a node other than the first used in a window, measured by its controller.

    Attributes:
        node: host name.
        metrics: energies in J and powers in W, by metric name; without those that are not available.
        joules: energy by domain.
        term: the window's part of the run's total: energies in J, instrument times in s.
        reason: why energy is missing; empty if it is not.
        other_gpu_processes: other processes that computed on the node's GPUs.
    """

    node: str
    metrics: Dict[str, float]
    joules: Dict[str, float]
    term: Dict[str, float]
    reason: str
    other_gpu_processes: List[str]


class WindowMeasured(NamedTuple):
    """The measurements of a window: one entry per rank, and one per node other than the first.

    Attributes:
        is_awaited: whether the sender waits for the reply before it opens another window.
    """

    ranks: List[RankWindow]
    nodes: List[NodeWindow]
    is_awaited: bool = True


class Trained(NamedTuple):
    """All windows are measured; a profiler trace may follow."""


class Traced(NamedTuple):
    """The profiler's trace is written. Times are the borders of its steps, of the rank's monotonic clock.

    Attributes:
        wall_offset_ns: time of the wall clock, which the trace has, at zero of the monotonic clock.
        loads: batches of the last pass over the data: durations to read, preprocess and decode (a part of preprocess)
            and the start, in ns; and the DataLoader worker, -1 for the training process itself.
    """

    opened_ns: int
    closed_ns: int
    wall_offset_ns: int
    loads: List[List[int]]


class TraceFailed(NamedTuple):
    """A result of the profiler is missing: the trace, memory by kind, or counters."""

    reason: str


class NotMeasured(NamedTuple):
    """The agent of a script discarded a window, or stopped measuring; the script continues."""

    reason: str


class Finished(NamedTuple):
    """The process has done all its work."""


class RankFailed(NamedTuple):
    """An exception ended a rank: class of the failure, for the record, and one line for the user."""

    failure: str
    message: str
    rank: int


class RankExited(NamedTuple):
    """A rank ended; `code` is its exit code, or the negative number of a signal."""

    rank: int
    code: int


class Proceed(NamedTuple):
    """Continue.

    Attributes:
        reads_counters: in the reply to Built: whether the controller reads counters at the borders of windows.
    """

    reads_counters: bool = True


class Recorded(NamedTuple):
    """A window is recorded; continue.

    Attributes:
        stop: this window was the last, as the target is reached.
        metrics: its metrics by name, such as `epoch/e2e_s`; without those that are not available.
        no_energy: why there is no measured energy; empty if there is.
    """

    stop: bool
    metrics: Dict[str, float]
    no_energy: str


Message = Union[
    Joined, Built, WindowOpening, Progress, WindowClosed, WindowMeasured, Trained, Traced, TraceFailed, NotMeasured,
    Finished, RankFailed, RankExited,
]  # fmt: skip
Reply = Union[Proceed, NodeWindow, Recorded]
KINDS = {kind.__name__: kind for kind in Message.__args__ + Reply.__args__}  # type: ignore[attr-defined]


def encode(message: Union[Message, Reply]) -> bytes:
    """Return a message or a reply as one line of JSON, in bytes."""
    fields = dict(message._asdict())
    if isinstance(message, WindowMeasured):
        fields.update({name: [window._asdict() for window in fields[name]] for name in ("ranks", "nodes")})
    return (json.dumps(dict(fields, kind=type(message).__name__)) + "\n").encode("utf-8")


def decode(line: Union[str, bytes]) -> Any:
    """Return the message or the reply of a line; ValueError, KeyError or TypeError if it is none."""
    fields = json.loads(line)
    kind = KINDS[fields.pop("kind")]
    if kind is WindowMeasured:
        ranks = [RankWindow(**rank) for rank in fields.pop("ranks")]
        fields = dict(fields, ranks=ranks, nodes=[NodeWindow(**node) for node in fields.pop("nodes")])
    return kind(**fields)  # type: ignore[call-overload]
