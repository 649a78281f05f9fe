import signal
import subprocess
import sys
import time
from json import dumps
from pathlib import Path

import pytest

from trainmeter.datasets.ready import SOURCES, ready

HERE = {"name": "here", "root": "data"}


def test_a_dataset_is_made_once_and_found_ever_after(spec, tmp_path):
    said = []
    made = ready(spec("digits"), HERE, tmp_path, said.append)
    assert said == [f"making dataset digits in {tmp_path / 'data' / 'digits'}"]
    assert made["folder"] == str(tmp_path / "data" / "digits")
    began = time.monotonic()
    assert ready(spec("digits"), HERE, tmp_path, said.append) == made
    assert time.monotonic() - began < 0.5
    assert len(said) == 1


def test_a_medium_that_is_not_mounted_is_an_error_and_no_folder(spec, tmp_path):
    place = tmp_path / "media" / "sd"
    with pytest.raises(ValueError, match=f"storage.root={place} is not there, or is no folder. Mount the medium"):
        ready(spec("digits", root=place), {"name": "here", "root": str(place)}, tmp_path, print)
    assert not place.exists()


def test_what_the_maker_cannot_do_is_said_by_the_steward(spec, tmp_path):
    with pytest.raises(RuntimeError, match=r"has no room: dataset digits needs 1000000000000 MB"):
        ready(spec("digits", space_bytes=10**18), HERE, tmp_path, print)


def test_a_dataset_emptied_after_it_was_made_is_an_error(spec, tmp_path):
    folder = Path(ready(spec("digits"), HERE, tmp_path, print)["folder"])
    for image in folder.glob("*/*/*.png"):
        image.unlink()
    with pytest.raises(RuntimeError, match="holds 0 files of 0 bytes; its manifest tells of 1797 files"):
        ready(spec("digits"), HERE, tmp_path, print)


def test_a_maker_killed_half_way_leaves_nothing_that_passes_for_a_dataset(spec, tmp_path):
    folder = tmp_path / "data" / "digits"
    command = [sys.executable, "-m", "trainmeter.datasets", dumps(spec("digits")), str(folder)]
    with subprocess.Popen(command, env={"PYTHONPATH": SOURCES}, stdout=subprocess.DEVNULL) as maker:
        while not any(folder.with_name(".digits.partial").glob("train/*/*.png")):
            assert maker.poll() is None
        maker.send_signal(signal.SIGKILL)
    assert not folder.exists()
    assert ready(spec("digits"), HERE, tmp_path, print)["count"] == 1797
    assert not folder.with_name(".digits.partial").exists()
