"""Jobs and runs for the benchmarks, published to an MLflow experiment of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from common.output import sized
from hydra import compose, initialize_config_dir

from epochmeter.config import job, resolvers
from epochmeter.config.installation import ROOT
from epochmeter.config.schema import Dataset, Storage
from epochmeter.config.versions import DEFAULTS
from epochmeter.datasets.ready import prepare_dataset
from epochmeter.shared.record import Record

TRACKING = sized("tracking.experiment=bench", "tracking=none")
"""Where runs are published: short benchmarks publish none, since MLflow would take longer than the training."""


def composed(*overrides: str) -> dict[str, Any]:
    """Compose a job as `src/train.py` does."""
    resolvers.register(lambda command, many, again: Path())
    with initialize_config_dir(str(ROOT / "conf"), **DEFAULTS):
        return job.to_plain(compose("train", overrides=list(overrides)))


def digits_folder() -> Path:
    """Create the dataset `digits` if it is missing, and return its folder."""
    keys = composed("dataset=digits")
    dataset = prepare_dataset(Dataset.from_dict(keys["dataset"]), Storage.from_dict(keys["storage"]), ROOT, print)
    return Path(dataset["folder"])


def measured(*arguments: str) -> tuple[Record, str]:
    """Run `src/measure.py` with these arguments and return the record of its run, and the script's output."""
    command = [sys.executable, "src/measure.py", TRACKING, *arguments]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    (folder,) = re.findall(r"^Results: (\S+)$", done.stderr, re.MULTILINE)
    return Record(ROOT / folder), done.stdout


def trained(*arguments: str) -> list[Record]:
    """Run `src/train.py` with these arguments and return the records of its runs."""
    command = [sys.executable, "src/train.py", *arguments, TRACKING]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [Record(ROOT / folder) for folder in re.findall(r"->\s+(\S+/\d+)$", output, re.MULTILINE)]
