"""Compare the runs of a sweep: tables, charts, answers and analyses.

    python src/report.py                                      the newest sweep that has runs
    python src/report.py sweep=2026-11-20_12-00-00-1a2b3c4d   a sweep of multirun/, or a path
    python src/report.py sweep=B against=A                    the changes from A to B
    python src/report.py 'where={model: lenet, batch: [8, 16]}' source=mlflow
    python src/report.py report.baseline=defaults             what the best configurations save
    python src/report.py 'report.prior=2026-*'                predictions, with earlier sweeps
    python src/report.py format=json                          with the answer as one JSON document
    python src/report.py run=multirun/SWEEP/0 view=trace      analysis of the run's profiler trace
    python src/report.py run=multirun/B/0 against=multirun/A/0 view=trace   what changed from A to B
    python src/report.py run=multirun/SWEEP/0 view=perfetto   the run's timeline in a browser
    python src/report.py run=multirun/SWEEP/0 view=card footprint.intensity=FRA   a model card

The answer is printed. These files are written to the sweep's folder and shown in MLflow:
report.html (answers, charts, the table; it needs no network), the charts in report/, the table as
report.csv and report.md, and if a sweep allows it, with all numbers (.json) and as a page (.md):
    stalls     -m experiment=stalls: the causes of data stalls
    scaling    -m strategy=single,ddp: what more devices gain and cost
    questions  -m strategy=single,dp,ddp model=resnet50,resnet152 batch=64,128: why
    targets    target_accuracy or target_loss: time and energy to the target, and the Pareto front
    footprint  footprint.intensity or footprint.price: carbon footprint and cost
    failures   of failed runs: the reason, and what to do

Exit code: 0, or 1 if no run is left to report; the page then lists the failures.
With a gate (gate.time=): 2 if a bound is violated, and 3 if the runs are too few to decide.
"""

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypedDict

from omegaconf import DictConfig

from epochmeter.config import app, errors, json_output, validation
from epochmeter.config.arguments import warn_of_old_names
from epochmeter.config.installation import ROOT, UI_ADDRESS
from epochmeter.config.printable import printable_tree
from epochmeter.shared import renamed
from epochmeter.shared.overrides import quoted_override
from epochmeter.shared.problem import InputError, Problem, input_error
from epochmeter.shared.renamed import Renamed

if TYPE_CHECKING:
    from rich.console import Console

    from epochmeter.report.analyses.best import Criteria
    from epochmeter.report.render import Page
    from epochmeter.report.runs.run import Sweep
    from epochmeter.tracking.mlflow_process import MlflowProcess

MULTIRUN = ROOT / "multirun"
NOTHING_YET = Problem("no run has completed yet", "report later, or see the running one: python src/watch.py")
MOST_LINKED = 1000  # most runs whose addresses are looked up in MLflow, which takes 5 ms each


def main() -> None:
    app.run("report", task, __doc__)


def task(config: DictConfig) -> None:
    gc.disable()  # nothing is freed before the end, and collecting garbage takes as long as reading the runs
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # matrices are small, and the cores are busy with drawing and writing
    # Imported late, so that --help and --cfg are fast.
    from epochmeter.console.plain import PlainConsole

    try:
        validation.check_all_values(keys := app.plain_keys(config), "report")
        keys = with_current_filters(with_named_run(keys))
        code = VIEWS.get(keys["view"], view_trace)(keys, PlainConsole())
    except OSError as error:
        what, hint = "cannot print the report", "free disk space, or redirect the output to another file"
        if error.filename:
            what = f"cannot read `{error.filename}`"
            hint = "check that it exists; if it is not yours, let its owner run `chmod -R a+rX FOLDER`"
        errors.refuse(input_error(f"{what}: {error.strerror or error}", hint))
    except (ValueError, RuntimeError) as error:
        errors.refuse(error)
    if code:
        sys.exit(code)


def with_named_run(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys with `run=` as a text; refuse it without a view of a run: the report would be of other runs."""
    if keys["run"] is None:
        return keys
    name = str(keys["run"])  # a number if it is the folder `0`
    if keys["view"] is None:
        run = Path(name)
        is_numbered = run.name.isdigit() and run.parent.name  # else the name of a sweep
        sweep = quote(quoted_override("sweep", str(run.parent if is_numbered else run)))
        of_run = f"{sweep} 'where={{run: {run.name}}}'" if is_numbered else sweep
        hint = f"add `view=trace`, `view=perfetto` or `view=card`; for a report: `{of_run}`"
        raise input_error(f"`run={run}` needs a view of a run", hint)
    return {**keys, "run": name}


def with_current_filters(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a report; configurations in their values have the new names of keys and options."""
    found: dict[Renamed, None] = {}

    def current(filter_: Any) -> Any:
        return renamed.current_choices(filter_, found.setdefault) if isinstance(filter_, Mapping) else filter_

    options = {**keys["report"], "baseline": current(keys["report"]["baseline"])}
    filtered = {**keys, "where": current(keys["where"]), "report": options}
    warn_of_old_names(found)
    return filtered


def report(keys: Mapping[str, Any], console: "Console") -> int:
    """Load the runs, print the report, write its files and show it in MLflow; return the exit code."""
    from epochmeter.report.charts.vega import Artist, missing_packages
    from epochmeter.tracking.mlflow_process import MlflowProcess

    # Both processes start while the modules below are imported.
    mlflow = None if keys["tracking"]["name"] == "none" else MlflowProcess(keys["tracking"])
    artist = None if missing_packages() else Artist()
    from epochmeter.report.analyses.gate import exit_code
    from epochmeter.report.build import build_report
    from epochmeter.report.output.footprint_files import write_footprint_files
    from epochmeter.report.output.report import first_sentences, print_report, print_text, write_errors, write_report
    from epochmeter.report.output.samples import dataset_samples
    from epochmeter.results.run_status import RUNNING
    from epochmeter.tracking.client import check_address

    check_address(keys["tracking"])
    warn = partial(print_text, console, style="yellow")
    options = report_options(keys)
    sweep = load(keys, keys["sweep"])
    if sweep.runs and not sweep.unreadable and all(run.state == RUNNING for run in sweep.runs):
        raise InputError(NOTHING_YET)
    sweep = with_addresses(sweep, keys["tracking"], mlflow)
    against = load(keys, keys["against"]) if keys["against"] else None
    folder = Path(keys["out"] or sweep.folder).absolute()
    if folder == MULTIRUN:  # several sweeps have no folder of their own
        folder = new_reports_folder()
    content = build_report(sweep, against, **options, draw=artist.draw if artist else lambda charts: None)
    print_report(content, console)
    samples = dataset_samples(content.runs) if keys["report"]["samples"] and artist else []
    with write_errors(folder):
        written = write_report(content, folder, warn, artist, samples)
        written += write_footprint_files(content.runs, folder, warn) if keys["footprint"]["export"] else []
    answer = first_sentences(content.pages)
    why_none = "tracking=none"
    if are_untracked(sweep, keys["tracking"]):
        why_none, mlflow = "its runs are not there (tracking=none)", None
    log = partial(log_in_process, mlflow, content.title, written, keys["tracking"], answer)
    link = show_files(written, folder, log, console, why_none)
    json_output.set_result(report_fields(folder, written, content.pages, link))
    if not content.runs and any(run.state == RUNNING for run in sweep.runs):
        raise InputError(NOTHING_YET)
    if not content.runs:
        raise input_error("no run is left to report", "correct the causes above, then run the sweep again")
    return next((exit_code(page.results) for page in content.pages if page.name == "gate"), 0)


def report_fields(
    folder: Path, written: Sequence[Path], pages: Sequence["Page"], link: str | None = None
) -> dict[str, object]:
    """Return a report as the document of `format=json` has it."""
    values = {page.name: page.values for page in pages}
    return {"folder": str(folder), "files": [str(path) for path in written], "pages": values, "link": link}


def view_trace(keys: Mapping[str, Any], console: "Console") -> int:
    """Print the analysis of a run's trace and write its page, or open its timeline; return the exit code."""
    from epochmeter.report.analyses.trace import analyze, find_traced_run
    from epochmeter.report.output.report import print_page, print_text, write_errors, write_trace_page
    from epochmeter.report.render import Page

    if keys["against"] is not None:
        return compare_traces(keys, console)
    record = find_traced_run(keys["run"], MULTIRUN, needs_trace=keys["view"] == "trace")
    folder = Path(keys["out"] or record.folder).absolute()
    if keys["view"] == "perfetto":
        from epochmeter.report.output.perfetto import open_in_perfetto
        from epochmeter.trace.perfetto import write_perfetto_file

        with write_errors(folder), record_errors(record.folder):
            path = write_perfetto_file(record, folder)
        json_output.set_result(report_fields(folder, [path], []))
        if keys["format"] == "text":
            open_in_perfetto(path, partial(print_text, console))
        return 0
    warn, title = partial(print_text, console, style="yellow"), f"{record.folder.parent.name}/{record.folder.name}"
    with record_errors(record.folder):
        page = Page("trace", printable_tree(analyze(record)))
        print_page(page, console)
    with write_errors(folder), record_errors(record.folder):
        written = write_trace_page(page, title, folder, warn, record)
        json_output.set_result(report_fields(folder, written, [page]))
    print_text(console, f"Written to {folder}: {', '.join(path.name for path in written)}")
    return 0


def view_card(keys: Mapping[str, Any], console: "Console") -> int:
    """Print the model card of a run, and write it with its metadata; return the exit code."""
    from epochmeter.report.analyses.card import analyze, find_run
    from epochmeter.report.output.model_card import write_card
    from epochmeter.report.output.report import print_page, print_text, write_errors
    from epochmeter.report.render import Page

    if keys["against"] is not None:
        raise input_error("`against=` does not apply to a model card", "leave it out")
    record = find_run(keys["run"], MULTIRUN)
    footprint = {name: value for name, value in keys["footprint"].items() if name != "export" and value is not None}
    with record_errors(record.folder):
        card = analyze(record, footprint, **keys["card"])
        page = Page("card", card)
        print_page(page, console)
    folder = Path(keys["out"] or record.folder).absolute()
    with write_errors(folder):
        path = write_card(card, folder)
    json_output.set_result(report_fields(folder, [path], [page]))
    print_text(console, f"Written: {path}")
    return 0


def compare_traces(keys: Mapping[str, Any], console: "Console") -> int:
    """Print what changed between the traces of two runs, or two files, and write the page; return the exit code."""
    from epochmeter.report.analyses.trace_changes import analyze, find_source, read_times
    from epochmeter.report.output.report import print_page, print_text, write_errors, write_trace_changes
    from epochmeter.report.render import Page

    if keys["view"] != "trace" or isinstance(keys["against"], list):
        raise input_error(
            "`against=` with `view=` is one other trace to compare with", "view=trace against=SWEEP/NUMBER"
        )
    after, before = (find_source(keys[key], MULTIRUN) for key in ("run", "against"))
    times = []
    for source in (before, after):
        with record_errors(source.path.parent):
            times.append(read_times(source))
    page = Page("trace_changes", analyze(*times))
    print_page(page, console)
    folder = Path(keys["out"] or (after.record.folder if after.record else new_reports_folder())).absolute()
    warn = partial(print_text, console, style="yellow")
    with write_errors(folder):
        written = write_trace_changes(page, f"{after.name}, {before.name}", folder, warn)
    json_output.set_result(report_fields(folder, written, [page]))
    print_text(console, f"Written to {folder}: {', '.join(path.name for path in written)}")
    return 0


def new_reports_folder() -> Path:
    """Return the folder of a report that is not of one sweep or run."""
    return MULTIRUN / "reports" / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")


@contextmanager
def record_errors(folder: Path) -> Iterator[None]:
    """Raise a ValueError with a hint if the content of a record is damaged."""
    from epochmeter.results.run_folder import READ_ERRORS

    try:
        yield
    except (OSError, ValueError):
        raise
    except READ_ERRORS as error:
        cause = f"{type(error).__name__}: {error}"
        raise input_error(f"the record {folder} is damaged: {cause}", "give another run: `run=`") from error


def show_files(
    written: Sequence[Path],
    folder: Path,
    log: Callable[[], str | None],
    console: "Console",
    why_none: str = "tracking=none",
) -> str | None:
    """Print the names of the written files, `log` them to MLflow if it is available, and return their address there.

    `why_none` is why `log` logs nothing, if so.
    """
    from epochmeter.console.console import UI_HINT
    from epochmeter.report.output.report import print_text

    names = [path.name for path in written if path.parent == folder]
    count = len({path.stem for path in written if path.parent != folder})
    pictures = f", {count} picture{'s' if count > 1 else ''} as PNG and SVG in report/" if count else ""
    print_text(console, f"Written to {folder}: {', '.join(names)}{pictures}")
    try:
        address = log()
    except RuntimeError as error:
        print_text(console, errors.format_error(error, "warning"), style="yellow")
        return None
    print_text(console, address or f"Not shown in MLflow: {why_none}.")
    if address and address.startswith(UI_ADDRESS):
        print_text(console, UI_HINT)
    return address


def log_in_process(
    mlflow: "MlflowProcess | None", title: str, written: Sequence[Path], tracking: Mapping[str, Any], answer: str
) -> str | None:
    """Log a report to MLflow by its process, if there is one; RuntimeError if that fails or takes too long."""
    from epochmeter.tracking.report_artifacts import LIMIT_S, log_report, not_published

    if mlflow is None:
        return None
    try:
        return mlflow.call(LIMIT_S, log_report, title, written, tracking, answer)
    except TimeoutError as late:
        raise not_published(written, tracking, late) from late


def load(keys: Mapping[str, Any], names: Any) -> "Sweep":
    """Load the runs of the named sweeps, or of the newest sweep."""
    from epochmeter.report.analyses.footprint import with_footprint
    from epochmeter.report.runs.load import load_sweep
    from epochmeter.report.runs.published import load_published

    sweeps = [str(name) for name in as_list(names)]
    if keys["source"] == "mlflow":
        sweep = load_published(sweeps, MULTIRUN, keys["tracking"]["experiment"], keys["tracking"].get("uri"))
    else:
        sweep = load_sweep(sweeps, MULTIRUN)
    given = {name: value for name, value in keys["footprint"].items() if name != "export" and value is not None}
    return replace(sweep, runs=[with_footprint(run, given) for run in sweep.runs]) if given else sweep


def with_addresses(sweep: "Sweep", tracking: Mapping[str, Any], mlflow: "MlflowProcess | None") -> "Sweep":
    """Return the runs with their addresses in MLflow, unless there are too many runs."""
    if mlflow is None or len(sweep.runs) > MOST_LINKED:
        return sweep
    from epochmeter.tracking.client import tracking_uri
    from epochmeter.tracking.load import LINKS_LIMIT_S, links_in_database, run_links

    of_sweeps = ({run.name.partition("/")[0] for run in sweep.runs}, tracking["experiment"])
    uri = tracking.get("uri") or tracking_uri()
    with suppress(Exception):  # the report does not need them
        links = links_in_database(*of_sweeps, uri)
        if links is None:
            links = mlflow.call(LINKS_LIMIT_S, run_links, *of_sweeps, uri)
        return replace(sweep, runs=[replace(run, link=links.get(run.name)) for run in sweep.runs])
    return sweep


def are_untracked(sweep: "Sweep", tracking: Mapping[str, Any]) -> bool:
    """Return whether all runs were measured with `tracking=none`, and are not in MLflow since then.

    Their report would be the first entry of a database that nobody has asked for; a server is asked for by name.
    """
    is_default = tracking["name"] == "mlflow"
    names = [(run.job.get("tracking") or {}).get("name") for run in sweep.runs if run.link is None]
    return is_default and bool(names) and len(names) == len(sweep.runs) and {*names} == {"none"}


class ReportOptions(TypedDict):
    """Options of `build_report`."""

    criteria: "Criteria"
    bounds: Mapping[str, float]
    prior: "Sweep | None"
    where: Mapping[str, Any]
    include: Sequence[str]


def report_options(keys: Mapping[str, Any]) -> ReportOptions:
    """Return the options of `build_report`; ValueError if a gate has nothing to compare with."""
    from epochmeter.report.analyses.best import Criteria

    options = keys["report"]
    bounds = {name: bound for name, bound in keys["gate"].items() if bound is not None}
    if bounds and not keys["against"] and options["baseline"] is None:
        raise input_error(
            "a gate needs another sweep or a baseline to compare with", "give against=SWEEP or report.baseline="
        )
    criteria = Criteria(
        eta=options["eta"],
        max_slowdown=options["max_slowdown"],
        power_budget_w=options["power_budget"],
        deadline_s=options["deadline"],
        baseline=options["baseline"],
        predict=options["predict"] or bool(options["prior"]),
        next_runs=options["next"],
    )
    prior = load(keys, options["prior"]) if options["prior"] else None
    where, include = keys["where"], as_list(keys["include"])
    return {"criteria": criteria, "bounds": bounds, "prior": prior, "where": where, "include": include}


VIEWS = {None: report, "card": view_card}
"""View -> its function; those of a trace are in `view_trace`."""


def as_list(value: Any) -> list[Any]:
    """Return one value, or none, as a list."""
    if isinstance(value, list):
        return value
    return [] if value is None else [value]
