"""Says what this machine can measure and set, from where and how often; and if not, why, and what
would change that.

    python src/doctor.py                         a table
    python src/doctor.py format=json             the same for machines: a list of objects
    python src/doctor.py device=nano             what a job for that device would find here
    python src/doctor.py device=cpu meter=rapl   what one by that meter would

Exit code: 0, however little there is to measure; 1 where what was asked for is none.
"""

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from epochmeter.config import interpreter

if interpreter.lack():
    sys.exit(interpreter.lack())

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from epochmeter.config import app, errors, validation
from epochmeter.config.job import matches, of_board

if TYPE_CHECKING:
    from epochmeter.doctor import Row


def main(config: DictConfig) -> None:
    # What follows is imported late: --help and --cfg answer at once.
    from epochmeter.doctor import examine
    from epochmeter.machine import host

    try:
        validation.check_each({"format": config.format, "machine": plain(config.machine)})
        found = host.detect(matches(), host.facts(config.machine.root))
        keys = on(config, found)
        validation.check_each(keys)
        rows = list(examine(keys, found))
    except ValueError as error:
        sys.exit(errors.line(error))
    if config.format == "json":
        print(json.dumps([row._asdict() for row in rows], indent=2))
    else:
        show(rows)


def on(config: DictConfig, found: str) -> dict[str, Any]:
    """What was asked, as plain values; composed once more for the device found where none was named."""
    chosen = HydraConfig.get()
    if chosen.runtime.choices["device"] == "auto":
        others = [override for override in chosen.overrides.task if override.partition("=")[0] != "device"]
        config = hydra.compose("doctor", overrides=[*others, f"device={found}"])
    return plain(config)


def plain(config: DictConfig) -> dict[str, Any]:
    """A configuration as plain values."""
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]


def show(rows: Iterable["Row"]) -> None:
    """The table; reasons and remedies wrap, so that it fits a narrow terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("quantity", "here", "every", "from where, and what it covers; or why not", box=None, pad_edge=False)
    for row in rows:
        here = "[green]yes[/]" if row.offered else "[yellow]no[/]"
        every = "" if row.period_s is None else f"{row.period_s:.3g} s"
        table.add_row(escape(row.quantity), here, every, escape(told(row)))
    Console(highlight=False).print(table)


def told(row: "Row") -> str:
    """All that a row says behind its first columns."""
    facts = [
        ": ".join(filter(None, (row.source, row.covers))),
        row.period_range_s and "samples {:.2g} to {:.2g} s apart, median on the left".format(*row.period_range_s),
        row.sampling_core_fraction is not None and f"sampling takes {row.sampling_core_fraction:.1%} of a core",
        row.now and f"now {row.now}",
        row.choices and f"can be {row.choices}",
        row.why,
    ]
    said = "; ".join(fact.removesuffix(".") for fact in facts if fact)
    return f"{said}\nwhat would help: {row.remedy}" if row.remedy else said


if __name__ == "__main__":
    OmegaConf.register_new_resolver("of_board", of_board)
    app.run("doctor", main, __doc__)
