"""Carbon footprint and cost of recorded runs, also by other values than they were configured with."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from epochmeter.config.job import defaults, recorded_job
from epochmeter.config.schema import Footprint
from epochmeter.report.runs.run import Run
from epochmeter.results.footprint import check_footprint, evaluate, without_footprint
from epochmeter.results.reuse import READ_ERRORS
from epochmeter.shared.record import Record


def with_footprint(run: Run, given: Mapping[str, Any]) -> Run:
    """Return a run whose carbon and cost are by the given `footprint` keys; InputError if a value is not valid."""
    default: Any = defaults()["footprint"]
    check_footprint(footprint := Footprint.from_dict({**default, **run.job.get("footprint", {}), **given}))
    metrics = without_footprint(run.metrics)
    with suppress(*READ_ERRORS):  # of a damaged record: the run has no footprint
        record = Record(run.folder)
        job = replace(recorded_job(record.job()), footprint=footprint)
        metrics |= evaluate(record.windows(), record.run(), job)[0]
    return replace(run, metrics=metrics, job={**run.job, "footprint": footprint.to_dict()})
