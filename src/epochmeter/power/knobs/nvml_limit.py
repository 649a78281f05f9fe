"""The power limit of NVIDIA GPUs, through NVML, or through zeus's privileged service zeusd if one is configured."""

import os
import warnings
from collections.abc import Sequence

from epochmeter.machine import nvml
from epochmeter.power.knobs.watt_limit import DeviceLimit, WattLimit

ZEUSD_VARIABLES = ("ZEUSD_SOCK_PATH", "ZEUSD_HOST_PORT")  # the environment variables that name zeus's service
ZEUSD_HINT = f"run zeusd, a service of zeus, on the host and set {' or '.join(ZEUSD_VARIABLES)}"


def open_nvml_limit(uuids: Sequence[str]) -> WattLimit | None:
    """Open the power limit of GPUs; None if a GPU has none, as some laptops.

    NVML stays initialized until this process ends: without persistence mode, a limit is reset as soon as no process
    uses the driver.
    """
    try:
        nvml.start()
        limits = {uuid: gpu_limit(uuid, nvml.open_gpu(uuid)) for uuid in uuids}
    except nvml.NotSupportedError:
        return None
    except OSError as error:
        raise RuntimeError(f"cannot read the power limit of {', '.join(uuids)}: {error}") from error
    return WattLimit("NVML", limits) if limits else None


def gpu_limit(uuid: str, gpu: nvml.NvmlGpu) -> DeviceLimit:
    """Open the limit of one GPU; NotSupportedError if it has none."""
    low_w, high_w = gpu.power_limit_range_w()

    def write(watts: float) -> None:
        failure = f"cannot set the power limit of GPU {uuid} to {watts:g} W"
        try:
            if any(name in os.environ for name in ZEUSD_VARIABLES):
                set_by_zeusd(gpu.index, watts)
            else:
                gpu.set_power_limit_w(watts)
        except OSError as error:
            hint = f"\nhint: run as root (in a container also with --cap-add SYS_ADMIN), or {ZEUSD_HINT}"
            raise RuntimeError(f"{failure}: {error}{hint if isinstance(error, PermissionError) else ''}") from error

    return DeviceLimit(
        low_w, high_w, gpu.power_limit_w, write, lambda watts: f"sudo nvidia-smi -i {uuid} -pl {watts:g}"
    )


def set_by_zeusd(index: int, watts: float) -> None:
    """Set the limit of a GPU, by its index in PCI order, through zeusd; OSError if that fails."""
    try:
        from httpx import HTTPError
        from zeus.device.gpu.nvidia import ZeusdNVIDIAGPU
        from zeus.exception import ZeusBaseError
        from zeus.utils.zeusd import ZeusdClient, ZeusdConfig
    except ImportError as error:
        raise OSError(f"cannot import zeus ({error})\nhint: pip install 'zeus>=0.16'") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its warning about root is part of the error
            # Not zeus's own list of GPUs, which does not support UUIDs in CUDA_VISIBLE_DEVICES.
            ZeusdNVIDIAGPU(index, ZeusdClient(ZeusdConfig.from_env())).set_power_management_limit(round(watts * 1000))
    except (ZeusBaseError, HTTPError) as error:
        raise OSError(f"zeusd: {error}") from error
