"""Says what the runs of a sweep tell when they are put side by side.

python src/report.py                                     the last sweep that has runs
python src/report.py sweep=2026-11-20_12-00-00-1a2b3c4d  that one of multirun/; a folder's path will do

What it tells is chosen by what the runs are, and is written beside them, as numbers and as a page:
    stalls.json, stalls.md        -m experiment=stalls: where stalls come from
    scaling.json, scaling.md      -m strategy=single,ddp: what more devices bring, and what they cost
    questions.json, questions.md  -m strategy=single,dp,ddp model=resnet50,resnet152 batch=64,128: why that is so
    targets.json, targets.md      a target_accuracy or target_loss: time and energy to it, and the Pareto front
Exits with 1 where there is no run to tell of.
"""

from __future__ import annotations

import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig

from trainmeter.job import ROOT


@hydra.main(version_base="1.3", config_path="../conf", config_name="report")
def main(config: DictConfig) -> None:
    # What follows is imported late: --help and --cfg answer at once.
    from rich.console import Console

    from trainmeter.report.tell import tell

    try:
        folder = asked(config.sweep)
    except ValueError as error:
        sys.exit(str(error))
    tell(folder, Console(highlight=False))


def asked(sweep: str | None) -> Path:
    """The folder that was asked for; ValueError where it holds no runs."""
    from trainmeter.report.records import newest, run_folders

    multirun = ROOT / "multirun"
    if sweep is None:
        folder = newest(multirun)
        if folder is None:
            raise ValueError("There are no runs yet. Run first: python src/train.py -m experiment=stalls")
        return folder
    for folder in (multirun / str(sweep), Path(str(sweep))):
        if run_folders(folder):
            return folder.absolute()
    last = newest(multirun)
    other = f"The last one that has is {last.name}." if last else "None has: run python src/train.py first."
    raise ValueError(f"sweep={sweep}: no runs there: no job.json in it or in its numbered folders. {other}")


if __name__ == "__main__":
    main()
