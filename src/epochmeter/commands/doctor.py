"""List the quantities that this machine can measure and the settings that it can change.

    python src/doctor.py                         a table
    python src/doctor.py format=json             one JSON document
    python src/doctor.py device=nano             for runs with another device
    python src/doctor.py device=cpu meter=rapl   for runs with another meter
    python src/doctor.py record=board.tar.gz     record the machine, for a bug report
    python src/doctor.py machine.root=board.tar.gz    examine a recorded machine

For everything that is not available the table has the reason and a hint. Nothing is changed.

Exit code: 0, 1 if the command is invalid, or 128 + n if signal n stopped it.
"""

import shlex
import signal
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from epochmeter.config import app, errors, json_output, validation
from epochmeter.config.entries import Examination
from epochmeter.config.installation import with_own_commands
from epochmeter.config.request import compose_for_device
from epochmeter.config.resolvers import value_for_board
from epochmeter.config.versions import register_resolver
from epochmeter.shared.problem import MachineError, Problem

if TYPE_CHECKING:
    from epochmeter.machine.recorded.recorder import Recorded
    from epochmeter.run.capabilities import Row


def main() -> int:
    register_resolver("of_board", value_for_board)
    try:
        app.run("doctor", task, __doc__)
    except KeyboardInterrupt:  # while it records
        return 128 + signal.SIGINT
    return 0


def task(config: DictConfig) -> None:
    # Imported late, so that --help and --cfg are fast.
    from epochmeter.machine.host import device_of
    from epochmeter.run.capabilities import examine_machine
    from epochmeter.run.machine_record import record

    try:
        validation.check_all_values(
            {"format": config.format, "record": config.record, "machine": app.plain_keys(config.machine)}, "doctor"
        )
        detected, chosen = device_of(config.machine.root), HydraConfig.get()
        if chosen.runtime.choices["device"] == "auto":
            config = compose_for_device("doctor", detected, chosen.overrides.task)
        keys = app.plain_keys(config)
        validation.check_all_values(keys, "doctor")
        examination = Examination.from_dict(keys)
        if examination.record:
            recorded = record(examination, partial(print, flush=True))
            json_output.set_result({"recording": recording_fields(recorded)})
            print_recorded(recorded)
            return
        rows = list(examine_machine(examination, detected))
    except (ValueError, MachineError) as error:
        errors.refuse(error)
    json_output.set_result({"rows": [row._asdict() for row in rows]})
    print_table(rows)


def recording_fields(recorded: "Recorded") -> dict[str, object]:
    """Return a recording as the document of `format=json` has it."""
    return {
        "path": str(recorded.path),
        "files": recorded.files,
        "gpus": recorded.gpus,
        "seconds": recorded.seconds,
        "missing": dict(recorded.missing),
    }


def print_table(rows: Iterable["Row"]) -> None:
    """Print the table; the last column wraps, so that it fits a narrow terminal."""
    from rich.markup import escape
    from rich.table import Column, Table

    from epochmeter.console.plain import PlainConsole

    last = Column("source and coverage, or why not", overflow="fold")  # paths are not cut off
    table = Table("", "available", "period", last, box=None, pad_edge=False)
    for row in rows:
        available = "[green]yes[/]" if row.offered else "[yellow]no[/]"
        period = "" if row.period_s is None else f"{row.period_s:.3g} s"
        table.add_row(escape(row.quantity), available, period, escape(details(row)))
    PlainConsole().print_table(table)


def details(row: "Row") -> str:
    """Return the text of a row's last column."""
    facts = [
        ": ".join(filter(None, (row.source, row.covers))),
        row.now and f"current value {row.now}",
        row.choices and f"possible values {row.choices}",
    ]
    details = "; ".join(fact.removesuffix(".") for fact in facts if fact)
    why = errors.format_error(Problem(row.why, row.remedy or ""), severity="") if row.why else ""
    return "\n".join(filter(None, (details, why)))


def print_recorded(recorded: "Recorded") -> None:
    """Print what a recording has, what it lacks, and what to do with it."""
    from epochmeter.console.plain import PlainConsole

    load = f"without load: {recorded.reason}"
    if recorded.load:
        load = f"{recorded.load['ended_s'] - recorded.load['begun_s']:.0f} s of it with a matrix product"
    print_text = partial(PlainConsole().print, markup=False)
    print_text(
        f"Recorded: {recorded.path} ({recorded.files} files, {recorded.gpus} GPUs, {recorded.seconds:.0f} s, {load})"
    )
    if recorded.missing:
        print_text(f"Not recorded: {len(recorded.missing)} files")
        for path, why in recorded.missing.items():
            print_text(f"  /{path}: {why}")
    print_text("Serial numbers, addresses, and names of users and hosts are replaced. Look at it before you send it:")
    archive = shlex.quote(str(recorded.path))
    print_text(f"  tar tzf {archive}")
    print_text(with_own_commands(f"  python src/doctor.py machine.root={archive}"))
