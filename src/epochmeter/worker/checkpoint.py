"""Checkpoints: one file that `torch.load` reads, with an entry that the controller reads without torch."""

import json
import math
import os
import pathlib
import zipfile
from typing import Any, List, Mapping, Optional, Sequence, Tuple

import torch

from epochmeter.shared.atomic_files import fsync_folder
from epochmeter.shared.problem import machine_error
from epochmeter.shared.record import CHECKPOINT, CHECKPOINT_METADATA, Record
from epochmeter.worker import rng
from epochmeter.worker.data.loader import Loader
from epochmeter.worker.errors import first_line
from epochmeter.worker.strategy import Single
from epochmeter.worker.timeline import monotonic_ns
from epochmeter.worker.trainer import Trainer


class Checkpoint:
    """Save and restore the trainer, the loaders and all random number generators, every `every` epochs (None: never).

    Rank 0 writes and reads for all ranks, as other nodes may not have the file.
    """

    def __init__(
        self, record: Record, trainer: Trainer, loaders: Sequence[Loader], strategy: Single, every: Optional[int]
    ) -> None:
        self._record, self._trainer, self._loaders, self._strategy = record, trainer, loaders, strategy
        self._path, self._every = record.folder / CHECKPOINT, every or math.inf
        self.saves_ns: List[List[int]] = []
        """Begin and end of each checkpoint that was written."""

    def resume(self) -> Tuple[int, bool]:
        """Restore the checkpoint of a resumed run; return its completed epochs, and whether training had ended."""
        is_resumed = self._strategy.rank == 0 and self._record.run().get("resumed")
        state = self._strategy.broadcast(read_state(self._path) if is_resumed else None)
        if state is None:
            return 0, False
        self._trainer.load(state["learner"])
        rank_state = state["ranks"][self._strategy.rank]
        for loader, loader_state in zip(self._loaders, rank_state["loaders"]):
            loader.load(loader_state)
        rng.set_state(rank_state["numbers"])
        return state["epochs"], state["ended"]

    def write(self, epochs: int, ended: bool) -> None:
        """Write the checkpoint if it is due, or raise RuntimeError; the previous one is kept until it is on disk."""
        if epochs % self._every:
            return
        begun_ns = monotonic_ns()
        rank_state = {"numbers": rng.get_state(), "loaders": [loader.state() for loader in self._loaders]}
        ranks = self._strategy.all_gather(rank_state)
        if self._strategy.rank:
            return
        state = {"epochs": epochs, "ended": ended, "learner": self._trainer.state(), "ranks": ranks}
        metadata = {"record_id": self._record.run()["record_id"], "epochs": epochs}
        try:
            write_state(self._path, state, metadata)
        except (OSError, RuntimeError) as error:
            message = "cannot write the checkpoint after {} epochs: {}".format(epochs, first_line(error))
            hint = "free disk space or fix the permissions, or leave out checkpoint.every"
            raise machine_error(message, hint, file=str(self._path)) from error
        self.saves_ns.append([begun_ns, monotonic_ns()])


def write_state(path: pathlib.Path, state: Mapping[str, object], metadata: Mapping[str, object]) -> None:
    """Write a checkpoint; the previous one is replaced when the new one is on disk."""
    partial = path.with_name("." + path.name)  # a fixed name: overwrites the rest of a killed run
    try:
        with open(partial, "wb") as file:
            torch.save(state, file)
        with zipfile.ZipFile(str(partial), "a") as archive:
            # With a fixed time, since a zip file has none before 1980, as of a board that has lost its clock.
            archive.writestr(zipfile.ZipInfo(CHECKPOINT_METADATA), json.dumps(metadata))
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        if partial.is_file():
            partial.unlink()  # frees the disk space for the final summary
        raise
    fsync_folder(path.parent)  # the rename must survive a power cut too


def read_state(path: pathlib.Path) -> Any:
    """Return the state in a checkpoint; RuntimeError if it is damaged or from another version of torch."""
    try:
        # Loading executes no code from the file. Before torch 2.4 this would refuse the `Counter` of some schedules.
        options = {"weights_only": True} if hasattr(torch.serialization, "add_safe_globals") else {}
        return torch.load(str(path), map_location="cpu", **options)
    except Exception as error:
        message = "torch {} cannot read the checkpoint {}: {}".format(torch.__version__, path, first_line(error))
        raise machine_error(message, "delete it to measure the run again", file=str(path)) from error
