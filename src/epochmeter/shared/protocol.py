"""Messages between the controller and the training process: JSON objects, one per line, over a Unix stream socket.

Each rank has its own connection, and so has torchrun if it starts the ranks. Only the first rank of a node sends
requests. It waits for the reply, and all ranks wait for it, so that no rank trains while the controller reads counters.
The processes of a measured script write events to files instead (`events`), and wait for replies in two cases only.

    message           sender                      reply         meaning
    Joined            every process               -             connected
    PeaksBorder       first rank                  Disturbance   a measurement of the device's peaks begins or has ended
    Built             first rank of each node     Proceed       model and data are ready
    WindowOpening     first rank of each node     Proceed       prepare the page cache, read the counters
    Progress          first rank                  -             the open window so far, at most twice per second
    LossRead          first rank                  -             the loss of a step, to be printed (`log_every`)
    Translated        first rank                  -             translating after training, for BLEU, so far
    WindowClosed      first rank of each node     Proceed,      read the counters; the controller of a node that is
                                                  NodeWindow    not the first replies with the energy of its node
    WindowMeasured    first rank of each node     Recorded,     record and publish the window; the controller of a
                                                  Proceed       node that is not the first replies with Proceed
    Trained           first rank of each node     Proceed       all windows are recorded
    Border            process of a script         -             a pass over data begins or ends: read the counters
    PassOpening       process of a script         Proceed       prepare the page cache
    Asked             process of a script         Recorded,     the measurement of a window, or that there is none
                                                  Proceed
    Traced            first rank                  -             the profiler's trace is written
    TraceFailed       any rank                    -             why the trace, memory by kind or counters are missing
    NotMeasured       process of a script         -             why nothing more is measured; the script continues
    Loaded            process of a script         -             in a replayed run, a loader itself delivers batches
    NotReplayed       process of a script         -             why the loaders cannot be replayed
    Finished          every rank                  -             the process exits with 0, or ends by itself
    RankFailed        any rank                    -             an exception ended the rank
    RankExited        torchrun                    -             a rank ended without a message, for example by a signal
"""

import json
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

from epochmeter.shared.problem import Problem, read_problem

IMPORTED = ".torch"  # suffix of a file next to the socket: when a process of the script had imported torch, in ns
REPLAYED_ON_NODES = Problem(
    "batches are not replayed on several nodes: each node would end its part of the script by itself",
    "replay on one node, as with `srun --nodes=1 --ntasks=1` or `torchrun --nnodes=1`",
)
MISSING = ".missing"  # of a file with an interpreter and a module that it lacks, which ended a process of the script


class Joined(NamedTuple):
    rank: Optional[int]  # None: torchrun
    sends_requests: bool  # the first rank of a node does


PeaksBorder = NamedTuple("PeaksBorder", [])


class Built(NamedTuple):
    model: Mapping[str, Any]
    training: Mapping[str, Any]  # facts for the record
    imported_ns: Optional[int] = None  # when torch was imported, on the node's monotonic clock


class WindowOpening(NamedTuple):
    """A window (one epoch of training, or one evaluation) begins after the reply."""

    window: str  # `epoch`, `val`, or a name of a script's own
    epoch: int  # from 0
    steps: int  # 0 if it is not known
    partial: bool = False  # whether the run ends before the last step of this epoch
    epoch_steps: Optional[int] = None  # of a complete epoch, if `partial`
    epochs: Optional[int] = None  # of the run; None if it is not known


PassOpening = NamedTuple("PassOpening", [])
Border = NamedTuple("Border", [])


class Asked(NamedTuple):
    """A script asks for the last window of a name."""

    window: str
    process: str  # name of the script's process in its logs: its ID


class Progress(NamedTuple):
    steps: int  # that the device has finished
    loss: Optional[float] = None  # of the last step, if it is to be shown
    parts: Optional[Dict[str, float]] = None
    """Times of these steps in seconds: `data_stall_s`, `copy_s`, `compute_s`, `overhead_s`, as far as measured."""


class LossRead(NamedTuple):
    step: int  # of the open window, counted from 1
    loss: float


class Translated(NamedTuple):
    sentences: int
    of: int  # how many there are


ReadParts = Callable[[], Dict[str, float]]  # returns the `parts` of `Progress` so far


class WindowClosed(NamedTuple):
    """A window has ended. Times are of the monotonic clock of the first rank of the node."""

    opened_ns: int
    closed_ns: int


class RankWindow(NamedTuple):
    """One rank's measurements of one window."""

    opened_ns: int  # monotonic clock of the rank's node
    closed_ns: int
    node: int
    parts: Dict[str, float]  # metrics by their names without prefix
    bad: List[str]  # the first samples that could not be read
    paused: bool  # whether the process was stopped and continued (SIGCONT) in the window
    weight: float  # number of targets that the loss is a mean of
    loss_sum: float  # sum of the loss over them
    correct: Optional[float]  # number of correct predictions; None if the task has no accuracy
    rank: int = 0


class NodeWindow(NamedTuple):
    """The energy that a node other than the first used in a window, measured by its controller."""

    node: str  # host name
    metrics: Dict[str, float]  # energies in J and powers in W, by metric name; without those that are not available
    joules: Dict[str, float]  # energy by domain
    term: Dict[str, float]  # the window's part of the run's total: energies in J, instrument times in s
    reason: str  # why energy is missing; empty if it is not
    other_gpu_processes: List[str]  # other processes that computed on the node's GPUs
    disagreements: List[str]  # contradictory energies of the node's instruments
    codes: List[str]  # of what is absent or doubtful about the energy (machine/energy_codes.py)


class WindowMeasured(NamedTuple):
    ranks: List[RankWindow]
    nodes: List[NodeWindow]  # other than the first
    rank_steps: int = 0  # steps of each rank that were added to `ranks.bin`


class Traced(NamedTuple):
    opened_ns: int  # start of the traced steps, on the rank's monotonic clock
    closed_ns: int
    wall_offset_ns: int  # time of the wall clock, which the trace has, at zero of the monotonic clock
    loads: List[List[int]]
    """Batches of the last pass over the data: durations to read, preprocess and decode (a part of preprocess), and the
    start, in ns. The last integer is the DataLoader worker, -1 for the training process itself."""


class Trained(NamedTuple):
    saves_ns: Sequence[List[int]] = ()  # begin and end of each checkpoint, and of the saved weights
    bleu: Optional[float] = None  # of the trained model, if it was to be scored
    no_bleu: Optional[str] = None  # why it could not be


TraceFailed = NamedTuple("TraceFailed", [("problem", Problem)])
NotMeasured = NamedTuple("NotMeasured", [("problem", Problem)])
Loaded = NamedTuple("Loaded", [("at_ns", int)])  # time of the first or after the last of these batches of a pass
NotReplayed = NamedTuple("NotReplayed", [("problem", Problem)])
Proceed = NamedTuple("Proceed", [])
Finished = NamedTuple("Finished", [])


class RankFailed(NamedTuple):
    problem: Problem
    rank: int


class RankExited(NamedTuple):
    rank: int
    code: int  # exit code, or the negative number of a signal


class Disturbance(NamedTuple):
    text: str  # what other processes did on the device since the last border; empty if nothing is known


class Recorded(NamedTuple):
    stop: bool  # this window was the last, as the target is reached
    metrics: Dict[str, float]  # by name, such as `epoch/e2e_s`; without those that are not available
    no_energy: str  # why there is no measured energy; empty if there is


Message = Union[
    Joined, PeaksBorder, Built, WindowOpening, Progress, LossRead, Translated, WindowClosed, WindowMeasured, Trained,
    Traced, TraceFailed, Border, PassOpening, Asked, NotMeasured, Loaded, NotReplayed, Finished, RankFailed, RankExited,
]  # fmt: skip
Reply = Union[Proceed, Disturbance, NodeWindow, Recorded]
WITH_PROBLEM = (RankFailed, TraceFailed, NotMeasured, NotReplayed)
KINDS = {kind.__name__: kind for kind in Message.__args__ + Reply.__args__}  # type: ignore[attr-defined]  # `get_args` is new in 3.8


def encode(message: Union[Message, Reply]) -> bytes:
    fields = dict(message._asdict())
    if isinstance(message, WindowMeasured):
        fields.update({name: [window._asdict() for window in fields[name]] for name in ("ranks", "nodes")})
    if isinstance(message, WITH_PROBLEM):
        fields["problem"] = message.problem.to_fields()
    return (json.dumps(dict(fields, kind=type(message).__name__)) + "\n").encode("utf-8")


def decode(line: Union[str, bytes]) -> Any:
    """Return the message or the reply of a line; ValueError, KeyError or TypeError if it is none."""
    fields = json.loads(line)
    kind = KINDS[fields.pop("kind")]
    if kind is WindowMeasured:
        ranks = [RankWindow(**rank) for rank in fields.pop("ranks")]
        fields = dict(fields, ranks=ranks, nodes=[NodeWindow(**node) for node in fields.pop("nodes")])
    if kind in WITH_PROBLEM:
        fields = dict(fields, problem=read_problem(fields.pop("problem") or {}))
    return kind(**fields)
