"""NVML, the library of NVIDIA's driver; the only module that imports its Python client, nvidia-ml-py."""

import ctypes
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import cache, cached_property, partial
from itertools import chain
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
SUPERCHIPS = ("GH200", "Grace Hopper")
POWER_LIMIT_REASON = "power-capped"
"""Name of the clocks-event reason of a power limit, which is not a fault: a job may set the limit."""
POWER_CAPPED, THERMAL = "power_capped_fraction", "thermal_throttled_fraction"
THROTTLE_REASONS = {
    POWER_CAPPED: {"SwPowerCap": POWER_LIMIT_REASON, "HwPowerBrakeSlowdown": "HW power brake"},
    THERMAL: {"SwThermalSlowdown": "thermal throttling", "HwThermalSlowdown": "HW thermal throttling"},
}
"""Metric of a cause of lowered clocks -> NVML's clocks-event reasons, with their names."""


class NotSupportedError(OSError):
    """The GPU or its driver does not have this function."""


class InUseError(OSError):
    """Another program uses this function of the GPU."""


class NvmlGpu:
    """An NVIDIA GPU. Every method raises OSError if NVML does not report the value."""

    def __init__(self, handle: Any, name: str = "a GPU") -> None:
        import pynvml

        self._handle, self._nvml = handle, pynvml
        self._is_slice = name.startswith("MIG-")
        self.name = name
        self.name = f"gpu{self.index()}"  # `gpu` and the index in PCI order

    def index(self) -> int:
        return int(self._call("nvmlDeviceGetIndex"))

    def uuid(self) -> str:
        return str(self._call("nvmlDeviceGetUUID"))

    def model(self) -> str:
        return str(self._call("nvmlDeviceGetName"))

    def bus(self) -> str:
        """PCI address as the kernel writes it, with four digits of the domain instead of NVML's eight."""
        return str(self._call("nvmlDeviceGetPciInfo").busId.lower().removeprefix("0000"))

    def minor(self) -> str:
        return str(self._call("nvmlDeviceGetMinorNumber"))

    def compute_capability(self) -> tuple[int, int]:
        major, minor = self._call("nvmlDeviceGetCudaComputeCapability")
        return major, minor

    def is_in_mig_mode(self) -> bool:
        """Whether the GPU is partitioned; False if the GPU or its driver does not support it."""
        with suppress(OSError):
            return bool(self._call("nvmlDeviceGetMigMode")[0] == self._nvml.NVML_DEVICE_MIG_ENABLE)
        return False

    @cached_property
    def has_c2c_link(self) -> bool:
        """Whether NVLink-C2C connects GPU and CPU to one module."""
        with suppress(OSError):
            return bool(self._call("nvmlDeviceGetC2cModeInfoV").isC2cEnabled)
        return False

    def is_superchip(self) -> bool:
        """Whether counter and instantaneous power cover GPU and CPU, as of Grace Hopper: by its link or its name."""
        with suppress(OSError):
            return self.has_c2c_link or any(name in self.model() for name in SUPERCHIPS)
        return False

    def energy_j(self) -> float:
        """Joules since the driver was loaded."""
        return float(self._call("nvmlDeviceGetTotalEnergyConsumption")) / 1000

    def power_w(self) -> float:
        """Power in watts: the instantaneous power, or its mean over a second, depending on the architecture."""
        return float(self._call("nvmlDeviceGetPowerUsage")) / 1000

    def instant_power_w(self) -> float:
        """Instantaneous power in watts, of the module of a superchip."""
        scope = self._nvml.NVML_POWER_SCOPE_MODULE if self.has_c2c_link else self._nvml.NVML_POWER_SCOPE_GPU
        (field,) = self._call("nvmlDeviceGetFieldValues", [(self._nvml.NVML_FI_DEV_POWER_INSTANT, scope)])
        if field.nvmlReturn != self._nvml.NVML_SUCCESS:
            raise OSError(f"instantaneous power of {self.name}: {self._nvml.NVMLError(field.nvmlReturn)}")
        return float(field.value.uiVal) / 1000

    def power_limit_w(self) -> float:
        return float(self._call("nvmlDeviceGetPowerManagementLimit")) / 1000

    def power_limit_range_w(self) -> tuple[float, float]:
        low_mw, high_mw = self._call("nvmlDeviceGetPowerManagementLimitConstraints")
        return low_mw / 1000, high_mw / 1000

    def set_power_limit_w(self, watts: float) -> None:
        """Set the power limit; PermissionError without CAP_SYS_ADMIN."""
        self._call("nvmlDeviceSetPowerManagementLimit", round(watts * 1000))

    def utilization(self) -> float:
        """Fraction of time in which a kernel was running."""
        return float(self._call("nvmlDeviceGetUtilizationRates").gpu) / 100

    def clock_hz(self) -> float:
        """Clock of the streaming multiprocessors."""
        return float(self._call("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM)) * 1e6

    def memory_used_bytes(self) -> float:
        return float(self._call("nvmlDeviceGetMemoryInfo").used)

    def temperature_c(self) -> float:
        return float(self._call("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU))

    def throttle_reasons(self) -> dict[str, list[str]]:
        """Texts about the reasons that lower the clocks now, by the metric of their cause."""
        active = self._call("nvmlDeviceGetCurrentClocksThrottleReasons")
        bits = {
            name: getattr(self._nvml, f"nvmlClocksThrottleReason{name}") for name in chain(*THROTTLE_REASONS.values())
        }
        return {
            cause: [f"{self.name} {text}" for name, text in reasons.items() if active & bits[name]]
            for cause, reasons in THROTTLE_REASONS.items()
        }

    def open_gpm(self) -> Callable[[], None]:
        """Prepare two readings of performance counters; return the function that frees them.

        NotSupportedError if the GPU is older than Hopper, or in MIG mode, in which its slices have counters.
        """
        gpu, self._read_gpm = self._handle, partial(self._call, "nvmlGpmSampleGet")
        if self._is_slice:
            gpu = self._call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle")
            instance = self._call("nvmlDeviceGetGpuInstanceId")
            self._read_gpm = partial(_call, self.name, "nvmlGpmMigSampleGet", gpu, instance)
        elif self.is_in_mig_mode():
            raise NotSupportedError(f"GPM of {self.name}: the run does not use a slice of this GPU in MIG mode")
        if not _call(self.name, "nvmlGpmQueryDeviceSupport", gpu).isSupportedDevice:
            raise NotSupportedError(f"GPM of {self.name}: the GPU is older than Hopper")
        self._gpm_samples = [_call(self.name, "nvmlGpmSampleAlloc") for _ in range(2)]

        def free() -> None:
            for sample in self._gpm_samples:
                with suppress(OSError):  # the GPU may be lost
                    _call(self.name, "nvmlGpmSampleFree", sample)

        return free

    def read_gpm(self, border: int) -> None:
        """Read the performance counters at the start (0) or end (1) of a window."""
        self._read_gpm(self._gpm_samples[border])

    def gpm_values(self, names: Sequence[str]) -> dict[str, float]:
        """Return means between the two readings by the names of NVML's metrics; without those that the GPU lacks."""
        nvml = self._nvml
        request = nvml.c_nvmlGpmMetricsGet_t(version=nvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(names))
        request.sample1, request.sample2 = self._gpm_samples
        for metric, name in zip(request.metrics, names, strict=False):
            metric.metricId = getattr(nvml, f"NVML_GPM_METRIC_{name}")
        _call(self.name, "nvmlGpmMetricsGet", request)
        return {
            name: metric.value
            for metric, name in zip(request.metrics, names, strict=False)
            if metric.nvmlReturn == nvml.NVML_SUCCESS and math.isfinite(metric.value)
        }

    def compute_processes(self) -> list[tuple[int, int | None]]:
        """Process ID and memory in bytes (None: unknown) of each process with a compute context."""
        return [(process.pid, process.usedGpuMemory) for process in self._call("nvmlDeviceGetComputeRunningProcesses")]

    def _call(self, function: str, *arguments: Any) -> Any:
        return _call(self.name, function, self._handle, *arguments)


def start() -> Callable[[], None]:
    """Initialize NVML and return the function that shuts it down; calls may be nested. OSError if it does not start."""
    try:
        ctypes.CDLL(LIBRARY)  # first, since it is fast if there is no driver
    except OSError as error:
        raise OSError(f"no NVIDIA driver: cannot load {LIBRARY}") from error
    try:
        import pynvml
    except ImportError as error:
        raise OSError(f"cannot import nvidia-ml-py, which reads NVML ({error}): pip install nvidia-ml-py") from error
    _call("this machine", "nvmlInit")
    return pynvml.nvmlShutdown  # type: ignore[no-any-return]


def open_gpu(uuid: str) -> NvmlGpu:
    """Find a GPU by its UUID, with or without the prefix; OSError if NVML does not list it."""
    full = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    return NvmlGpu(_call(full, "nvmlDeviceGetHandleByUUID", full), full)


@cache  # starting NVML may take 0.1 s, and a run needs the list several times
def list_gpus() -> Sequence[dict[str, str]]:
    """List the GPUs in PCI order, as `machine.gpus` describes them, as far as NVML does; none without NVML."""
    gpus: list[dict[str, str]] = []
    with suppress(OSError), ExitStack() as opened:
        opened.callback(start())
        for index in range(_call("this machine", "nvmlDeviceGetCount")):
            gpu = NvmlGpu(_call(f"gpu{index}", "nvmlDeviceGetHandleByIndex", index))
            gpus.append({"vendor": "nvidia"})
            for key, read in {"model": gpu.model, "bus": gpu.bus, "minor": gpu.minor, "uuid": gpu.uuid}.items():
                with suppress(OSError):
                    gpus[-1][key] = read()
    return gpus


def _call(name: str, function: str, *arguments: Any) -> Any:
    """Call a function of NVML; OSError with the function, the GPU's name and NVML's message if it fails."""
    import pynvml

    try:
        return getattr(pynvml, function)(*arguments)
    except pynvml.NVMLError as error:
        kinds = {
            pynvml.NVML_ERROR_NOT_SUPPORTED: NotSupportedError,
            pynvml.NVML_ERROR_NO_PERMISSION: PermissionError,
            pynvml.NVML_ERROR_IN_USE: InUseError,
        }
        raise kinds.get(error.value, OSError)(f"{function} of {name}: {error}") from error
