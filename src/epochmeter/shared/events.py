"""Events of a measured script: its agent writes them, and the controller derives windows from them.

Each thread of a process has a log of its own: files named `PID-THREAD.SEGMENT`, one after another, with records of a
fixed size. `PID.jsonl` has facts on the process and on the objects of its events, one JSON object per line. DataLoader
workers append records to `PID.loads` of their training process. All times are of the monotonic clock, in ns.
"""

import struct
from typing import NamedTuple

RECORD = struct.Struct("<qqdIIIHBB")
"""An event's time, begin, value, object, other object, number, detail, flags and kind, which is never 0."""
FOLDER_PREFIX = "epochmeter-events-"  # of the name of a folder of logs
SCRIPT_FILE = "script.json"  # in that folder, facts on a script that ran without a controller
AGENT_VARIABLE = "EPOCHMETER_AGENT"
"""Environment variable with the arguments of the agent, as JSON, in a script whose processes are measured."""
UNMEASURED = "unmeasured"  # a file in that folder: a program that the script started has imported torch
UNMEASURED_VARIABLE = "EPOCHMETER_UNMEASURED"
"""Environment variable with the path of that file, for what a measured process starts."""
NO_CONTROLLER = "no controller was there while it ran"
SEGMENT_RECORDS = 8192
SEGMENT_BYTES = SEGMENT_RECORDS * RECORD.size
"""Behind them, a file has room for one more record: a `LOST` if no file follows."""
MAX_SEGMENTS = 512  # of a log, unread: about 4 million events, after which a script loses events

MAX_LOADS_BYTES = 200_000_000
"""Size of a file `PID.loads`, from which on workers write no more."""

PASS = 1
"""`iter(loader)` was called. Object: pass; other: loader; value: number of batches, if known; flags: see below."""
BATCH = 2
"""A pass has delivered a batch, which was requested at `begun_ns`. Object: pass; value: samples, if known."""
END = 3
"""A pass was asked for a further batch at `begun_ns`, and had none. Object: pass."""
FAILED = 4
"""A pass was asked for a batch at `begun_ns`, and raised an error. Object: pass."""
DROPPED = 5
"""An iterator was deleted before its end, from `begun_ns` on. Object: pass."""
REPEATED = 6
"""A pass of a subclass of DataLoader begins a pass of its base class. Object: pass."""
STEP = 7
"""An optimizer's step, which began at `begun_ns`, has ended. Object: optimizer; value: learning rate, if known."""
BACKWARD = 8
"""A backward pass, which began at `begun_ns`, has ended."""
FORWARD = 9
"""The first forward pass of a module after a pass has begun."""
OPENED = 10
"""A window of a `Meter` begins. Object: its name; value: its number in the process."""
CLOSED = 11
"""An open window ends: one of a `Meter` with the same object and value, or the pass of a `Meter` without an object."""
EXPECTED = 12
"""Value: number of epochs that follow, if known."""
COLLECTED = 13
"""The garbage collector ran from `begun_ns` on."""
SAVED = 14
"""`torch.save` ran from `begun_ns` on."""
DEVICE_TIME = 15
"""Value: ns of the device's clock between its timestamp `number` and the one before. Timestamps count from 0."""
IDLE_TIME = 16
"""A timestamp on a stream of the device without work, which had reached it at `time_ns`."""
LOST = 17
"""Events were lost since the disk was full or the reader was gone. Value: their number."""
FORWARD_ENDED = 20
"""The forward pass of an outermost module with parameters, which began at `begun_ns`, has ended."""
GRADIENTS = 21
"""A call of `torch.autograd.grad`, which began at `begun_ns`, has ended."""

LOADED = 30
"""The samples of a batch were fetched from the dataset, from `begun_ns` on. Object: loader; other: its worker, from 1
on, or 0 in the training process; value: ns off the processor without waits for a core; NaN if not known."""
COLLATED = 31
"""These samples were collated from `begun_ns` on: the batch is ready. Value: ns of the waits in which other threads or
child processes may have worked for it; NaN if that was not looked at."""
LOAD_FAILED = 32
"""A batch that was begun at `begun_ns` was not loaded. Object and other: as above."""
COUNTED = 35
"""The operators of a step were recorded from `begun_ns` on, which slowed it. Object: pass; other: facts on them."""
TOKENS = 36
"""A batch has tokens. Object: pass; value: those without padding, if known; `begun_ns`: with padding, 0: unknown."""

GRADIENTS_READY = 60
"""A backward pass, which has not ended, has computed its gradients: it waits for those of other ranks."""
COLLECTIVE = 61
"""The thread, or its GPU, has waited for a collective of `torch.distributed` from `begun_ns` on."""

HAS_GRADIENTS = 1
"""Flag of a pass: gradients were enabled as it began."""
IS_EXPLICIT = 2
"""Flag of a pass: the script gave the data to a `Meter`."""
HIDES_FORWARDS = 4
"""Flag of a pass: forward passes are not seen, as the script uses `torch.compile`."""
HAS_DEVICE_TIME = 8
"""Flag of an event that has a timestamp of the device, `number`. A batch has two: of its request, then its arrival."""
HAS_BEGIN_TIME = 16
"""Flag of an event whose begin has a timestamp too, `other`."""
WAS_UNSEEN = 32
"""Flag of a forward pass: earlier ones of this class of modules may not have been seen."""
UNTIMED = 64
"""Flag of a batch: the phases of its step are not timed; only the ends of its training events are known."""


class Event(NamedTuple):
    """One event; the meaning of the values depends on its kind.

    Attributes:
        time_ns: When it happened, or ended.
        begun_ns: When it began; 0 if it has no duration.
        value: NaN if it is not known.
        object: Number of the object in `PID.jsonl`, from 1 on.
        other: Number of a second object, or of the timestamp of its begin.
        number: Number of the device's timestamp.
        detail: Of a pass of a `Meter`, the number of the name that the script gave to it; else 0.
        flags: Bits, of a pass.
    """

    time_ns: int
    begun_ns: int
    value: float
    object: int
    other: int
    number: int
    detail: int
    flags: int
    kind: int
