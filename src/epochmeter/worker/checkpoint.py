"""The checkpoint of a run: what it goes on from, should it be ended before its end.

One file, which `torch.load` reads, and in it what the steward reads without torch: see `Record.checkpoint`.
"""

import json
import math
import os
import zipfile

import torch

from epochmeter.shared.record import CHECKPOINT, CHECKPOINT_TOLD
from epochmeter.worker import rng


class Checkpoint:
    """Writes all that a learner and its batches are, and every random number to come, and brings it back.

    The first rank writes for all, after every so many epochs (`every`, None: never), and reads for all: the others may
    be on a node that has no such file.
    """

    def __init__(self, record, learner, loaders, strategy, every):
        self._record, self._learner, self._loaders, self._strategy = record, learner, loaders, strategy
        self._every = every or math.inf

    def resume(self):
        """Brings back what the run goes on from, where it does; the epochs that it has trained, and whether it had
        ended with them. RuntimeError where this torch cannot read it.
        """
        run = self._record.run() if self._strategy.rank == 0 else {}
        state = self._strategy.share(read(self._record.folder / CHECKPOINT) if run.get("resumed") else None)
        if state is None:
            return 0, False
        self._learner.load(state["learner"])
        own = state["ranks"][self._strategy.rank]
        for loader, numbers in zip(self._loaders, own["loaders"]):
            loader.load(numbers)
        rng.load(own["numbers"])
        return state["epochs"], state["ended"]

    def write(self, epochs, ended):
        """Writes it if it is due after so many epochs. What was written before stands until this is on the disk.

        RuntimeError where it cannot be written: what would be measured after it could be lost.
        """
        if epochs % self._every:
            return
        own = {"numbers": rng.state(), "loaders": [loader.state() for loader in self._loaders]}
        ranks = self._strategy.gather(own)
        if self._strategy.rank:
            return
        state = {"epochs": epochs, "ended": ended, "learner": self._learner.state(), "ranks": ranks}
        told = {"record_id": self._record.run()["record_id"], "epochs": epochs}
        try:
            replace(self._record.folder / CHECKPOINT, state, told)
        except (OSError, RuntimeError) as error:
            raise RuntimeError(
                "the checkpoint after {} epochs cannot be written: {}. Make room or give the right to, or leave "
                "checkpoint.every out.".format(epochs, first_line(error))
            ) from error


def replace(path, state, told):
    """Writes a file that holds `state`, and what is `told` of it, whole or not at all."""
    partial = path.with_name(".{}".format(path.name))  # of one name: what a killed run left is written over
    try:
        with open(str(partial), "wb") as file:
            torch.save(state, file)
        with zipfile.ZipFile(str(partial), "a") as archive:
            archive.writestr(CHECKPOINT_TOLD, json.dumps(told))
        with open(str(partial), "rb") as file:
            os.fsync(file.fileno())
        os.replace(str(partial), str(path))
    except BaseException:
        if partial.is_file():
            partial.unlink()  # the end of the run may need its room
        raise
    folder = os.open(str(path.parent), os.O_RDONLY)  # that it goes by this name now is to survive a power cut too
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


SAFELY = {"weights_only": True} if hasattr(torch.serialization, "add_safe_globals") else {}
"""Nothing in a file is run to read it. Before torch 2.4 that would refuse what some schedules keep: a `Counter`."""


def read(path):
    try:
        return torch.load(str(path), map_location="cpu", **SAFELY)
    except Exception as error:
        raise RuntimeError(
            "{} cannot be read by torch {}: {}. Remove it to measure the run anew.".format(
                path, torch.__version__, first_line(error)
            )
        ) from error


def first_line(error):
    """What an error says, less the trace that torch may put below."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
