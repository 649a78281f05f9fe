"""Metadata of runs as records have them."""

from epochmeter.results import documents
from epochmeter.results.run_info import RunInfo

RUN = {"record_id": "r", "number": 0, "identity": "id", "overrides": [], "rehearsal": []}
"""Fields that each record has."""


def run_info(**fields):
    """Return the metadata of a record with these fields."""
    return documents.check({**RUN, **fields}, RunInfo)
