"""Stand-ins for the clients of NVML, amdsmi and jtop, which answer the recorded calls of another machine's drivers.

They also replace the drivers in tests. A call that was not recorded is not supported.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from epochmeter.machine import nvml
from epochmeter.machine.recorded.driver_calls import FIELDS, TUPLE, call_name
from epochmeter.machine.recorded.jtop_calls import MEMBERS
from epochmeter.machine.recorded.series import IsCounter, Leaf, Repeated, Series
from epochmeter.machine.recorded.table_types import (
    amd_outcome,
    jtop_outcome,
    mapping,
    nvml_outcome,
    optional_text,
    times_s,
)
from epochmeter.shared.problem import machine_error
from epochmeter.shared.types import Document

ENERGY = "nvmlDeviceGetTotalEnergyConsumption()"
AMD_COUNTER = re.compile(r"acc(?:umulator)?$|_counter$|count$|timestamp|^power$|energy")
"""Names of the values of amdsmi that count up; before amdsmi 6.2.1, `power` is the count of its energy."""
Clock = Callable[[], float]


class Outcomes:
    """The outcomes of the calls on one GPU: constant, or as a series that is repeated."""

    def __init__(
        self,
        gpu: Document,
        duration_s: float,
        elapsed_s: Clock,
        *,
        outcome: Callable[[str, Any], Document],
        counter: Callable[[str], IsCounter | None],
    ) -> None:
        """`outcome` checks an outcome, and `counter` returns which numbers of a call count up."""
        calls = mapping(mapping(gpu, "a GPU")["calls"], "calls")
        self.constant: Mapping[str, Document] = {name: outcome(name, one) for name, one in calls.items()}
        self._elapsed_s = elapsed_s
        self._series = {}
        for name, fields in mapping(gpu.get("series", {}), "series").items():
            times = times_s(fields, duration_s)
            values = [outcome(name, value) for value in fields["values"]]
            self._series[name] = Repeated(Series(times, values), duration_s, is_counter=counter(name))

    def of(self, name: str) -> Document | None:
        """Return the outcome of a call now; None if it was not recorded."""
        series = self._series.get(name)
        return series.at(self._elapsed_s()) if series else self.constant.get(name)


class Handle:
    """The handle of a GPU."""

    def __init__(self, index: int) -> None:
        self.index = index


class RecordedNvml:
    """The client of NVML, `pynvml`, of a machine whose calls were recorded.

    Its constants, classes and errors are those of the real client.

    Args:
        table: The document `nvml.json` of a recording.
        elapsed_s: Returns the time since the begin of the replay; None: it begins now.
    """

    def __init__(self, table: Document, duration_s: float, elapsed_s: Clock | None = None) -> None:
        counter: IsCounter = lambda leaf, first: True  # noqa: E731
        elapsed_s = elapsed_s or since_now()
        rule = lambda name: counter if name == ENERGY else None  # noqa: E731
        self._reason = optional_text(table.get("reason"), "reason") if table else "no recording of NVML"
        system = mapping(table.get("system", {}), "system")
        self._system = {name: nvml_outcome(name, outcome) for name, outcome in system.items()}
        self._gpus = [
            Outcomes(gpu, duration_s, elapsed_s, outcome=nvml_outcome, counter=rule) for gpu in table.get("gpus", ())
        ]

    def check(self) -> None:
        """Raise OSError if NVML did not start there, or if its client is missing here."""
        if self._reason:
            raise OSError(self._reason)
        nvml.real_client()

    def __getattr__(self, name: str) -> Any:
        real = getattr(nvml.real_client(), name, None)
        if real is None and not name.startswith("nvml"):
            raise AttributeError(name)
        is_function = name.startswith("nvml") and (real is None or callable(real))
        return partial(self._answer, name) if is_function else real

    def nvmlInit(self) -> None:  # noqa: N802
        self.check()

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Nothing has to be closed."""

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:  # noqa: N802
        if not 0 <= index < len(self._gpus):
            raise self._error("NVML_ERROR_INVALID_ARGUMENT")
        self._decoded(self._gpus[index].of("nvmlDeviceGetHandleByIndex()") or {"result": None})
        return Handle(index)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Handle:  # noqa: N802
        for index, gpu in enumerate(self._gpus):
            if (gpu.of("nvmlDeviceGetUUID()") or {}).get("result") == uuid:
                return Handle(index)
        raise self._error("NVML_ERROR_NOT_FOUND")

    def nvmlDeviceGetFieldValues(self, handle: Handle, wanted: Sequence[Any]) -> list[SimpleNamespace]:  # noqa: N802
        """Return the fields, which were recorded one by one; one that was not has an error of its own."""
        values = []
        for field in wanted:
            arguments = field if isinstance(field, tuple) else (field, 0)
            outcome = self._gpus[handle.index].of(call_name(FIELDS, *arguments)) or {}
            if "error" in outcome and len(wanted) == 1:  # of the call, not of its field
                self._decoded(outcome)
            missing = SimpleNamespace(nvmlReturn=outcome.get("error", self.NVML_ERROR_NOT_SUPPORTED), value=None)
            values.append(decode(outcome["result"][0]) if outcome.get("result") else missing)
        return values

    def nvmlGpmSampleAlloc(self) -> Any:  # noqa: N802
        return self.c_nvmlGpmSample_t()

    def nvmlGpmSampleFree(self, sample: Any) -> None:  # noqa: N802
        """Nothing has to be freed."""

    def nvmlGpmSampleGet(self, handle: Handle, sample: Any) -> None:  # noqa: N802
        self._gpm_handle = handle  # metrics are asked for without their GPU, after its samples
        self._decoded(self._gpus[handle.index].of("nvmlGpmMetricsGet()"))

    def nvmlGpmMetricsGet(self, request: Any) -> Any:  # noqa: N802
        outcome = self._gpus[self._gpm_handle.index].of("nvmlGpmMetricsGet()") or {}
        values = {getattr(self, f"NVML_GPM_METRIC_{name}"): value for name, value in outcome.get("result", {}).items()}
        for metric in request.metrics[: request.numMetrics]:
            is_known = metric.metricId in values
            metric.nvmlReturn = self.NVML_SUCCESS if is_known else self.NVML_ERROR_NOT_SUPPORTED
            metric.value = values.get(metric.metricId, 0.0)
        return request

    def _answer(self, function: str, *arguments: Any) -> Any:
        handle = arguments[0] if arguments and isinstance(arguments[0], Handle) else None
        if handle is None:
            return self._decoded(self._system.get(call_name(function, *arguments)))
        return self._decoded(self._gpus[handle.index].of(call_name(function, *arguments[1:])))

    def _decoded(self, outcome: Document | None) -> Any:
        """Return the result of an outcome; NVMLError for an error, and for a call that was not recorded."""
        if outcome is None:
            raise self._error("NVML_ERROR_NOT_SUPPORTED")
        if "error" in outcome:
            raise self.NVMLError(outcome["error"])
        return decode(outcome["result"])

    def _error(self, name: str) -> Exception:
        error: Exception = self.NVMLError(getattr(self, name))
        return error


class AmdSmiException(Exception):  # noqa: N818 (the name in amdsmi)
    """An error that amdsmi reported when it was recorded."""


class RecordedAmdSmi:
    """The client of amdsmi of a machine whose calls were recorded; `table` is the document `amdsmi.json`."""

    AmdSmiException = AmdSmiException

    def __init__(self, table: Document, duration_s: float, elapsed_s: Clock | None = None) -> None:
        elapsed_s = elapsed_s or since_now()
        self._reason = optional_text(table.get("reason"), "reason")
        self._gpus = {
            bus: Outcomes(gpu, duration_s, elapsed_s, outcome=amd_outcome, counter=lambda name: _counts_up)
            for bus, gpu in mapping(table.get("gpus", {}), "gpus").items()
        }

    def check(self) -> None:
        """Raise OSError if amdsmi could not be used there."""
        if self._reason:
            raise OSError(self._reason)

    def amdsmi_get_processor_handle_from_bdf(self, bus: str) -> str:
        """Return the PCI address, which is the handle."""
        if bus not in self._gpus:
            raise AmdSmiException("AMDSMI_STATUS_NOT_FOUND")
        self._decoded(self._gpus[bus].of("amdsmi_get_processor_handle_from_bdf") or {"result": None})
        return bus

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("amdsmi_"):
            raise AttributeError(name)
        return lambda bus: self._decoded(self._gpus[bus].of(name))

    def _decoded(self, outcome: Document | None) -> Any:
        if outcome is None:
            raise AmdSmiException("AMDSMI_STATUS_NOT_SUPPORTED")
        if "error" in outcome:
            raise AmdSmiException(outcome["error"])
        return outcome["result"]


class RecordedJtop:
    """The client of jtop's service on a machine where it was recorded; `table` is the document `jtop.json`.

    Its attributes are those of the real client. Objects have the recorded members and change nothing.
    """

    def __init__(self, table: Document, duration_s: float, elapsed_s: Clock | None = None) -> None:
        counts_up: IsCounter = lambda leaf, first: True  # noqa: E731
        elapsed_s = elapsed_s or since_now()
        self._reason, self._hint = (optional_text(table.get(key), key) for key in ("reason", "hint"))
        self.no_service = optional_text(table.get("no_service"), "no_service")
        if not table:
            self.no_service = "no recording of jtop's service"
        self._answers = Outcomes(
            {"calls": {}} if self._reason or self.no_service else table,
            duration_s,
            elapsed_s,
            outcome=jtop_outcome,
            counter=lambda name: counts_up if name == "uptime" else None,
        )

    def check(self) -> None:
        """Raise RuntimeError if there was no connection to the service."""
        if self._reason:
            raise machine_error(self._reason, self._hint)

    def ok(self, spin: bool = False) -> bool:
        """Return True: an error that the service had is that of the attribute."""
        return True

    def __getattr__(self, name: str) -> Any:
        outcome = None if name.startswith("_") else self._answers.of(name)
        if outcome is None:
            raise AttributeError(name)
        if "error" in outcome:
            raise OSError(outcome["error"])
        value = outcome["result"]
        return SimpleNamespace(**value) if name in MEMBERS and value is not None else value


def since_now() -> Clock:
    """Return a clock that begins now."""
    begun_s = time.monotonic()
    return lambda: time.monotonic() - begun_s


def decode(value: Any) -> Any:
    """Return a result with the fields of structures as attributes."""
    if isinstance(value, dict) and value.keys() == {TUPLE}:
        return tuple(decode(item) for item in value[TUPLE])
    if isinstance(value, dict):
        return SimpleNamespace(**{name: decode(field) for name, field in value.items()})
    return [decode(item) for item in value] if isinstance(value, list) else value


def _counts_up(leaf: Leaf, first: float) -> bool:
    return any(isinstance(part, str) and AMD_COUNTER.search(part) for part in leaf)
