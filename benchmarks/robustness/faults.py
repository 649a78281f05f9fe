"""Inject faults into runs at random instants, start each run again, and count the losses.

    make faults                                20 of each, half a minute or more each, one per core in parallel
    make faults ARGS="--each 2 SIGTERM"        two of those whose names contain that word

Every column must be 0. Faults that cannot be injected on this machine are listed as skipped.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common.output import ARGUMENTS, print_table, sized
from project import Project, copy_sources, set_up
from robustness.fault_injection import FAULTS, Damage, Fault, Scene, UnsuitedError, inject

COLUMNS = ("injected", "lost epochs", "wrong in MLflow", "settings not restored", "processes left", "not completed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="WORD", help="faults whose names contain one of these (all)")
    parser.add_argument("--each", type=int, default=sized(20, 1), help="how often each is injected (%(default)s)")
    parser.add_argument("--parallel", type=int, default=os.cpu_count(), help="runs in parallel (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the instants (%(default)s)")
    options = parser.parse_args(ARGUMENTS)
    selected = {
        name: fault
        for name, fault in FAULTS.items()
        if not options.names or any(word.casefold() in name.casefold() for word in options.names)
    }
    rows, failed = [], False
    with (
        tempfile.TemporaryDirectory(prefix="epochmeter-faults-") as folder,
        ThreadPoolExecutor(options.parallel) as pool,
    ):
        template = Path(folder, "template")
        template.mkdir()
        copy_sources(template)
        set_up(template)
        seeds = range(options.seed, options.seed + options.each)
        futures = {
            name: [pool.submit(inject_once, name, fault, seed, template) for seed in seeds]
            for name, fault in selected.items()
        }
        for name, injected in futures.items():
            damages = [damage for future in injected if (damage := future.result())]
            row = [len(damages), *(sum(counts) for counts in list(zip(*damages, strict=True))[:4])] if damages else []
            errors = sum(bool(damage.error) for damage in damages)
            rows.append([name, *map(str, [*row, errors] if damages else ["skipped"])])
            failed |= bool(errors) or any(row[1:])
    print_table("Losses of injected faults", ("fault", *COLUMNS), rows)
    return int(failed)


def inject_once(name: str, fault: Fault, seed: int, template: Path) -> Damage | None:
    """Inject a fault once and print the damage; None if the fault cannot be injected on this machine."""
    with tempfile.TemporaryDirectory(prefix="epochmeter-fault-", ignore_cleanup_errors=True) as folder:
        root, board = Path(folder, "project"), Path(folder, "board")
        root.mkdir()
        board.mkdir()
        scene = Scene(Project(root, template), board, seed)
        try:
            damage = inject(fault, scene)
        except UnsuitedError as reason:
            print(f"{name}: skipped: {reason}", flush=True)
            return None
        except Exception as error:  # the other faults are injected anyway
            damage = Damage(0, 0, 0, 0, f"{type(error).__name__}: {error}")
        finally:
            scene.project.clear()
    print(f"{name}, seed {seed}: {damage}", flush=True)
    return damage


if __name__ == "__main__":
    sys.exit(main())
