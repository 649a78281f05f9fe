"""Facts of a process that the segmentation of its events needs."""

import pytest

from epochmeter.agent.facts import process_facts


@pytest.mark.parametrize(
    ("variables", "local_ranks"),
    [
        ({}, 1),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, 2),
        ({"LOCAL_WORLD_SIZE": "2"}, 1),
    ],
    ids=["no launcher", "two of four on this node", "left by a launcher around a single process"],
)
def test_ranks_of_this_node_are_those_of_the_launcher(monkeypatch, variables, local_ranks):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert process_facts()["local_ranks"] == local_ranks
