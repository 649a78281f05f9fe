"""A process that calls MLflow for a report: importing MLflow takes two seconds, in which the report is made."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

from epochmeter.machine.helper_process import start_helper
from epochmeter.shared.problem import KILL_HINT, ProblemError, machine_error
from epochmeter.tracking.reasons import error_reason

P = ParamSpec("P")
T = TypeVar("T")


class MlflowProcess:
    """Starts at once, imports MLflow, and then makes the calls that it is given, one after another.

    It ends with the command. After a call that takes too long, another process makes the next ones.

    Args:
        tracking: The configuration with the database of the calls.
    """

    def __init__(self, tracking: Mapping[str, Any]) -> None:
        self._tracking = {**tracking}
        self._start()

    def _start(self) -> None:
        self._process, self._pipe = start_helper(partial(_serve, self._tracking))

    def call(self, limit_s: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a call of a module's function.

        Raises:
            TimeoutError: It takes longer than the limit.
            ProblemError: Of the function.
            RuntimeError: Another error of the function, or the process has ended.
        """
        try:
            self._pipe.send((function, args, kwargs))
            if not self._pipe.poll(limit_s):
                self._process.kill()
                self._start()  # for the next call
                raise TimeoutError(f"no answer within {limit_s:g} s")
            result, error = self._pipe.recv()
        except (EOFError, ConnectionError) as ended:
            self._process.join()
            code = self._process.exitcode
            raise machine_error(f"the process that calls MLflow has ended with exit code {code}", KILL_HINT) from ended
        if error:
            raise error
        value: T = result
        return value


def _serve(tracking: Mapping[str, Any], pipe: Connection) -> None:
    """Make the calls that are received, and send their results or errors."""
    from epochmeter.tracking.client import connect_database

    with suppress(Exception):  # the calls raise it again
        connect_database(tracking)
    with suppress(EOFError, ConnectionError):  # the command has ended
        while True:
            function, args, kwargs = pipe.recv()
            pipe.send(_outcome(function, args, kwargs))


def _outcome(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    try:
        return function(*args, **kwargs), None
    except ProblemError as error:
        return None, error
    except Exception as error:  # not all errors of MLflow can be sent
        return None, RuntimeError(error_reason(error))
