"""The state of one thread of the script."""

import threading
from typing import Any, Dict, Optional

from epochmeter.agent.device_marks import DeviceMarks
from epochmeter.agent.event_log import EventLog
from epochmeter.agent.samples import BatchSizes


class ThreadState(threading.local):
    """The state of one thread of the script."""

    log: Optional[EventLog] = None  # from its first event on
    marks: Optional[DeviceMarks] = None  # once the script uses a GPU
    is_fetching = False  # whether a recorded iterator, whose inner passes are not recorded, is fetching a batch
    awaits_forward = False  # whether the first forward pass since a pass has begun is still to come
    sizes: Optional[BatchSizes] = None  # of the loader whose iterator is being made
    parts: Optional[Dict[str, Any]] = None  # what takes the places of that loader's parts, by attribute
    steps = 0  # number of optimizer steps and backward passes
