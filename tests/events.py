"""Event files of TensorBoard's, read back by its own reader."""

from __future__ import annotations

from pathlib import Path

from epochmeter.shared.record import Record
from epochmeter.tracking.run_export import EVENTS
from epochmeter.tracking.scalars import Scalar


def event_files(record: Record) -> list[Path]:
    return list(record.folder.glob(f"{EVENTS}*"))


def scalars_of(record: Record) -> list[Scalar]:
    """Every scalar of the run's one event file; values are of 32 bits there."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    (path,) = event_files(record)
    return [
        Scalar(value.tag, make_ndarray(value.tensor).item(), round(event.wall_time * 1000), event.step)
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]
