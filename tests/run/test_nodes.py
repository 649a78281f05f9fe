"""This node of a Slurm step, by the environment of srun."""

import pytest
from stub import executable

from epochmeter.run.nodes import (
    PORTS,
    Node,
    check_node_count,
    current_node,
    first_address,
    other_node_folder,
    without_run_folder,
)

STEP = {
    "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n[03-04]",
    "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURMD_NODENAME": "n04",
}  # fmt: skip
SCONTROL = """#!/bin/sh
echo "NodeName=$3 Arch=x86_64\n   NodeAddr=10.0.0.3 NodeHostName=$3"
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """here(SLURM_PROCID="0", ...) -> this node, in a step on n03 and n04."""
    executable(tmp_path / "scontrol", SCONTROL)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    return lambda **changed: current_node({**STEP, **changed})


def test_nodes_of_a_step_connect_to_the_address_and_port_of_its_first_node(here):
    assert current_node({}) == current_node({"SLURM_STEP_NUM_NODES": "1"}) == Node()
    found = here()
    assert (found.number, found.nodes, found.name, found.first) == (1, 2, "n04", "10.0.0.3")
    assert found.port in PORTS
    assert not found.is_first
    assert here(SLURM_PROCID="0").port == found.port
    assert here(SLURM_STEP_ID="1").port != found.port
    assert here(SLURM_JOB_ID="4712").port != found.port
    with pytest.raises(ValueError, match=r"(?s)4 tasks on 2 nodes.*--ntasks-per-node=1, with `strategy\.ranks=`"):
        here(SLURM_STEP_NUM_TASKS="4")


def test_without_slurms_programs_the_address_is_the_first_name(monkeypatch):
    monkeypatch.setenv("PATH", "")
    names = {"n1": "n1", "n[003-017,21],m4": "n003", "gpu-a,gpu-b": "gpu-a", "rack[1-2]n[3,7]": "rack1n3"}
    assert {listed: first_address(listed) for listed in names} == names


def test_only_the_first_node_uses_the_sweep_folder():
    assert other_node_folder({}, many=True) is None
    assert other_node_folder({**STEP, "SLURM_PROCID": "0"}, many=False) is None
    other = other_node_folder(STEP, many=False)
    assert other.is_dir()
    other.rmdir()
    with pytest.raises(ValueError, match=r"(?s)sweep on 2 nodes at once.*`hydra/launcher=slurm nodes=2`"):
        other_node_folder(STEP, many=True)


def test_run_folder_that_is_named_is_that_of_the_first_node():
    named = ["batch=8", "hydra.run.dir=multirun/x/0"]
    assert without_run_folder(named, {}) == without_run_folder(named, {**STEP, "SLURM_PROCID": "0"}) == named
    assert without_run_folder(named, STEP) == ["batch=8"]


def test_number_of_nodes_is_that_of_the_step():
    for wanted, step in ((None, {}), (1, {}), (None, STEP), (2, STEP)):
        check_node_count(wanted, step)
    for wanted, step in ((2, {}), (1, STEP), (3, STEP)):
        with pytest.raises(ValueError, match=rf"`nodes={wanted}`, .*\n  hint: .*slurm nodes={wanted}`"):
            check_node_count(wanted, step)
