"""Locks and targets of the Makefile."""

import re
import subprocess

import pytest
from project import ROOT

LOCKS = [ROOT / f"requirements{name}.lock" for name in ("-dev", "", "-board")]


def locked(lock):
    """The versions that a lock holds of each package, one for each kind of machine that needs its own."""
    versions = {}
    for name, version in re.findall(r"^([a-z0-9-]+)==(\S+)", lock.read_text(), re.MULTILINE):
        versions.setdefault(name, []).append(version)
    return versions


def test_locks_have_hashes_and_no_index_address():
    for text in (lock.read_text() for lock in LOCKS):
        assert not re.search("://|--index-url", text)
        pinned = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
        assert all("--hash=sha256:" in package for package in pinned)


def test_locks_agree_and_have_the_packages_of_tests_training_and_controller():
    everything, training, board = map(locked, LOCKS)
    assert board.items() <= training.items() <= everything.items()
    assert {"hydra-core", "mlflow-skinny", "sqlalchemy", "psutil", "rich"} <= board.keys()
    assert not {"torch", "torchvision", "pandas", "mlflow", "zeus"} & board.keys()
    assert {"torch", "torchvision", "mlflow", "zeus", "vl-convert-python"} <= training.keys()
    assert not {"pytest", "mypy", "ruff", "playwright", "psycopg", "tensorboard"} & training.keys()


@pytest.mark.parametrize(
    ("goal", "extra", "extra_of_jetson"),
    [("test", "--all-extras", "--extra dev"), ("optuna", "--extra optuna", "--extra optuna"), ("train", None, None),
     ("tensorboard", "--extra tensorboard", "--extra tensorboard"), ("ui", None, "--extra ui")],
)  # fmt: skip
@pytest.mark.parametrize("jetson", [True, False])
def test_a_target_installs_one_lock_and_its_extra_at_the_locked_versions(goal, extra, extra_of_jetson, jetson):
    where = f"JETSON={'/etc/nv_tegra_release' if jetson else ''}"
    steps = subprocess.check_output(["make", "-C", ROOT, "--dry-run", "--always-make", where, goal], text=True)
    steps = steps.replace("\\\n", "")
    assert f"--compile-bytecode {'requirements-board.lock' if jetson else 'requirements.lock'}" in steps
    install = r"pip install .*--require-hashes .*--constraint requirements-dev\.lock .*(--(?:all-extras|extra \w+))"
    assert re.findall(install, steps) == [name for name in [extra_of_jetson if jetson else extra] if name]
