"""Simulated machines for the checks of a validation."""

from power.conftest import nvml, nvml_stub, open_folder

__all__ = ["nvml", "nvml_stub", "open_folder"]
