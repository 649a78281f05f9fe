"""NVML, the library of NVIDIA's driver, through nvidia-ml-py, which is imported only where the library exists."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

LIBRARY = "libnvidia-ml.so.1"


def start() -> Callable[[], None]:
    """Initialize NVML.

    Returns:
        The function that shuts NVML down again.

    Raises:
        OSError: The library or its Python client is missing, or NVML does not start. The message says which.
    """
    try:
        ctypes.CDLL(LIBRARY)  # first, since it is fast if there is no driver
    except OSError as error:
        raise OSError(f"no NVIDIA driver: cannot load {LIBRARY}") from error
    try:
        import pynvml
    except ImportError as error:
        raise OSError(f"cannot import nvidia-ml-py, which reads NVML ({error}): pip install zeus") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise OSError(f"cannot initialize NVML: {error}") from error
    return pynvml.nvmlShutdown  # type: ignore[no-any-return]


def call_nvml(gpu: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of NVML.

    Args:
        gpu: The GPU's name, for the error message.
        call: The function of `pynvml`.
        arguments: Its arguments.

    Raises:
        OSError: NVML returned an error for this GPU.
    """
    import pynvml

    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        raise OSError(f"NVML does not report it for {gpu}: {error}.") from error


def name_and_handle(uuid: str) -> tuple[str, Any]:
    """Return the name of a GPU, such as `gpu0` by its number in PCI order, and its handle.

    Args:
        uuid: its UUID, with or without the prefix.

    Raises:
        OSError: NVML does not know it.
    """
    import pynvml

    full = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    handle = call_nvml(uuid, pynvml.nvmlDeviceGetHandleByUUID, full)
    return f"gpu{call_nvml(uuid, pynvml.nvmlDeviceGetIndex, handle)}", handle


@cache  # starting NVML may take 0.1 s, and a run needs the list several times
def list_gpus() -> Sequence[dict[str, str]]:
    """Return the GPUs that NVML lists, in PCI order, as `machine.gpus` describes them; none without NVML."""
    try:
        shut_down = start()
    except OSError:
        return []
    import pynvml

    try:
        count = call_nvml("this machine", pynvml.nvmlDeviceGetCount)
        return [
            _describe_gpu(call_nvml(f"gpu{index}", pynvml.nvmlDeviceGetHandleByIndex, index)) for index in range(count)
        ]
    except OSError:
        return []
    finally:
        shut_down()


def _describe_gpu(handle: Any) -> dict[str, str]:
    """Return vendor, model, bus, minor number and UUID of a GPU, as far as NVML reports them."""
    import pynvml

    calls = {
        "model": pynvml.nvmlDeviceGetName,
        # NVML gives eight digits of the domain, the kernel gives four.
        "bus": lambda gpu: pynvml.nvmlDeviceGetPciInfo(gpu).busId.lower().removeprefix("0000"),
        "minor": lambda gpu: str(pynvml.nvmlDeviceGetMinorNumber(gpu)),
        "uuid": pynvml.nvmlDeviceGetUUID,
    }
    gpu = {"vendor": "nvidia"}
    for key, call in calls.items():
        with suppress(OSError):
            gpu[key] = call_nvml("a GPU", call, handle)
    return gpu
