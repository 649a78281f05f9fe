"""The containers' files, read: no container runtime is needed."""

import json
import re

import pytest

from epochmeter.config.installation import ROOT
from epochmeter.machine.jetson import CONF_FILE

DOCKERFILES = {name: (ROOT / "docker" / name / "Dockerfile").read_text() for name in ("cuda", "jetson")}
DOCS = (ROOT / "docs" / "containers.md").read_text()


@pytest.mark.parametrize("name", DOCKERFILES)
def test_image_has_fixed_versions_and_no_secrets_and_trains_as_an_ordinary_user(name):
    steps = re.findall(r"^([A-Z]+) +(.*)$", DOCKERFILES[name].replace("\\\n", " "), re.MULTILINE)
    values = {kind: [value for other, value in steps if other == kind] for kind, _ in steps}
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    assert not {"!.git", "!.venv", "!data", "!multirun", "!mlruns", "!mlflow.db"} & {*sent}
    copied = [value.split()[:-1] for value in values["COPY"] if "--from=" not in value]
    for path in (word for words in copied for word in words if not word.startswith("--")):
        assert (ROOT / path).exists()
        assert path == "." or f"!{path}" in sent
    defaults = dict(argument.split("=", 1) for argument in values.get("ARG", []) if "=" in argument)
    stages = {match[1] for base in values["FROM"] if (match := re.search(r" AS (\w+)$", base))}
    for base in {base.split()[0] for base in values["FROM"]} - stages:
        assert re.search(r":[\w.-]*\d[\w.-]*$", re.sub(r"\$\{(\w+)\}", lambda match: defaults[match[1]], base)), base
    for command in (command for command in values["RUN"] if "apt-get" in command):
        assert command.index("apt-get install") < command.index("rm -rf /var/lib/apt/lists/*")
    assert not re.search(r"curl|wget|sudo|(?i:password|token|secret)", str(steps))
    assert (values.get("ADD"), values["USER"]) == (None, ["epochmeter"])
    assert json.loads(values["CMD"][-1]) == ["make", "train"]


def test_jetson_image_has_the_board_s_packages_and_mounts_for_power_modes():
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
