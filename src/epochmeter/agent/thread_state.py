"""The state of one thread of the script."""

import threading
from typing import Any, Dict, List, Optional, Tuple

from epochmeter.agent.device_marks import DeviceMarks
from epochmeter.agent.event_log import EventLog
from epochmeter.agent.samples import BatchSizes
from epochmeter.agent.sampling import StepSampling


class ThreadState(threading.local):
    """The state of one thread of the script."""

    log: Optional[EventLog] = None  # from its first event on
    marks: Optional[DeviceMarks] = None  # once the script uses a GPU
    is_fetching = False  # whether a recorded iterator, whose inner passes are not recorded, is fetching a batch
    awaits_forward = False  # whether the first forward pass since a pass has begun is still to come
    sizes: Optional[BatchSizes] = None  # of the loader whose iterator is being made
    parts: Optional[Dict[str, Any]] = None  # what takes the places of that loader's parts, by attribute
    collate: Optional[Any] = None  # the timed `collate_fn` of the iterator that is being made, once there is one
    numbered: Optional[Tuple[int, int]] = None
    """`id` of the loader whose iterator was made since a pass was called, and its number."""
    steps = 0  # number of optimizer steps and backward passes
    is_forwarding = False  # whether a forward pass is being recorded, whose inner modules are not
    watched: Optional[Tuple[Any, Any]] = None  # the module whose forward pass global hooks record, and its begin
    step_begins: List[Tuple[int, Tuple[int, Optional[int]]]]
    """Steps of optimizers that have begun: `id` of the optimizer, and the begin."""

    sampling: StepSampling  # the steps whose phases are timed

    def __init__(self) -> None:
        self.step_begins = []
        self.sampling = StepSampling()
