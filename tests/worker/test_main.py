"""The start and the end of the training process."""

import subprocess
import sys

import pytest

from epochmeter.config.installation import python_path

IMPORT = """
import gc
from epochmeter.worker.__main__ import freeze, import_without_collection

module = import_without_collection("imported")
print(module.IS_ENABLED, gc.isenabled(), any(thing is module.THINGS for thing in gc.get_objects(generation=2)))
print(gc.get_freeze_count())
freeze()
print(gc.get_freeze_count() > 1000)
"""


@pytest.fixture
def printed(tmp_path):
    (tmp_path / "imported.py").write_text("import gc\nIS_ENABLED = gc.isenabled()\nTHINGS = [[] for _ in range(10)]\n")
    environment = {"PYTHONPATH": f"{python_path()}:{tmp_path}"}
    command = [sys.executable, "-c", IMPORT]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def test_libraries_are_imported_without_collection_and_are_old_objects_afterwards(printed):
    assert printed[0] == "False True True"


def test_objects_are_collected_while_the_process_trains_and_not_when_it_ends(printed):
    assert printed[1:] == ["0", "True"]
