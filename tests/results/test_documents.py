"""Documents of records as readers get them: typed, printable, and as written."""

import json

import boards
import pytest
from controls import TABLES, Board
from default_jobs import job_of
from metadata import RUN, run_info

from epochmeter.machine import host
from epochmeter.results import documents
from epochmeter.results.documents import Host, Summary, Window
from epochmeter.results.run_info import Description

WINDOW = {"window": "epoch", "epoch": 0, "metrics": {"epoch/e2e_s": 1, "epoch/loss": None}, "energy": None, "ranks": 1}


def parse(value, kind):
    return documents.parse(json.dumps(value).encode(), kind)


def test_known_keys_keep_their_values_and_others_are_kept():
    keys = {
        "batch": 8,
        "power_limit": 100,
        "target_loss": 1,
        "precision": "fp4",
        "workers": "auto",
        "later": [{"a": 1}],
    }
    groups = {"model": {"name": 4, "n": 1.5}, "dataset": {"version": "2", "count": None}, "strategy": {"ranks": None}}
    description = {"schema": 1, "job": {**keys, **groups}, "run": RUN}
    found = parse(description, Description)
    assert {**found, "run": found["run"].document()} == {**description, "run": run_info().document()}
    assert type(parse(description, Description)["job"]["power_limit"]) is int
    assert parse(WINDOW, Window) == WINDOW


@pytest.mark.parametrize(
    ("value", "kind", "name"),
    [
        ({"job": {"batch": "8"}}, Description, "job.batch"),
        ({"job": {"batch": 8.5}}, Description, "job.batch"),
        ({"job": {"batch": True}}, Description, "job.batch"),
        ({"job": {"target_loss": [1]}}, Description, "job.target_loss"),
        ({"job": {"strategy": {"ranks": "2"}}}, Description, "job.strategy.ranks"),
        ({"job": {"model": "lenet"}}, Description, "job.model"),
        ({"metrics": {"total/e2e_s": "1"}}, Summary, "metrics.total/e2e_s"),
        ({"failure": {"message": ["no memory"]}}, Summary, "failure.message"),
        ({"failure": {"where": {"key": 8}}}, Summary, "failure.where.key"),
        ({**WINDOW, "epoch": None}, Window, "epoch"),
        ({"window": "epoch", "epoch": 0}, Window, "metrics"),
    ],
)
def test_value_of_another_type_is_named(value, kind, name):
    for text in (json.dumps(value), json.dumps({**value, "é": "\x1b"})):  # with two parsers
        with pytest.raises(ValueError, match=f"^`{name}`: "):
            documents.parse(text.encode(), kind)


def test_texts_and_keys_are_printable_and_not_finite_numbers_are_floats():
    content = {"notes": ["a\x1b[2J", "é\nb"], "metrics": {"x\x9b": float("nan"), "y": float("inf")}}
    parsed = parse(content, Summary)
    assert parsed["notes"] == ["a\ufffd[2J", "é\nb"]
    assert [*parsed["metrics"]] == ["x\ufffd", "y"]
    assert str([*parsed["metrics"].values()]) == "[nan, inf]"


def test_configurations_and_descriptions_of_hosts_are_of_their_types(tmp_path):
    for keys in ({}, {"strategy": {"name": "dp", "ranks": None}}, {"script": {"lr": [1]}}):
        parse({"job": job_of(**keys).to_dict(), "run": RUN}, Description)
    for name, layout in boards.LAYOUTS:
        boards.write(root := tmp_path / f"{name}-{layout}", name, layout)
        parse(host.describe(str(root)), Host)
    for name in TABLES:
        parse(host.describe(str(Board(tmp_path / f"mode-{name}").with_modes(name).root)), Host)
