"""Detect the device type of a machine, before a configuration is composed."""

from epochmeter.config.job import device_matches


def device_of(root: str) -> str:
    """Return the name in conf/device of the machine whose files are below a root."""
    from epochmeter.machine import host  # late, so that --help is fast

    return host.detect_device(device_matches(), host.device_facts(root))
