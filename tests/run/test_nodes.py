"""This node of a Slurm step, by the environment of srun."""

from pathlib import Path

import pytest

from epochmeter.config.schema import Strategy
from epochmeter.run.nodes import (
    PORTS,
    Node,
    check_strategy,
    current_node,
    first_host,
    forbid_multi_node_resume,
    node_address,
    run_folder_factory,
)

STEP = {
    "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n[03-04]",
    "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURMD_NODENAME": "n04",
}  # fmt: skip
DDP = Strategy.from_dict({"name": "ddp", "launcher": "torchrun", "ranks": 2})
SINGLE = Strategy.from_dict({"name": "single", "ranks": 1})


def here(**changed):
    return current_node({**STEP, **changed}, address=lambda name: f"{name}.example")


def test_nodes_of_a_step_connect_to_its_first_host_and_port():
    assert current_node({}) == current_node({"SLURM_STEP_NUM_NODES": "1"}) == Node()
    found = here()
    assert (found.number, found.nodes, found.name, found.first) == (1, 2, "n04", "n03.example")
    assert found.port in PORTS
    assert not found.is_first
    assert here(SLURM_PROCID="0").port == found.port
    assert here(SLURM_STEP_ID="1").port != found.port
    assert here(SLURM_JOB_ID="4712").port != found.port


@pytest.mark.parametrize(
    ("listed", "first"),
    [("n1", "n1"), ("n[0-1]", "n0"), ("n[003-017,21],m4", "n003"), ("gpu-a,gpu-b", "gpu-a"),
     ("rack[1-2]n[3,7]", "rack1n3"), ("nid[001234]-hsn", "nid001234-hsn")],
)  # fmt: skip
def test_first_host_of_a_node_list(listed, first):
    assert first_host(listed) == first


def test_address_is_from_slurm_or_else_the_name(tmp_path, monkeypatch):
    program = tmp_path / "scontrol"
    program.write_text('#!/bin/sh\necho "NodeName=$3 Arch=x86_64\n   NodeAddr=10.0.0.3 NodeHostName=$3"\n')
    monkeypatch.setenv("PATH", str(tmp_path))
    assert node_address("n03") == "n03"
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert node_address("n03") == "10.0.0.3"


def test_several_nodes_need_one_task_each_and_ddp_and_skip_no_completed_run(tmp_path):
    check_strategy(DDP, here())
    check_strategy(SINGLE, Node())
    forbid_multi_node_resume(Node(), tmp_path)
    with pytest.raises(ValueError, match=r"(?s)4 tasks on 2 nodes.*--ntasks-per-node=1, with `strategy\.ranks=`"):
        here(SLURM_STEP_NUM_TASKS="4")
    with pytest.raises(ValueError, match="=single trains on one node, and srun started 2\n  hint: set `strategy=ddp`"):
        check_strategy(SINGLE, here())
    with pytest.raises(ValueError, match=r"is completed, and 1 more of 2 nodes have begun .*\n.*omit `sweep\.resume="):
        forbid_multi_node_resume(Node(nodes=2), tmp_path)


def test_only_the_first_node_uses_the_sweep_folder():
    def made(command, many, again):
        return Path("record")

    assert run_folder_factory(made, {}) is made
    assert run_folder_factory(made, {**STEP, "SLURM_PROCID": "0"})([], False, False) == Path("record")
    other = run_folder_factory(made, STEP)([], False, False)
    assert other.is_dir()
    assert other != Path("record")
    other.rmdir()
    with pytest.raises(ValueError, match="a sweep cannot run on 2 nodes at once"):
        run_folder_factory(made, STEP)([], True, False)
