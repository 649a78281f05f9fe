"""NVML, the library of NVIDIA's driver; the only module that imports its Python client, nvidia-ml-py."""

import ctypes
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import cache, partial
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
SUPERCHIPS = ("GH200", "Grace Hopper")
FACTS = {"model": "nvmlDeviceGetName", "minor": "nvmlDeviceGetMinorNumber", "uuid": "nvmlDeviceGetUUID"}
POWER_LIMIT_REASON = "power-capped"  # not a fault: a job may set the limit
POWER_CAPPED, THERMAL = "power_capped_fraction", "thermal_throttled_fraction"
THROTTLE_REASONS = {
    POWER_CAPPED: {"SwPowerCap": POWER_LIMIT_REASON, "HwPowerBrakeSlowdown": "HW power brake"},
    THERMAL: {"SwThermalSlowdown": "thermal throttling", "HwThermalSlowdown": "HW thermal throttling"},
}
"""Metric of a cause of lowered clocks -> NVML's clocks-event reasons, with their names."""
PERCENT, MEBIBYTE = 0.01, float(1 << 20)
GPM = {
    "gpu_sm_active_fraction": ("SM_UTIL", PERCENT),
    "gpu_sm_occupancy_fraction": ("SM_OCCUPANCY", PERCENT),
    "gpu_tensor_active_fraction": ("ANY_TENSOR_UTIL", PERCENT),
    "gpu_fp64_active_fraction": ("FP64_UTIL", PERCENT),
    "gpu_fp32_active_fraction": ("FP32_UTIL", PERCENT),
    "gpu_fp16_active_fraction": ("FP16_UTIL", PERCENT),
    "gpu_dram_active_fraction": ("DRAM_BW_UTIL", PERCENT),
    "gpu_pcie_sent_bytes_per_s": ("PCIE_TX_PER_SEC", MEBIBYTE),
    "gpu_pcie_received_bytes_per_s": ("PCIE_RX_PER_SEC", MEBIBYTE),
    "gpu_nvlink_sent_bytes_per_s": ("NVLINK_TOTAL_TX_PER_SEC", MEBIBYTE),
    "gpu_nvlink_received_bytes_per_s": ("NVLINK_TOTAL_RX_PER_SEC", MEBIBYTE),
}
"""Metric -> name of the performance counter in NVML, and its unit."""
_replacement: Any = None


class NotSupportedError(OSError):
    """The GPU or its driver does not have this function."""


class InUseError(OSError):
    """Another program uses this function of the GPU."""


class NvmlGpu:
    """An NVIDIA GPU. Every method raises OSError if NVML does not report the value."""

    def __init__(self, handle: Any, name: str = "a GPU") -> None:
        self.handle, self.name, self._nvml = handle, name, client()
        self.index = int(self.call("nvmlDeviceGetIndex"))  # in PCI order
        self.name = f"gpu{self.index}"

    def board_of_slice(self) -> "NvmlGpu":
        """The GPU of which this MIG slice is a part; OSError if it is no slice."""
        return NvmlGpu(self.call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle"), "a GPU")

    def is_in_mig_mode(self) -> bool:
        """Whether the GPU is partitioned; False if the GPU or its driver does not support it."""
        with suppress(OSError):
            return bool(self.call("nvmlDeviceGetMigMode")[0] == self._nvml.NVML_DEVICE_MIG_ENABLE)
        return False

    def is_superchip(self) -> bool:
        """Whether the GPU shares a module with a CPU, as Grace Hopper: by its link (NVLink-C2C) or its name."""
        with suppress(OSError):
            if self.call("nvmlDeviceGetC2cModeInfoV").isC2cEnabled:
                return True
        with suppress(OSError):
            return any(name in self.call("nvmlDeviceGetName") for name in SUPERCHIPS)
        return False

    def board_serial(self) -> str:
        """Serial number of the board, which the GPUs of a superchip's module share."""
        return str(self.call("nvmlDeviceGetSerial"))

    def energy_j(self) -> float:
        """Joules since the driver was loaded."""
        return float(self.call("nvmlDeviceGetTotalEnergyConsumption")) / 1000

    def power_w(self) -> float:
        """Power in watts: the instantaneous power, or its mean over a second, depending on the architecture."""
        return float(self.call("nvmlDeviceGetPowerUsage")) / 1000

    def instant_power_w(self) -> float:
        """Instantaneous power of the GPU in watts."""
        return self._instant_power_w(self._nvml.NVML_POWER_SCOPE_GPU)

    def module_power_w(self) -> float:
        """Instantaneous power of a superchip's module in watts: all of its GPUs, and its CPU."""
        return self._instant_power_w(self._nvml.NVML_POWER_SCOPE_MODULE)

    def _instant_power_w(self, scope: int) -> float:
        (field,) = self.call("nvmlDeviceGetFieldValues", [(self._nvml.NVML_FI_DEV_POWER_INSTANT, scope)])
        if field.nvmlReturn != self._nvml.NVML_SUCCESS:
            raise OSError(f"instantaneous power of {self.name}: {self._nvml.NVMLError(field.nvmlReturn)}")
        return float(field.value.uiVal) / 1000

    def power_limit_w(self) -> float:
        return float(self.call("nvmlDeviceGetPowerManagementLimit")) / 1000

    def power_limit_range_w(self) -> tuple[float, float]:
        low_mw, high_mw = self.call("nvmlDeviceGetPowerManagementLimitConstraints")
        return low_mw / 1000, high_mw / 1000

    def set_power_limit_w(self, watts: float) -> None:
        """Set the power limit; PermissionError without CAP_SYS_ADMIN."""
        self.call("nvmlDeviceSetPowerManagementLimit", round(watts * 1000))

    def utilization(self) -> float:
        """Fraction of time in which a kernel was running."""
        return float(self.call("nvmlDeviceGetUtilizationRates").gpu) / 100

    def clock_hz(self) -> float:
        """Clock of the streaming multiprocessors."""
        return float(self.call("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM)) * 1e6

    def clock_mhz(self, *, is_memory: bool) -> float:
        """Clock of the streaming multiprocessors, or of the memory."""
        clock = self._nvml.NVML_CLOCK_MEM if is_memory else self._nvml.NVML_CLOCK_SM
        return float(self.call("nvmlDeviceGetClockInfo", clock))

    def supported_clocks_mhz(self, *, is_memory: bool) -> list[int]:
        """Clocks that can be locked: of the memory, or of the multiprocessors at the highest clock of the memory."""
        memory = [int(mhz) for mhz in self.call("nvmlDeviceGetSupportedMemoryClocks")]
        if is_memory or not memory:
            return memory
        return [int(mhz) for mhz in self.call("nvmlDeviceGetSupportedGraphicsClocks", max(memory))]

    def lock_clock(self, mhz: int | None, *, is_memory: bool) -> None:
        """Lock a clock, or free it (None); PermissionError without CAP_SYS_ADMIN."""
        name = "Memory" if is_memory else "Gpu"
        if mhz is None:
            self.call(f"nvmlDeviceReset{name}LockedClocks")
        else:
            self.call(f"nvmlDeviceSet{name}LockedClocks", mhz, mhz)

    def memory_used_bytes(self) -> float:
        return float(self.call("nvmlDeviceGetMemoryInfo").used)

    def temperature_c(self) -> float:
        return float(self.call("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU))

    def throttle_reasons(self) -> dict[str, list[str]]:
        """Texts about the reasons that lower the clocks now, by the metric of their cause."""
        active = self.call("nvmlDeviceGetCurrentClocksThrottleReasons")

        def is_active(name: str) -> bool:
            return bool(active & getattr(self._nvml, f"nvmlClocksThrottleReason{name}"))

        return {
            cause: [f"{self.name} {text}" for name, text in reasons.items() if is_active(name)]
            for cause, reasons in THROTTLE_REASONS.items()
        }

    def compute_processes(self) -> list[tuple[int, int | None]]:
        """Process ID and memory in bytes (None: unknown) of each process with a compute context."""
        return [(process.pid, process.usedGpuMemory) for process in self.call("nvmlDeviceGetComputeRunningProcesses")]

    def call(self, function: str, *arguments: Any) -> Any:
        return _call(self.name, function, self.handle, *arguments)


class GpmCounters:
    """Performance counters (GPM) of an NVIDIA GPU or MIG slice, by UUID."""

    def __init__(self, uuid: str, opened: ExitStack) -> None:
        opened.callback(start())
        gpu = open_gpu(uuid)
        self._call = partial(_call, gpu.name)
        device, self._read = gpu.handle, partial(gpu.call, "nvmlGpmSampleGet")
        if uuid.startswith("MIG-"):
            device = gpu.call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle")
            self._read = partial(self._call, "nvmlGpmMigSampleGet", device, gpu.call("nvmlDeviceGetGpuInstanceId"))
        elif gpu.is_in_mig_mode():
            raise NotSupportedError(f"GPM of {gpu.name}: the run does not use a slice of this GPU in MIG mode")
        if not self._call("nvmlGpmQueryDeviceSupport", device).isSupportedDevice:
            raise NotSupportedError(f"GPM of {gpu.name}: the GPU is older than Hopper")
        self._samples = [self._call("nvmlGpmSampleAlloc") for _ in range(2)]  # the last one, and the one before
        self._has_read = False
        opened.callback(self._free)

    def _free(self) -> None:
        for sample in self._samples:
            with suppress(OSError):  # the GPU may be lost
                self._call("nvmlGpmSampleFree", sample)

    def read(self) -> dict[str, float]:
        """Read the counters, and return the metrics since the last reading, without those that the GPU lacks.

        They are empty at the first reading.
        """
        pynvml = client()
        self._samples.reverse()
        self._read(self._samples[0])
        had_read, self._has_read = self._has_read, True
        if not had_read:
            return {}
        request = pynvml.c_nvmlGpmMetricsGet_t(version=pynvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(GPM))
        request.sample2, request.sample1 = self._samples
        for counter, (name, _) in zip(request.metrics, GPM.values(), strict=False):
            counter.metricId = getattr(pynvml, f"NVML_GPM_METRIC_{name}")
        self._call("nvmlGpmMetricsGet", request)
        return {
            metric: unit * counter.value
            for counter, (metric, (_, unit)) in zip(request.metrics, GPM.items(), strict=False)
            if counter.nvmlReturn == pynvml.NVML_SUCCESS and math.isfinite(counter.value)
        }


def client() -> Any:
    """Return the Python client of NVML, or what replaces it."""
    return real_client() if _replacement is None else _replacement


def real_client() -> Any:
    """Return the Python client of NVML; OSError if it is not installed."""
    try:
        import pynvml
    except ImportError as error:
        raise OSError(f"cannot import nvidia-ml-py, which reads NVML ({error}): pip install nvidia-ml-py") from error
    return pynvml


def replace_client(replacement: Any) -> None:
    """Use an object with the functions of the client in its place from now on, as of a recorded machine; None: not."""
    global _replacement
    _replacement = replacement


def is_replaced() -> bool:
    """Whether the GPUs are those of another machine."""
    return _replacement is not None


def start() -> Callable[[], None]:
    """Initialize NVML and return the function that shuts it down; calls may be nested. OSError if it does not start."""
    if is_replaced():
        client().check()
    else:
        try:
            ctypes.CDLL(LIBRARY)  # first, since it is fast if there is no driver
        except OSError as error:
            raise OSError(f"no NVIDIA driver: cannot load {LIBRARY}") from error
    shutdown: Callable[[], None] = client().nvmlShutdown
    _call("this machine", "nvmlInit")
    return shutdown


def open_gpu(uuid: str) -> NvmlGpu:
    """Find a GPU by its UUID, with or without the prefix; OSError if NVML does not list it."""
    full = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    return NvmlGpu(_call(full, "nvmlDeviceGetHandleByUUID", full), full)


@cache  # starting NVML may take 0.1 s, and a run needs the list several times
def list_gpus() -> Sequence[dict[str, str]]:
    """List this machine's GPUs, read once per process."""
    return read_gpus()


def read_gpus() -> Sequence[dict[str, str]]:
    """List the GPUs in PCI order, as `machine.gpus` describes them, as far as NVML does; none without NVML."""
    gpus: list[dict[str, str]] = []
    with suppress(OSError), ExitStack() as opened:
        opened.callback(start())
        for index in range(_call("this machine", "nvmlDeviceGetCount")):
            gpu = NvmlGpu(_call(f"gpu{index}", "nvmlDeviceGetHandleByIndex", index))
            gpus.append({"vendor": "nvidia"})
            for key, function in FACTS.items():
                with suppress(OSError):
                    gpus[-1][key] = str(gpu.call(function))
            with suppress(OSError):  # the kernel's addresses have four digits of the domain, NVML's eight
                gpus[-1]["bus"] = gpu.call("nvmlDeviceGetPciInfo").busId.lower().removeprefix("0000")
    return gpus


def _call(name: str, function: str, *arguments: Any) -> Any:
    """Call a function of NVML; OSError with the function, the GPU's name and NVML's message if it fails."""
    pynvml = client()
    try:
        return getattr(pynvml, function)(*arguments)
    except pynvml.NVMLError as error:
        kinds = {
            pynvml.NVML_ERROR_NOT_SUPPORTED: NotSupportedError,
            pynvml.NVML_ERROR_NO_PERMISSION: PermissionError,
            pynvml.NVML_ERROR_IN_USE: InUseError,
        }
        raise kinds.get(error.value, OSError)(f"{function} of {name}: {error}") from error
