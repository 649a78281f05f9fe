"""`Meter`: time and energy of the loops of a script or a notebook, given back to the loop itself."""

import atexit
import contextlib
import functools
import inspect
import math
import operator
import os
import re
import threading
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Union,
)

from epochmeter.agent import hooks, own_controller
from epochmeter.agent.frames import pass_on
from epochmeter.agent.notices import notice
from epochmeter.agent.own_controller import MEASURED, Controller
from epochmeter.agent.unattended import Unattended
from epochmeter.agent.wrapper import Wrapper
from epochmeter.shared.events import AGENT_VARIABLE

if TYPE_CHECKING:
    from epochmeter.agent.agent import Agent

UNLOCKED = "measure.lock=false"
"""Key of meters that may measure at the same time; others would wait for the device, which the first one has."""
REPLACED = (
    "another Meter of this process has ended this one; for several at a time, give each a label: "
    '`Meter("measure.lock=false", "script.client=1")`'
)
NOT_A_CALL = "`{}` is not measured: its call returns before it runs; use `with meter.window(name):` within it"
GOES_ON = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Flags of functions whose calls return generators or coroutines."""
NOT_MEASURED = "not measured, the script continues: {}"
RESERVED = frozenset((
    *("epoch", "val", "steady", "std", "total", "rank_max", "model", "roofline", "memory", "power", "step", "trace"),
    *("throughput", "forecast", "system", "straggler", "run", "process"),
))  # fmt: skip
"""Prefixes of other metrics, which no window may have as its name."""


class Measurement(NamedTuple):
    """Time and energy of a window. A quantity that was not measured is NaN, and `reason` is why.

    A comparison with NaN is false, so that `if meter.last.energy_j > budget` works on machines without a power sensor.

    Example:
        >>> from epochmeter import Measurement
        >>> last = Measurement(e2e_s=2.0, energy_j=100.0)  # as `meter.last`
        >>> last.energy_j / last.e2e_s
        50.0
        >>> Measurement(reason="no power sensor").energy_j > 5000
        False

    Attributes:
        e2e_s: End-to-end time; of an epoch, it is divided into the next three.
        data_stall_s: Time that the device waited for data.
        compute_s: Time that the device computed or copied.
        overhead_s: All other time.
        energy_j: Measured energy, never an estimate.
        reason: Why energy, or everything, is NaN; empty if nothing is.
        metrics: All metrics of the window by name (docs/metrics.md), without the prefix of the window.
    """

    e2e_s: float = math.nan
    data_stall_s: float = math.nan
    compute_s: float = math.nan
    overhead_s: float = math.nan
    energy_j: float = math.nan
    reason: str = ""
    metrics: Mapping[str, float] = MappingProxyType({})

    def __repr__(self) -> str:
        values = ["{}={:.6g}".format(name, getattr(self, name)) for name in FIELDS]
        return "Measurement({}, reason={!r}, {} metrics)".format(", ".join(values), self.reason, len(self.metrics))


FIELDS = Measurement._fields[:-2]
"""The fields that are metrics themselves."""


class BudgetReached(Exception):  # noqa: N818 - no error: as StopIteration
    """One more epoch would exceed a budget of the run.

    Example:
        >>> from epochmeter import BudgetReached, Meter
        >>> meter = Meter("budget.energy_j=5000")
        >>> try:
        ...     for epoch in meter.epochs(2):
        ...         for batch in meter.batches([1, 2, 3]):
        ...             pass  # your training step
        ...         meter.check_budget()
        ... except BudgetReached:
        ...     print("the budget is used")
        >>> meter.close()
    """


class Meter:
    """Measures loops and other parts of a script as windows of one run.

    Example:
        >>> from epochmeter import Meter
        >>> meter = Meter()
        >>> with meter.window("load data"):
        ...     loader = [1, 2, 3]
        >>> for epoch in meter.epochs(2):
        ...     for batch in meter.batches(loader):
        ...         pass  # your training step
        ...     is_enough = meter.last.energy_j > 5000
        >>> meter.close()

    In a script that `measure.py` started, it uses that command's controller. Otherwise the first window starts one, a
    child process. It ends with the script, with `close`, with the `with` block, or with the next `Meter` that starts
    one. Only meters with `"measure.lock=false"` and different overrides measure at the same time, such as those of
    the clients in federated learning. Without a controller, times are recorded for a later command. An error in it
    never reaches the script: it is printed once, and nothing more is measured.

    Args:
        overrides: Keys of `measure.py` for a controller that this meter starts: `"power_limit=100"`,
            `"meter=nvml"`.
    """

    _open: "List[Meter]" = []  # noqa: RUF012 - of the process: have started a controller and not closed it
    _starting = threading.RLock()  # so that meters of several threads start one after the other

    def __init__(self, *overrides: str) -> None:
        self._overrides = overrides
        self._agent = hooks.agent
        self._unused = [str(key).partition("=")[0] for key in overrides]  # by the agent of a measured script
        self._controller: Union[Controller, Unattended, None] = None
        self._hooks = contextlib.ExitStack()  # which removes the hooks of this meter
        self._owner = os.getpid()
        self._expected_epochs: Optional[int] = None
        self._names = {"epoch", "val"}  # of the windows that were measured
        self._refused: List[str] = []  # why windows are not measured, each printed once
        self._kept: Dict[str, Measurement] = {}  # the last one of each name, once the meter is closed
        self._reason = ""
        self._is_closed = self._is_replaced = False

    def __enter__(self) -> "Meter":
        return self

    def __exit__(self, kind: object, error: Optional[BaseException], trace: object) -> None:
        self.close(error)

    def epochs(self, epochs: Union[int, Iterable[int]]) -> Iterator[int]:
        """Yield the numbers of epochs: 0 to `epochs` - 1, or those of an iterable. A window ends with its epoch."""
        numbers = range(epochs) if isinstance(epochs, int) else epochs
        self.expect_epochs(operator.length_hint(numbers) or None)
        for epoch in numbers:
            try:
                yield epoch
            finally:
                self.end_window()

    def expect_epochs(self, count: Optional[int]) -> None:
        """State how many epochs follow, for a forecast of the run's time and energy; None: not known.

        Example:
            >>> meter = Meter()
            >>> meter.expect_epochs(2)
            >>> for epoch in range(2):
            ...     for batch in meter.batches([1, 2, 3]):
            ...         pass  # your training step
        """
        agent, self._expected_epochs = self._joined(), count
        if agent is not None:
            agent.expect_epochs(count)

    def batches(self, data: Iterable[Any], window: Optional[str] = None) -> "MeasuredBatches":
        """Return an iterable over the batches of `data`, such as a DataLoader, a generator or a list.

        Args:
            data: It is iterated over as without this call; each pass is one window.
            window: `epoch` or `val` (an evaluation). None: a pass with a step of a torch optimizer is an epoch,
                another pass is an evaluation. Without any optimizer of torch, each pass with gradients is an epoch.
        """
        return MeasuredBatches(self, data, window)

    def window(self, name: str) -> "NamedWindow":
        """Measure the time and energy of a `with` block, as metrics `name/e2e_s` and `name/energy_j`.

        Within another window it is a part of that window. Characters other than letters and digits become `_`. A
        window with the name of other metrics, such as `epoch` or `memory`, is not measured. It is a decorator, too.
        """
        return NamedWindow(self, name)

    def _open_window(self, name: str) -> Callable[[], object]:
        """Begin a window that the script has named; return a function that ends it."""
        agent, prefix = self._measuring(), ""
        try:
            prefix = metric_prefix(name)
        except ValueError as error:
            if str(error) not in self._refused:
                self._refused.append(str(error))
                notice(NOT_MEASURED.format(error))
        if agent is None or not prefix:
            return lambda: None
        self._names.add(name)
        return functools.partial(agent.guarded, agent.close_window, prefix, agent.guarded(agent.open_window, prefix))

    @property
    def last(self) -> Measurement:
        """The last epoch's `Measurement`."""
        return self.last_of("epoch")

    def last_of(self, window: str) -> Measurement:
        """Return the last `Measurement` of a window: `epoch`, `val`, or a name given to `window`.

        Example:
            >>> with Meter() as meter:
            ...     with meter.window("load data"):
            ...         data = [1, 2, 3]
            ...     energy_j = meter.last_of("load data").energy_j
        """
        agent = self._joined()
        if agent is None:
            return Measurement(reason=self._reason or "nothing was measured yet")
        if window in self._kept:
            return self._kept[window]
        try:
            name = window if window in RESERVED else metric_prefix(window)
        except ValueError as error:
            return Measurement(reason=str(error))
        recorded = agent.measurement(name)
        if agent.reason:
            return Measurement(reason=agent.reason)
        if recorded is None:
            return Measurement(reason="no such window was measured yet")
        metrics = {re.sub("^" + name + "/", "", metric): value for metric, value in recorded.metrics.items()}
        values = {field: metrics.get(field, math.nan) for field in FIELDS}
        return Measurement(reason=recorded.no_energy, metrics=metrics, **values)

    def check_budget(self) -> None:
        """Raise `BudgetReached` if one more epoch would exceed a budget: `Meter("budget.energy_j=5000")`.

        Call it after an epoch. Without a controller, or after `close`, no budget is checked.

        Example:
            >>> with Meter("budget.energy_j=5000") as meter:
            ...     for batch in meter.batches([1, 2, 3]):
            ...         pass  # your training step
            ...     meter.check_budget()
        """
        agent = self._joined()
        recorded = None if agent is None else agent.measurement("epoch")
        if recorded is not None and recorded.stop:
            raise BudgetReached("one more epoch would exceed a budget")

    def hook_loaders(self) -> None:
        """Measure the passes over all DataLoaders from now on, also those of a library, as `measure.py` does.

        Example:
            >>> meter = Meter()
            >>> meter.hook_loaders()  # then call the library that trains
            >>> meter.close()
        """
        agent = self._measuring()
        if self._controller is not None and agent is not None and hooks.loader_agent is not agent:
            self._hooks.callback(hooks.hook_loaders(agent))

    def end_window(self) -> None:
        """End the window that is open, if there is one, so that `last` has its measurement.

        Example:
            >>> meter = Meter()
            >>> for batch in meter.batches([1, 2, 3]):
            ...     pass  # your training step
            >>> meter.end_window()
            >>> time_s = meter.last.e2e_s
        """
        agent = self._joined()
        if agent is not None:
            agent.end_window()

    def close(self, error: Optional[BaseException] = None) -> None:
        """End the run of a controller that this meter has started, and wait; `error` ended the script, if given.

        `sys.exit()`, also with 0, and `BudgetReached` are no errors.
        """
        started, self._controller = self._controller, None
        self._reason = self._reason or "the meter was closed"
        if started is None or self._agent is None or self._owner != os.getpid():
            return
        Meter._open.remove(self)
        self.end_window()
        self._kept = {name: self.last_of(name) for name in self._names}
        self._hooks.close()
        self._agent.end(None if error is None or is_end(error) else error)
        self._is_closed = True
        if not Meter._open:
            os.environ.pop(MEASURED, None)
        started.wait()

    def _measuring(self) -> "Optional[Agent]":
        """Return the agent, which connects to a controller of its own if there is none; None: nothing is measured."""
        if self._is_closed:
            self._forget()
        if self._joined() is None and not self._reason and self._owner == os.getpid():
            with Meter._starting:
                if self._agent is None and not self._reason:  # another thread has not started it meanwhile
                    self._try_to_start()
        if self._unused and self._agent is not None:  # which another command has started
            keys, self._unused = self._unused, []
            self._agent.note_unused(keys)
        return self._agent

    def _joined(self) -> "Optional[Agent]":
        """Return the agent, which may be that of a script that `measure.py` started: from the import of torch on."""
        if self._agent is None and not self._reason and hooks.agent is not None:
            self._agent = hooks.agent
            if self._expected_epochs is not None:
                self._agent.expect_epochs(self._expected_epochs)
        return self._agent

    def _try_to_start(self) -> None:
        try:
            if AGENT_VARIABLE in os.environ:
                import torch  # noqa: F401 - with it, the agent of this process begins
            if self._joined() is not None:
                return
            self._reason = own_controller.refusal()
            if not self._reason:
                self._start()
        except Exception as error:
            pass_on(error)
            self._reason = "{}: {}".format(type(error).__name__, error)
            notice(NOT_MEASURED.format(self._reason))

    def _forget(self) -> None:
        """Forget the results of a closed meter, which are not those of what the script does next."""
        self._agent, self._is_closed = None, False
        self._kept.clear()
        if self._is_replaced:
            self._reason = REPLACED
            notice(NOT_MEASURED.format(self._reason))

    def _runs_beside(self, other: "Meter") -> bool:
        """Return whether both may measure at the same time: the same overrides are those of a cell that runs again."""
        return all(UNLOCKED in meter._overrides for meter in (self, other)) and self._overrides != other._overrides

    def _start(self) -> None:
        import torch  # noqa: F401 - without it, no controller is started

        for other in [meter for meter in Meter._open if not self._runs_beside(meter)]:  # it has the device
            other._is_replaced = True
            other.close()
        controller, self._unused = own_controller.start_controller(self._overrides), []
        from epochmeter.agent.agent import Agent

        agent = Agent(**controller.agent)
        self._controller = controller
        Meter._open.append(self)
        os.environ[MEASURED] = str(os.getpid())
        agent.expect_epochs(self._expected_epochs)
        self._hooks.callback(hooks.hook_training(agent))
        self._hooks.callback(atexit.unregister, self.close)
        atexit.register(self.close)
        self._agent = agent  # last, since other threads use it then


class NamedWindow(contextlib.ContextDecorator):
    """A window that the script has named, for a `with` block.

    A generator, as of `contextlib.contextmanager`, would replace an error whose class refuses new values. A window that
    is entered again before it has ended, also by another coroutine, lasts until the last of its blocks ends.
    """

    def __init__(self, meter: Meter, name: str) -> None:
        self._meter, self._name = meter, name
        self._ends: List[Callable[[], object]] = []  # end the open windows: blocks may be within each other

    def __call__(self, function: Any) -> Any:
        """Measure each call of a function; one that goes on after its call, as a coroutine, is left as it is."""
        if getattr(getattr(function, "__code__", None), "co_flags", 0) & GOES_ON:
            notice(NOT_A_CALL.format(function.__qualname__))
            return function
        return super().__call__(function)

    def _recreate_cm(self) -> "NamedWindow":
        return self._meter.window(self._name)  # threads may call a decorated function at the same time

    def __enter__(self) -> None:
        self._ends.append(self._meter._open_window(self._name))

    def __exit__(self, *error: object) -> None:
        self._ends.pop()()


class MeasuredBatches(Wrapper):
    """Iterable over the batches of data, each pass of which is measured."""

    def __init__(self, meter: Meter, data: Iterable[Any], window: Optional[str]) -> None:
        self._meter, self._window = meter, window
        super().__init__(meter, data)

    def __iter__(self) -> Iterator[Any]:
        agent, data = self._meter._measuring(), self._wrapped
        return iter(data) if agent is None else agent.passes.iterate(data, iter, self._window or "", is_explicit=True)


def is_end(error: BaseException) -> bool:
    """Return whether an exception ends a script as it should: it exits with 0, or its budget is reached."""
    is_exit = isinstance(error, SystemExit) and error.code in (None, 0)
    return is_exit or isinstance(error, (BudgetReached, GeneratorExit))


def metric_prefix(name: str) -> str:
    """Return a window's name as the prefix of its metrics; ValueError if it is no name, or other metrics have it."""
    prefix = re.sub(r"\W+", "_", name.strip()) if isinstance(name, str) else ""
    if not prefix or prefix in RESERVED:
        raise ValueError("a window cannot have the name `{}`".format(name))
    return prefix
