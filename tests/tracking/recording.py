"""Exporters as a user may write them: one that records its calls, and some that fail."""

import json
import os
import sys
import time
from pathlib import Path

MODULE = Path(__file__).stem


def named(exporter):
    """The name of an exporter of this module in `tracking.also`."""
    return f"{MODULE}:{exporter.__name__}"


class Recording:
    """Appends each call with its arguments to the file in $RECORDED."""

    def check(self):
        pass

    def open(self, run):
        self.write("open", run._asdict())
        return f"page of {run.name}"

    def log(self, epoch, metrics):
        self.write("log", epoch, metrics)

    def close(self, run):
        self.write("close", run._asdict())

    def write(self, *call):
        with open(os.environ["RECORDED"], "a") as file:
            file.write(json.dumps(call) + "\n")


class Printing(Recording):
    """Prints, and has a handler for the end of the process that hangs."""

    def open(self, run):
        import atexit

        atexit.register(time.sleep, 600)
        print("hello")
        print("hello", file=sys.stderr)
        return super().open(run)


class Hanging(Recording):
    """Starts a process, and never ends."""

    def open(self, run):
        self.write("open", os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600"))

    def close(self, run):
        time.sleep(600)


class Leaving(Recording):
    """Starts a process, and fails without ending it."""

    def open(self, run):
        self.write("open", os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600"))
        raise RuntimeError("refused")


class Addressed(Recording):
    """Has an address that is no text, with a key."""

    def open(self, run):
        return Path("https://host/run?apiKey=hunter2hunter2")


class Failing(Recording):
    def log(self, epoch, metrics):
        raise RuntimeError(f"refused: key {os.environ['WANDB_API_KEY']}\nmore")


class Dying(Recording):
    def log(self, epoch, metrics):
        os._exit(7)


class Refusing(Recording):
    def check(self):
        raise ValueError("no account")
