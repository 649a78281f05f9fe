"""The extra `tool`: what an environment lacks of it, and the commands that install it."""

import json
import shlex
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from epochmeter.shared import tool

REQUIRES = [
    "hydra-core<1.4,>=1.3.8; extra == 'tool'", "sqlalchemy>=2; extra == 'tool'", "rich>=13; extra == \"tool\"",
    "torch>=2.10; extra == 'train'", "hydra-core<1.4,>=1.3.8; extra == 'train'",
]  # fmt: skip
SUITED = {"hydra-core": "1.3.9", "sqlalchemy": "2.0.0", "rich": "13"}


@pytest.fixture
def installed(monkeypatch):
    """installed(**versions): packages of an environment with the wheel, by name."""
    monkeypatch.setattr(tool, "IS_INSTALLED", True)

    def install(versions, url=None):
        def version(name):
            if name not in versions:
                raise metadata.PackageNotFoundError(name)
            return versions[name]

        direct = json.dumps({"url": url}) if url else None
        monkeypatch.setattr(metadata, "requires", lambda name: REQUIRES)
        monkeypatch.setattr(metadata, "version", version)
        monkeypatch.setattr(metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: direct))

    return install


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        ({}, []),
        ({"hydra-core": "1.3.8.post1", "sqlalchemy": "2", "rich": "14.0.0rc1"}, []),
        ({"hydra-core": "1.1.2"}, ["another hydra-core than 1.1.2"]),
        ({"hydra-core": "1.4.0"}, ["another hydra-core than 1.4.0"]),
        ({"sqlalchemy": "1.4.54", "rich": None}, ["rich", "another sqlalchemy than 1.4.54"]),
    ],
)
def test_packages_that_are_missing_or_unsuited_are_named(installed, changed, missing):
    installed({name: version for name, version in {**SUITED, **changed}.items() if version})
    assert tool.missing_packages() == missing


def test_checkout_lacks_no_packages():
    assert tool.missing_packages() == []


@pytest.mark.parametrize(("programs", "begin"), [
    (["uv", "pipx"], "uv tool install "), (["pipx"], "pipx install "), ([], f"{sys.executable} -m venv "),
])  # fmt: skip
def test_unsuited_packages_of_an_environment_are_not_replaced(installed, monkeypatch, tmp_path, programs, begin):
    wheel = tmp_path / "a wheel.whl"
    wheel.touch()
    monkeypatch.setattr(tool.shutil, "which", lambda name: name if name in programs else None)
    for url, requirement in (
        (wheel.as_uri(), f"epochmeter[tool] @ {wheel.as_uri()}"), ("file:///gone.whl", "epochmeter[tool]"),
        (None, "epochmeter[tool]"),
    ):  # fmt: skip
        installed({**SUITED, "sqlalchemy": "1.4.54"}, url)
        assert tool.tool_command().startswith(begin)
        assert shlex.split(tool.tool_command())[-1] == requirement
    installed({"rich": "13"})
    assert tool.tool_command() == tool.install_command("tool")


@pytest.mark.parametrize(("has_pip", "which", "command"), [
    (True, f"{sys.prefix}/bin/pip", "pip install"), (True, "/usr/bin/pip", f"{sys.executable} -m pip install"),
    (False, "/usr/bin/pip", f"uv pip install --python {sys.executable}"),
])  # fmt: skip
def test_extra_is_installed_by_the_installer_of_this_python(monkeypatch, has_pip, which, command):
    monkeypatch.setattr(tool, "find_spec", lambda name: has_pip or None)
    monkeypatch.setattr(tool.shutil, "which", lambda name: which)
    assert tool.install_command("optuna") == f"{command} 'epochmeter[optuna]'"
