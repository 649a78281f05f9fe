"""The wheel: its files, and its commands in an empty environment and an empty folder, outside the checkout."""

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest
from project import ENVIRONMENT, QUICK, ROOT

from epochmeter.shared.record import Record

pytestmark = pytest.mark.system
SCRIPT = """
import sys, torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters())
for batch in DataLoader(torch.ones(64, 4), 8):
    model(batch).mean().backward()
    optimizer.step()
sys.exit(3)
"""
IMPORTS = "import epochmeter.worker, importlib.util; print(importlib.util.find_spec('hydra'))"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The folder of an environment with the installed wheel, and with the packages of this environment."""
    root = tmp_path_factory.mktemp("environment")
    subprocess.run(["make", "-C", ROOT, "dist", f"DIST={root}"], check=True)
    (wheel,) = root.glob("*.whl")
    venv.create(root)
    install(root, wheel)
    (site_packages,) = root.glob("lib/python*/site-packages")
    (site_packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return root


def install(environment, *packages):
    """Install packages and what they depend on, of which there must be nothing else."""
    command = [shutil.which("uv") or ROOT / ".uv/bin/uv", "pip", "install", "--no-index", "--python"]
    subprocess.run([*command, environment / "bin/python", *packages], check=True)


def test_package_has_no_dependencies_and_its_commands_name_those_that_they_lack(environment, tmp_path):
    (wheel,) = environment.glob("*.whl")
    venv.create(tmp_path)
    install(tmp_path, wheel)
    command = {"env": {**ENVIRONMENT, "PATH": ""}, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    assert "publish" in subprocess.run([tmp_path / "bin/epochmeter"], **command, check=True).stdout
    done = subprocess.run([tmp_path / "bin/epochmeter", "run", "own.py"], cwd=tmp_path, **command)
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()
    assert error.startswith(f"error: `{tmp_path}/bin/python")
    assert "hydra-core" in error
    assert hint.endswith(f"`uv pip install --python {tmp_path}/bin/python 'epochmeter[tool]'`")


def test_wheel_has_the_sources_and_the_configuration_only(environment):
    (wheel,) = environment.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    paths = [path for pattern in ("src/*/**/*", "conf/**/*") for path in ROOT.glob(pattern)]
    files = {str(path.relative_to(ROOT)) for path in paths if path.is_file() and "__pycache__" not in path.parts}
    assert names == {name.replace("conf/", "epochmeter/conf/", 1).removeprefix("src/") for name in files}


def test_sweep_script_and_report_run_in_an_empty_folder(environment, tmp_path):
    def run(*arguments):
        command, keys = [environment / "bin/epochmeter", *arguments], {"stdin": subprocess.DEVNULL, "text": True}
        return subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, **keys)

    locks, quick = f"machine.lock_dir={tmp_path / 'locks'}", {**QUICK, "epochs": 2}
    done = run("train", "-m", locks, *(f"{key}={value}" for key, value in quick.items()))
    assert done.returncode == 0, done.stdout
    (sweep,) = (tmp_path / "multirun").glob("2*")
    record = Record(sweep / "0")
    assert record.is_completed()
    assert record.run()["command"].startswith("epochmeter train -m ")
    assert f"epochmeter report sweep={sweep.name}" in done.stdout
    assert run("report", "tracking=none").returncode == 0
    assert (sweep / "report.html").exists()
    (tmp_path / "own.py").write_text(SCRIPT)
    assert run("run", locks, "tracking=none", "own.py").returncode == 3
    (script,) = {*(tmp_path / "multirun").glob("2*")} - {sweep}
    assert [window["metrics"]["epoch/steps"] for window in Record(script / "0").windows()] == [8]
    assert {path.name for path in tmp_path.iterdir()} == {"data", "locks", "multirun", "own.py"}


def test_another_python_imports_the_package_without_its_site_packages(environment):
    (path,) = environment.glob("lib/python*/site-packages/epochmeter/shared/path")
    command = [sys.executable, "-S", "-c", IMPORTS]
    assert subprocess.check_output(command, env={"PYTHONPATH": path}, text=True) == "None\n"
