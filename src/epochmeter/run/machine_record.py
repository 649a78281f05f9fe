"""The recording of a machine for `doctor.py record=`, with the Python that trains on it as the known load."""

from collections.abc import Callable
from pathlib import Path

from epochmeter.config.entries import Examination
from epochmeter.machine import host
from epochmeter.machine.recorded.recorder import Recorded, check_target, record_machine
from epochmeter.machine.recorded.root import find_recording
from epochmeter.run.interpreters import check_interpreter, find_interpreter
from epochmeter.run.preflight import device_here
from epochmeter.shared.problem import InputError, input_error, problem_of


def record(config: Examination, say: Callable[[str], object]) -> Recorded:
    """Record the machine; without a Python that has torch, without load. ValueError or RuntimeError if that fails."""
    root, path = config.machine.root, Path(config.record or "")
    if find_recording(root):
        raise input_error(f"`machine.root={root}` is a recording already", "leave it out, or leave out `record=`")
    local = device_here(config.device, host.device_facts(root), overrides=[])
    python, reason = None, ""
    try:
        python = find_interpreter(local.python)
        check_interpreter(python)
    except InputError as error:
        python, reason = None, problem_of(error).message
    check_target(path)
    say(f"Recording this machine for {config.record_s:g} s. Leave it idle meanwhile.")
    return record_machine(path, Path(root), config.record_s, python, reason)
