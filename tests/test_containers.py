"""The containers' files, read: no container runtime is needed to hold what makes an image small and safe."""

import json
import re
from io import BytesIO

import pytest

from epochmeter.config.job import ROOT
from epochmeter.machine.jetson import CONF_FILE

dockerfile_parse = pytest.importorskip(
    "dockerfile_parse", reason="needs dockerfile-parse: pip install dockerfile-parse"
)
FILES = sorted((ROOT / "docker").glob("*/Dockerfile"))
SENT = (ROOT / ".dockerignore").read_text().splitlines()


class Image:
    """A Dockerfile's instructions, and those of its last stage."""

    def __init__(self, path):
        parser = dockerfile_parse.DockerfileParser(fileobj=BytesIO(path.read_bytes()))
        self.told = [(each["instruction"], each["value"]) for each in parser.structure]
        begins = [number for number, (name, _) in enumerate(self.told) if name == "FROM"]
        self.last = self.told[begins[-1] :]

    def all(self, name, told=None):
        return [value for other, value in (told or self.told) if other == name]


@pytest.fixture(params=FILES, ids=lambda path: path.parent.name)
def image(request):
    return Image(request.param)


def sources(copied):
    """What a COPY takes from the project, if from there."""
    *taken, _ = [word for word in copied.split() if not word.startswith("--")]
    return [] if "--from=" in copied else taken


def test_there_is_an_image_for_gpus_and_one_for_jetsons():
    assert [path.parent.name for path in FILES] == ["cuda", "jetson"]


def test_what_is_copied_is_there_and_sent_to_the_builder(image):
    for name in (name for copied in image.all("COPY") for name in sources(copied)):
        assert (ROOT / name).exists()
        assert name == "." or f"!{name}" in SENT


def test_only_what_an_image_needs_is_sent_to_the_builder():
    kept = [line.removeprefix("!") for line in SENT if line.startswith("!")]
    assert SENT[1] == "*", "all is left out but what is named"
    assert all((ROOT / name).exists() for name in kept)
    assert not {".git", ".venv", "data", "multirun", "mlruns", "mlflow.db"} & {*kept}


def test_every_base_has_a_version(image):
    defaults = dict(argument.split("=", 1) for argument in image.all("ARG") if "=" in argument)
    stages = {match[1] for base in image.all("FROM") if (match := re.search(r" AS (\w+)$", base))}
    for base in (base.split()[0] for base in image.all("FROM")):
        if base not in stages:
            resolved = re.sub(r"\$\{(\w+)\}", lambda match: defaults[match[1]], base)
            assert re.search(r":[\w.-]*\d[\w.-]*$", resolved), resolved


def test_what_apt_leaves_is_in_no_layer(image):
    for run in (run for run in image.all("RUN") if "apt-get" in run):
        assert run.index("apt-get update") < run.index("apt-get install") < run.index("rm -rf /var/lib/apt/lists/*")
        assert "--no-install-recommends" in run


def test_what_is_downloaded_for_python_is_in_no_layer(image):
    (synced,) = (run for run in image.all("RUN") if ".synced" in run and "touch" not in run)
    for cache in ("UV_CACHE_DIR", "PIP_CACHE_DIR"):
        folder = re.search(rf"{cache}=(\S+)", " ".join(image.all("ENV")))[1]
        assert f"--mount=type=cache,target={folder}" in synced


def test_the_environment_is_made_in_a_stage_of_its_own_from_the_lock_alone(image):
    assert not [run for run in image.all("RUN", image.last) if "pip" in run or "apt-get" in run]
    (lock,) = (copied for copied in image.all("COPY") if ".lock" in copied)
    assert re.fullmatch(r"Makefile requirements(-board)?\.lock \./", lock)
    assert any("--from=environment" in copied and ".venv" in copied for copied in image.all("COPY", image.last))


def test_it_does_not_run_as_root(image):
    (user,) = image.all("USER")
    assert user == "epochmeter"
    assert all(
        "--chown=epochmeter" in copied for copied in image.all("COPY", image.last) if "/opt/python" not in copied
    )


def test_nothing_is_fetched_but_by_the_project_and_no_secret_is_kept(image):
    assert not image.all("ADD")
    text = " ".join(value for _, value in image.told)
    assert not re.search(r"curl|wget|sudo|(?i:password|token|secret)", text)


def test_inside_are_the_commands_that_are_outside(image):
    assert json.loads(image.all("CMD")[-1]) == ["make", "train"]
    assert "make setup" in image.all("RUN", image.last)[-1]


def test_jetson_image_has_the_board_s_packages_and_nvidia_s_torch():
    jetson = Image(ROOT / "docker" / "jetson" / "Dockerfile")
    assert "requirements-board.lock" in " ".join(jetson.all("COPY"))
    (base,) = (value.partition("=")[2] for value in jetson.all("ARG") if value.startswith("BASE="))
    assert "/l4t-pytorch:" in base
    # By this file the Makefile knows a Jetson.
    assert any("touch /etc/nv_tegra_release" in run for run in jetson.all("RUN"))
    assert "/etc/nv_tegra_release" in (ROOT / "Makefile").read_text()


def test_a_jetsons_container_is_shown_what_its_power_modes_and_clocks_are_known_by():
    text = (ROOT / "docs" / "containers.md").read_text()
    for path in (f"/{CONF_FILE}", "/var/lib/nvpmodel", "/usr/bin/jetson_clocks"):
        assert text.count(f"-v {path}:{path}:ro") == 1


def test_documented_options_are_in_both_commands_except_the_gpu_s():
    text = (ROOT / "docs" / "containers.md").read_text()
    commands = re.findall(r"^docker run (?:.*\\\n)*.*", text, re.MULTILINE)
    explained = re.findall(r"`(-[^`]+)`", " ".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)))
    assert len(commands) == 2
    assert len(explained) > 7
    for option in explained:
        given = [option.replace("...", "$PWD").replace("-v $", '-v "$') in command for command in commands]
        assert sum(given) == (1 if option in ("--gpus all", "--runtime nvidia") else 2), option


def test_the_folders_that_are_mounted_are_made_before_docker_would_make_them_as_root():
    text = (ROOT / "docs" / "containers.md").read_text()
    blocks = re.findall(r"^```\n(docker build .*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        before, _, command = block.partition("docker run")
        made = before.partition("mkdir -p ")[2].split()
        assert sorted(made) == sorted(re.findall(r'-v "\$PWD/(\w+):', command)) != []
