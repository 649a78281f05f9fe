"""What is left after a fault: of a run that is hurt at an instant drawn by a seed, and then started once more.

    make faults                                20 of each, half a minute or more apiece, one a core at once
    make faults ARGS="--each 2 SIGTERM"        two of those whose names hold that word

Every column is to be 0. A fault that this machine cannot bring about is said to be left out.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from conftest import Project, set_up
from faulty import FAULTS, Fault, Found, Scene, UnsuitedError, inject
from rich.console import Console
from rich.table import Table

COLUMNS = ("injected", "lost epochs", "wrong in MLflow", "knobs not restored", "processes left", "not completed after")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="WORD", help="faults whose names hold one of these (all)")
    parser.add_argument("--each", type=int, default=20, help="how often each is injected (%(default)s)")
    parser.add_argument("--at-once", type=int, default=os.cpu_count(), help="so many runs at once (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="draws the instants (%(default)s)")
    asked = parser.parse_args()
    wanted = {
        name: fault
        for name, fault in FAULTS.items()
        if not asked.names or any(word.casefold() in name.casefold() for word in asked.names)
    }
    console, table = Console(highlight=False), Table("fault", *COLUMNS, box=None)
    failed = False
    with tempfile.TemporaryDirectory(prefix="epochmeter-faults-") as desk, ThreadPoolExecutor(asked.at_once) as several:
        template = Path(desk, "template")
        template.mkdir()
        set_up(template)
        seeds = range(asked.seed, asked.seed + asked.each)
        under_way = {
            name: [several.submit(once, name, fault, seed, template) for seed in seeds]
            for name, fault in wanted.items()
        }
        for name, injected in under_way.items():
            found = [each for one in injected if (each := one.result())]
            row = [len(found), *(sum(counts) for counts in list(zip(*found, strict=True))[:4])] if found else []
            wrong = [each.wrong for each in found if each.wrong]
            table.add_row(name, *map(str, [*row, len(wrong)] if found else ["left out"]))
            failed |= bool(wrong) or any(row[1:])
    console.print(table)
    return int(failed)


def once(name: str, fault: Fault, seed: int, template: Path) -> Found | None:
    """One injection, told on a line as it is done; None where it could not be brought about."""
    with tempfile.TemporaryDirectory(prefix="epochmeter-fault-", ignore_cleanup_errors=True) as desk:
        project, board = Path(desk, "project"), Path(desk, "board")
        project.mkdir()
        board.mkdir()
        scene = Scene(Project(project, template), board, seed)
        try:
            found = inject(fault, scene)
        except UnsuitedError as why:
            print(f"{name}: left out: {why}", flush=True)
            return None
        except Exception as error:  # whatever it is, the others are still worth their hours
            found = Found(0, 0, 0, 0, f"{type(error).__name__}: {error}")
        finally:
            scene.project.clear()
    print(f"{name}, seed {seed}: {found}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
