"""The workflows of the project on GitHub: they test what the project promises, and publish only what was tested."""

import re

import pytest
import yaml
from project import ROOT
from system.test_stacks import STACKS

FOLDER = ROOT / ".github/workflows"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in FOLDER.glob("*.yml")}
STEPS = [
    (name, job, step)
    for name, workflow in WORKFLOWS.items()
    for job, content in workflow["jobs"].items()
    for step in content.get("steps", [])
]


def test_every_supported_python_is_tested_on_both_processors():
    lowest, highest = re.search(
        r'requires-python = ">=3\.(\d+),<3\.(\d+)"', (ROOT / "pyproject.toml").read_text()
    ).groups()
    matrix = WORKFLOWS["tests"]["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == [f"3.{minor}" for minor in range(int(lowest), int(highest))]
    assert matrix["runner"] == ["ubuntu-24.04", "ubuntu-24.04-arm"]


def test_pythons_of_the_boards_are_installed_for_the_system_tests():
    texts = [step.get("run", "") for _, job, step in STEPS if job == "system"]
    (installed,) = [re.findall(r"\b3\.\d+\.\d+\b", text) for text in texts if "pyenv install" in text]
    assert [version[: version.rindex(".") + 1] for version in installed] == [python for python, _ in STACKS.values()]


def test_make_targets_exist_and_each_kind_of_check_is_run():
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = [
        target
        for _, _, step in STEPS
        for words in re.findall(r"^make (.+)$", step.get("run", ""), re.MULTILINE)
        for target in words.split()
    ]
    assert sorted(used) == ["dist", "docs", "lint", "test", "test-system"]
    assert {*used} <= targets


def test_only_a_tested_tag_is_published_and_only_that_job_may_identify_itself():
    release = WORKFLOWS["release"]
    publish = release["jobs"]["publish"]
    assert release[True] == {"push": {"tags": ["v[0-9]*"]}}  # YAML 1.1 reads the key `on` as true
    assert release["jobs"]["tests"]["uses"] == "./.github/workflows/tests.yml"
    assert "workflow_call" in WORKFLOWS["tests"][True]
    assert publish["needs"] == "tests"
    assert publish["permissions"] == {"id-token": "write"}
    assert all(workflow["permissions"] == {"contents": "read"} for workflow in WORKFLOWS.values())
    assert "secrets." not in "".join(path.read_text() for path in FOLDER.glob("*.yml"))


@pytest.mark.parametrize("step", [step for _, _, step in STEPS], ids=str)
def test_steps_name_the_version_of_their_action_and_insert_nothing_into_a_command(step):
    assert "uses" in step or "run" in step
    assert "${{" not in step.get("run", "")
    assert re.fullmatch(r"[\w./-]+@(v\d+|release/v\d+)", step.get("uses", "a/b@v1"))
