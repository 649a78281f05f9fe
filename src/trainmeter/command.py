"""A command of Hydra's: `run("train", task, doc)` hands the task what the command line makes of conf/train.yaml."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from functools import wraps
from io import StringIO
from types import TracebackType

import hydra
from omegaconf import DictConfig

from trainmeter import manual
from trainmeter.hints import CONF, Hint, hints

OF_FLAGS = {
    "Only one of --": " --cfg job prints one job: leave out -m, and give each key one value.",
    "The --resolve flag": "",
}
"""How an error begins by which Hydra ends in a traceback, of flags that do not go together -> what to add to it."""


def run(entry: str, task: Callable[[DictConfig], None], doc: str | None) -> None:
    """Runs a task on the configuration that was typed, or on each of a sweep; SystemExit where there is none.

    `doc`: what the entry says of itself, for its page.
    """
    if {"--help", "-h"} & {*sys.argv[1:]}:
        print(manual.page(entry, doc or ""))
        return
    with in_our_words(sys.argv[1:], entry) as composed:

        @hydra.main(version_base="1.3", config_path=str(CONF), config_name=entry)
        @wraps(task)
        def composed_task(config: DictConfig) -> None:
            composed()
            task(config)

        try:
            composed_task()
        except ValueError as error:
            for begins, what_to_do in OF_FLAGS.items():
                if str(error).startswith(begins):
                    sys.exit(f"{error}.{what_to_do}")
            raise


@contextmanager
def in_our_words(arguments: list[str], entry: str) -> Iterator[Callable[[], None]]:
    """What Hydra refuses while within is told by hints, where there are any, and else as Hydra tells it.

    What is written on stderr is held back until what this gives is called, once all is composed.
    """
    held = StringIO()

    def tell(kind: type[BaseException] | None, end: BaseException | None, trace: TracebackType | None) -> None:
        refused = isinstance(end, SystemExit) and end.code == 1 and held.getvalue()
        sys.stderr.write(instead(refused, hints(arguments, entry)) if refused else held.getvalue())

    with ExitStack() as holding:
        holding.push(tell)
        holding.enter_context(redirect_stderr(held))
        yield holding.close


def instead(refused: str, found: list[Hint]) -> str:
    """What to say in place of a refusal: the hints, and after them what Hydra says unless one is about the same."""
    lines = "".join(f"{hint.line}\n" for hint in found)
    return lines if any(hint.about in refused for hint in found) else lines + refused
