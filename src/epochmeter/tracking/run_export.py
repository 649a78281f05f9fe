"""Map a run folder to MLflow: parameters, tags, dataset, note, status, times, files and scalars, as pure functions.

TensorBoard gets the same scalars.
"""

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from epochmeter.config.identity import affects_measurement
from epochmeter.config.installation import with_own_commands
from epochmeter.config.printable import printable
from epochmeter.config.validation import flatten, format_value
from epochmeter.results import run_status as states
from epochmeter.results.documents import Summary, Window
from epochmeter.results.headline import headline
from epochmeter.results.metrics import CORE, SECTIONS
from epochmeter.results.power_trace import downsample
from epochmeter.results.run_folder import RunFolder
from epochmeter.results.run_info import DISTURBED, DIVERGED, OVERSUBSCRIBED, RunInfo
from epochmeter.results.summary import averaged_epochs
from epochmeter.shared.problem import format_problem
from epochmeter.shared.process_identity import Process
from epochmeter.shared.record import CHECKPOINT, GAUGES, PERFETTO, PROGRESS, TIME_SERIES, WINDOWS_FILE, step_count
from epochmeter.shared.record_files import refusal

MAX_PARAM, MAX_TAG, MAX_DIGEST = 6000, 8000, 36  # MLflow's limits of lengths
TRAIN, MEASURE = "src/train.py", "src/measure.py"
EVENTS = "events.out.tfevents."
"""Prefix of TensorBoard's event files, which are derived from the record and not part of it."""
TOTAL_POWER, LOSS = "power/total_w", "step/train_loss"
MAX_POINTS, STEPS_PER_POINT = 500, 100  # points of each curve of power or a gauge; steps per point of the loss
NS_PER_MS = 1_000_000
MLFLOW_STATUS = {
    states.PLANNED: "SCHEDULED",
    states.RUNNING: "RUNNING",
    states.COMPLETED: "FINISHED",
    states.FAILED: "FAILED",
    states.KILLED: "KILLED",
}


def run_params(folder: RunFolder) -> dict[str, str]:
    """Return the configuration in Hydra's syntax, as `model=lenet`, `model.name=resnet18` and `pin_memory=true`.

    Null values have no param: MLflow's parallel coordinates would mix text and numbers, and drop runs.
    """
    items = [*flatten(folder.job), *folder.run.choices.items()]
    return {
        legal_name(key): printable(format_value(value))[:MAX_PARAM]
        for key, value in items
        if value is not None and affects_measurement(key)
    }


def run_tags(folder: RunFolder) -> dict[str, str]:
    """Return the run's tags: identifiers and the conditions of the measurement; unknown values have no tag."""
    run, summary = folder.run, folder.summary or {}
    failure, absent = folder.failure, summary.get("absent") or {}
    validity = folder.energy_verdict
    footprint = folder.job.get("footprint", {})
    tags = {
        **{name: getattr(run, name) for name in ("record_id", "sweep_id", "identity", *Process._fields)},
        "folder": str(folder.path.resolve()),
        "device": run.choices.get("device"),
        "rehearsal": bool(run.rehearsal),
        "not_applied": "; ".join(run.rehearsal) or None,
        "replayed": is_replayed(folder) or None,
        "medium": run.medium,
        "energy_source": run.energy.source,
        "energy_covers": run.energy.covers,
        "energy_reason": run.energy.reason,
        "energy_valid": validity.get("energy_valid"),
        "energy_codes": ",".join(reason["code"] for reason in validity.get("energy_reasons", [])) or None,
        **{f"footprint_{key}": footprint.get(key) for key in ("intensity", "price", "currency")},
        "power_limit_applied": run.power_limit_applied,
        **run.flags,
        "trainings": len(summary.get("trainings", [])) or None,
        "bottleneck": summary.get("bottleneck"),
        "bottleneck_reason": absent.get("bottleneck"),
        "failure": failure.code if failure else None,
    }
    mlflow_tags = {
        "mlflow.source.name": source_file(folder),
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": (folder.host.get("git") or {}).get("commit"),
        "mlflow.note.content": run_note(folder),
    }
    named = {**{f"epochmeter.{key}": value for key, value in tags.items()}, **mlflow_tags}
    return {key: printable(format_value(value))[:MAX_TAG] for key, value in named.items() if value is not None}


def source_file(folder: RunFolder) -> str:
    return MEASURE if folder.job.get("measure", {}).get("command") else TRAIN


def is_replayed(folder: RunFolder) -> bool:
    """Return whether the run measured a script with an ideal loader."""
    return bool(folder.job.get("measure", {}).get("replay"))


def run_note(folder: RunFolder) -> str:
    """Return the first text on a run's page in MLflow, in Markdown."""
    run, summary = folder.run, folder.summary or {}
    failure, lacking = folder.failure, run.energy.missing
    source = source_file(folder)
    script = ["--", *folder.job["measure"]["command"]] if source == MEASURE else []
    rehearsal = " ".join(f"{text.rstrip('.')}." for text in run.rehearsal)
    paragraphs = [
        _result(folder, summary),
        f"**Rehearsal, not a result.** {rehearsal}" if rehearsal else "",
        "**Replayed batches, not a result.**" if is_replayed(folder) else "",
        format_problem(failure, f"**Failed** ({failure.code})") if failure else "",
        f"```\n{shlex.join([*with_own_commands(f'python {source}').split(), *run.overrides, *script])}\n```",
        format_problem(lacking, "No measured energy") if lacking else "",
        *summary.get("notes", []),
        _next_steps(summary),
        f"Measured on `{run.host}`. Record: `{folder.path.resolve()}`",
    ]
    return "\n\n".join(filter(None, paragraphs))


def _result(folder: RunFolder, summary: Summary) -> str:
    """Return the result of a run in Markdown with the doubts about it; empty without a result."""
    run, verdict = folder.run, folder.verdict
    if not summary.get("metrics"):  # while it runs: its windows are not read for this
        return ""
    epochs = averaged_epochs(folder.windows, folder.job.get("warmup_epochs", 0))
    result = headline({**(summary.get("metrics") or {}), **verdict.metrics}, verdict.bottleneck, epochs)
    if not result:
        return ""
    causes = [cause for flag, cause in DISTURBED.items() if flag in run.flags]
    causes += ["the processor was oversubscribed"] if OVERSUBSCRIBED in run.flags else []
    causes += ["the training diverged"] if DIVERGED in run.flags else []
    return f"**{', '.join(result)}**" + (f", although {' and '.join(causes)}" if causes else "")


def _next_steps(summary: Summary) -> str:
    """Return the next steps of a run as a list in Markdown; empty without any."""
    from epochmeter.results.next_steps import gain_sentence, recorded_gain  # with all rules

    steps = summary.get("next_steps", [])
    lines = [
        f"{number}. {step.get('text', '')}{gain_sentence(recorded_gain(step))} `{step.get('change', '')}`"
        for number, step in enumerate(steps, 1)
    ]
    return "\n".join(["**Next steps, in this order:**\n", *lines]) if lines else ""


def dataset_fields(folder: RunFolder) -> dict[str, str] | None:
    """Return the fields of MLflow's dataset from the manifest; None if the run has none."""
    manifest = folder.run.dataset
    if not manifest:
        return None
    facts: Mapping[str, object] = manifest
    source = manifest.get("source") or ""
    is_web = source.startswith(("http://", "https://"))
    return {
        "name": manifest["name"],
        "digest": manifest["digest"][:MAX_DIGEST],
        "source_type": "http" if is_web else "local",
        "source": json.dumps({"url" if is_web else "uri": source}),
        "profile": json.dumps({key: facts[key] for key in ("count", "bytes", "classes") if key in facts}),
    }


def legal_name(name: str) -> str:
    """Return a name with only characters that MLflow allows."""
    return re.sub(r"[^\w\-. :/]", "_", name)


def started_s(folder: RunFolder) -> float:
    return datetime.fromisoformat(folder.run.started).timestamp()


def ended_s(folder: RunFolder) -> float:
    """Return the run's end as Unix time: as recorded, else the last write, as a dead run is closed late."""
    finished = folder.completion.get("finished") if folder.completion else None
    if ended := finished or (folder.summary or {}).get("ended"):
        return datetime.fromisoformat(ended).timestamp()
    names = (WINDOWS_FILE, *TIME_SERIES)
    written = [path.lstat().st_mtime for path in complete_files(folder.path) if path.name in names]
    return max(written, default=started_s(folder))


def complete_files(folder: Path) -> list[Path]:
    """Return the record's complete files, without temporary and derived ones, and those in `refused_files`."""
    return [path for path in _own_entries(folder) if not refusal(path) and not path.is_dir()]


def refused_files(folder: Path) -> dict[str, str]:
    """Return the names of links, pipes, devices and files that are too large, which are not published, and why."""
    reasons = {path.name: refusal(path) for path in _own_entries(folder) if path.is_symlink() or not path.is_dir()}
    return {name: reason for name, reason in reasons.items() if reason}


def _own_entries(folder: Path) -> list[Path]:
    others = CHECKPOINT, PERFETTO, PROGRESS
    paths = sorted(folder.iterdir())
    return [path for path in paths if path.name not in others and not path.name.startswith((".", EVENTS))]


class Scalar(NamedTuple):
    """A point of a curve; `step` is an epoch, a training step or ms, depending on the metric."""

    name: str
    value: float
    when_ms: int
    step: int


def window_scalars(folder: RunFolder, windows: Sequence[Window], earlier_steps: int = 0) -> Iterator[list[Scalar]]:
    """Yield the scalars of each window: its metrics by epoch, and its losses by step; `earlier_steps` are before them.

    All have their window's time, so that a repeated point is one point in MLflow's database.
    """
    first = end = earlier_steps
    losses, run = folder.record.losses(first), folder.run
    for window in windows:
        begin, end = end, end + step_count([window])
        window_losses = losses[begin - first : end - first]
        curve = loss_curve(window_losses if len(window_losses) == end - begin else (), begin)
        when_ms = _boot_ms(run, window) + window["closed_ns"] // NS_PER_MS
        metrics = publishable(window["metrics"]).items()
        yield [
            *(Scalar(name, value, when_ms, window["epoch"]) for name, value in metrics),
            *(Scalar(LOSS, loss, when_ms, step) for step, loss in curve),
        ]


def summary_scalars(folder: RunFolder, summary: Summary) -> list[Scalar]:
    """Return means, standard deviations and totals, at the time of the run's end."""
    when_ms = round(ended_s(folder) * 1000)
    return [Scalar(name, value, when_ms, 0) for name, value in publishable(summary["metrics"]).items()]


def curve_scalars(folder: RunFolder, windows: Sequence[Window]) -> Iterator[Scalar]:
    """Yield power in W and the gauges over ms since the first sample; nothing that was not recorded."""
    if not windows:
        return
    boot_ms = _boot_ms(folder.run, windows[-1])
    for file, section in SECTIONS.items():
        start_ns = None
        for at_ns, _, means in downsample(folder.path / file, MAX_POINTS):
            start_ns = at_ns if start_ns is None else start_ns
            when_ms, step = boot_ms + at_ns // NS_PER_MS, (at_ns - start_ns) // NS_PER_MS
            for column, mean in means.items():
                name = f"{section}/{column}"
                if name == TOTAL_POWER or (file == GAUGES and not CORE.fullmatch(column)):
                    yield Scalar(legal_name(name), mean, when_ms, step)


def loss_curve(losses: Sequence[float], begin: int) -> Iterator[tuple[int, float]]:
    """Yield (step of the run, mean loss of up to 100 steps), finite ones; `begin` steps were earlier."""
    for first in range(0, len(losses), STEPS_PER_POINT):
        averaged = losses[first : first + STEPS_PER_POINT]
        mean = math.fsum(averaged) / len(averaged)
        if math.isfinite(mean):
            yield begin + first + len(averaged), mean


def publishable(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return metrics under legal names, without missing and infinite values, which MLflow would store as 1.8e308."""
    return {
        legal_name(name): float(value) for name, value in metrics.items() if value is not None and not math.isinf(value)
    }


def _boot_ms(run: RunInfo, window: Window) -> int:
    """Return the wall time of zero on the monotonic clock that timed a window, in ms."""
    clock = run.clock_of(window["epoch"])
    return round((clock.wall_s + window.get("suspended_s", 0.0)) * 1000) - clock.monotonic_ns // NS_PER_MS
