"""The containers' files, read: no container runtime is needed."""

import json
import re

import pytest

from epochmeter.config.job import ROOT
from epochmeter.machine.jetson import CONF_FILE

DOCKERFILES = {name: (ROOT / "docker" / name / "Dockerfile").read_text() for name in ("cuda", "jetson")}
DOCS = (ROOT / "docs" / "containers.md").read_text()


@pytest.fixture(params=DOCKERFILES)
def steps(request):
    """The instructions of a Dockerfile as (name, value)."""
    text = DOCKERFILES[request.param].replace("\\\n", " ")
    return re.findall(r"^([A-Z]+) +(.*)$", text, re.MULTILINE)


def values(steps, name):
    return [value for other, value in steps if other == name]


def test_copied_files_exist_and_are_sent_to_the_builder(steps):
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    assert not {"!.git", "!.venv", "!data", "!multirun", "!mlruns", "!mlflow.db"} & {*sent}
    for copied in (value for value in values(steps, "COPY") if "--from=" not in value):
        *names, _ = [word for word in copied.split() if not word.startswith("--")]
        for name in names:
            assert (ROOT / name).exists()
            assert name == "." or f"!{name}" in sent


def test_every_base_image_has_a_version(steps):
    defaults = dict(argument.split("=", 1) for argument in values(steps, "ARG") if "=" in argument)
    stages = {match[1] for base in values(steps, "FROM") if (match := re.search(r" AS (\w+)$", base))}
    for base in {base.split()[0] for base in values(steps, "FROM")} - stages:
        resolved = re.sub(r"\$\{(\w+)\}", lambda match: defaults[match[1]], base)
        assert re.search(r":[\w.-]*\d[\w.-]*$", resolved), resolved


def test_layers_have_no_package_lists_and_no_secrets(steps):
    for command in (command for command in values(steps, "RUN") if "apt-get" in command):
        assert command.index("apt-get install") < command.index("rm -rf /var/lib/apt/lists/*")
    assert not values(steps, "ADD")
    assert not re.search(r"curl|wget|sudo|(?i:password|token|secret)", str(steps))


def test_container_runs_training_and_not_as_root(steps):
    assert values(steps, "USER") == ["epochmeter"]
    assert json.loads(values(steps, "CMD")[-1]) == ["make", "train"]


def test_jetson_image_has_the_board_s_packages_nvidia_s_torch_and_mounts_for_power_modes_and_clocks():
    for text in ("requirements-board.lock", "/l4t-pytorch:", "touch /etc/nv_tegra_release"):  # detected by the Makefile
        assert text in DOCKERFILES["jetson"]
    for path in (f"/{CONF_FILE}", "/var/lib/nvpmodel", "/usr/bin/jetson_clocks"):
        assert DOCS.count(f"-v {path}:{path}:ro") == 1


def test_mounted_folders_are_created_before_docker_would_create_them_as_root():
    blocks = re.findall(r"^```\n(docker build .*?)^```", DOCS, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        before, _, command = block.partition("docker run")
        created = before.partition("mkdir -p ")[2].split()
        assert sorted(created) == sorted(re.findall(r'-v "\$PWD/(\w+):', command)) != []
