"""Jobs and runs for the benchmarks beside it, which keep out of the experiment that people look at."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir

from epochmeter.config import job
from epochmeter.config.job import ROOT
from epochmeter.shared.record import Record


def composed(*overrides: str) -> dict[str, Any]:
    """A job as `src/train.py` would compose it."""
    job.register(lambda command, many, again: Path())
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return job.to_plain(compose("train", overrides=list(overrides)))


def trained(*arguments: str) -> list[Record]:
    """The records of `src/train.py` with these arguments; they are not shown among other runs in MLflow."""
    command = [sys.executable, "src/train.py", *arguments, "tracking.experiment=bench"]
    said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [Record(ROOT / folder) for folder in re.findall(r"->\s+(\S+/\d+)$", said, re.MULTILINE)]
