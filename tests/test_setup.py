"""Locks and targets of the Makefile."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = [ROOT / f"requirements{name}.lock" for name in ("-dev", "", "-board")]


def locked(lock: Path) -> dict[str, list[str]]:
    """The versions that a lock holds of each package, one for each kind of machine that needs its own."""
    versions: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([a-z0-9-]+)==(\S+)", lock.read_text(), re.MULTILINE):
        versions.setdefault(name, []).append(version)
    return versions


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_lock_has_hashes_and_no_index_address(lock):
    text = lock.read_text()
    assert "://" not in text
    assert "--index-url" not in text
    pinned = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in package for package in pinned)


def test_board_lock_has_the_controller_s_packages_without_torch_and_pandas():
    packages = locked(ROOT / "requirements-board.lock")
    assert not {"torch", "torchvision", "pandas", "mlflow", "zeus"} & packages.keys()
    assert {"hydra-core", "mlflow-skinny", "sqlalchemy", "psutil", "rich"} <= packages.keys()


def test_training_installs_mlflow_with_its_pages_and_no_packages_of_tests():
    packages = locked(ROOT / "requirements.lock")
    assert {"torch", "torchvision", "mlflow", "zeus", "vl-convert-python"} <= packages.keys()
    assert not {"pytest", "mypy", "ruff", "playwright", "psycopg", "tensorboard"} & packages.keys()


def test_all_locks_agree():
    everything, training, board = map(locked, LOCKS)
    assert training.items() <= everything.items()
    assert board.items() <= training.items()


def dry_run(*goals: str, jetson: bool) -> str:
    """What make would do for these goals, on a Jetson or elsewhere."""
    where = f"JETSON={'/etc/nv_tegra_release' if jetson else ''}"
    return subprocess.check_output(["make", "-C", str(ROOT), "--dry-run", "--always-make", where, *goals], text=True)


@pytest.mark.parametrize(
    ("goal", "extra"),
    [("test", "dev"), ("tensorboard", "tensorboard"), ("optuna", "optuna")],
)
@pytest.mark.parametrize("jetson", [True, False])
def test_a_target_installs_its_extra_at_the_locked_versions(goal, extra, jetson):
    extras = "--all-extras" if extra == "dev" and not jetson else rf"--extra {extra}\b"
    install = rf"pip install .*--require-hashes .*--constraint requirements-dev\.lock .*{extras}"
    assert re.search(install, dry_run(goal, jetson=jetson).replace("\\\n", ""))


def test_only_a_jetson_installs_mlflow_s_pages_separately():
    assert "--extra ui" in dry_run("ui", jetson=True)
    assert "--extra" not in dry_run("ui", jetson=False)


@pytest.mark.parametrize(("jetson", "lock"), [(True, "requirements-board.lock"), (False, "requirements.lock")])
def test_training_installs_one_lock_and_no_extra(jetson, lock):
    steps = dry_run("train", jetson=jetson)
    assert f"--compile-bytecode {lock}" in steps
    assert "--extra" not in steps
