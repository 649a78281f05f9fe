"""Runs that were measured on Linux, shown on macOS, which a stub stands for: `tests/platforms/darwin`."""

import pytest
from project import ROOT

pytestmark = pytest.mark.system
DARWIN = ROOT / "tests/platforms/darwin"


def test_report_and_view_are_the_same_on_another_system(project):
    project.run("train", *project.stubbed("-m", batch="128,256", epochs=2), check=True)
    for entry, arguments in (("report", ["tracking=none", "format=json"]), ("watch", ["once=true"])):
        linux = project.run(entry, *arguments, check=True)
        macos = project.run(entry, *arguments, check=True, PYTHONPATH=str(DARWIN))
        assert macos.stdout == linux.stdout
        assert len(macos.stdout) > 100


def test_runs_are_published_on_another_system(project):
    project.run("train", *project.stubbed(epochs=1), check=True)
    project.run("publish", check=True, PYTHONPATH=str(DARWIN))
    assert project.rows("select count(*) from runs where status = 'FINISHED'") == [(1,)]
