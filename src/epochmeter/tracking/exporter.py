"""The interface of exporters, which give a run to another tracker than MLflow, and the run as they get it.

An exporter is a class without arguments, `EXPORTERS` or the user's own. It works in a process of its own
(`epochmeter.tracking.export`), so that it cannot delay or break the run.
"""

import json
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from epochmeter.config.rules import EXPORTERS
from epochmeter.config.validation import flatten
from epochmeter.results.metrics import find
from epochmeter.results.run_folder import RunFolder
from epochmeter.tracking.run_export import legal_name, publishable, run_note, run_params, run_tags

TARGETS = {name: f"epochmeter.tracking.exporters.{name}:{name.title()}Exporter" for name in EXPORTERS}
"""Name of an exporter -> its class, in the form in which a user names another one."""
COUNT = "1"  # unit of numbers, which is not exported


class ExportedRun(NamedTuple):
    """A run as exporters get it.

    Attributes:
        record_id: Its identifier, 32 hexadecimal digits, the same whenever it is exported.
        project: `tracking.experiment`.
        group: Its sweep; empty for a single run.
        state: running, completed, failed or killed.
        params: Its configuration by dotted key, without null values.
        tags: Conditions of the measurement, as in MLflow: `epochmeter.device`.
        note: Its result, command and host, in Markdown.
        metrics: Means, standard deviations and totals; empty until it has ended.
        units: Metric -> unit, of all of its metrics; empty until it has ended.
        links: Other tracker -> address of the run there.
    """

    record_id: str
    project: str
    name: str
    group: str
    state: str
    params: Mapping[str, bool | float | str]
    tags: Mapping[str, str]
    note: str
    metrics: Mapping[str, float]
    units: Mapping[str, str]
    links: Mapping[str, str]

    @property
    def labels(self) -> list[str]:
        """Short words by which runs can be filtered: its device, and whether it is a rehearsal."""
        device, is_rehearsal = self.tags.get("epochmeter.device"), self.tags.get("epochmeter.rehearsal") == "true"
        return [*([device] if device else []), *(["rehearsal"] if is_rehearsal else [])]

    @property
    def facts(self) -> dict[str, str]:
        """What is neither parameter nor metric, as texts: tags, state, units in JSON, and links."""
        links = {f"epochmeter.link_{tracker}": address for tracker, address in self.links.items()}
        units = {"epochmeter.units": json.dumps(dict(self.units))} if self.units else {}
        return {**self.tags, "epochmeter.state": self.state, **units, **links}


class Exporter(Protocol):
    """Gives one run to another tracker. Each method may raise any error: it ends the export, not the run."""

    def check(self) -> None:
        """Raise an error if runs cannot be exported, such as without a login. It is called before any training."""

    def open(self, run: ExportedRun) -> str | None:
        """Begin a run, or begin an earlier export of it again; return its address, or a command that shows it."""

    def log(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Add metrics of an epoch, counted from 0. Those of its evaluation are in a later call."""

    def close(self, run: ExportedRun) -> None:
        """End a run, and wait until everything is transferred."""


def exporter_names(also: str | Iterable[str] | None) -> list[str]:
    """Return the names in a value of `tracking.also`."""
    return [also] if isinstance(also, str) else [*(also or ())]


def exported_run(folder: RunFolder, ended: str | None = None, links: Mapping[str, str] | None = None) -> ExportedRun:
    """Return a run as exporters get it. `ended` is its end, for a record that could not be completed."""
    run, summary = folder.run, folder.summary or {}
    metrics = publishable(summary.get("metrics", {}))
    names = {name for window in folder.windows for name in window["metrics"]} | {*metrics} if summary else set()
    values = {legal_name(key): value for key, value in [*flatten(folder.job), *run.choices.items()]}
    return ExportedRun(
        record_id=run.record_id,
        project=folder.job["tracking"]["experiment"],
        name=f"rehearsal {run.name}" if run.rehearsal else run.name,
        group=run.sweep_id if run.of_sweep and run.sweep_id else "",
        state=folder.state_if(ended),
        params={key: _plain(values.get(key), text) for key, text in run_params(folder).items()},
        tags={key: text for key, text in run_tags(folder).items() if not key.startswith("mlflow.")},
        note=run_note(folder),
        metrics=metrics,
        units={name: unit for name in sorted(names) if (unit := find(name).unit) != COUNT},
        links=links or {},
    )


def _plain(value: object, text: str) -> bool | float | str:
    """Return a number or a boolean of the configuration as it is, so that trackers can sort by it; else its text."""
    return value if isinstance(value, int | float) and math.isfinite(value) else text
