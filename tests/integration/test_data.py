"""A run on a user's folder, and the stall analysis."""

import json

import pytest
from omegaconf import OmegaConf
from PIL import Image

SMALL = {"dataset.size": 32, "dataset.preprocess": "resize", "batch": 4}


@pytest.fixture
def pets(tmp_path):
    """A user's image folder: two classes of ten images, a text file and a hidden file."""
    for label, color in (("cat", "gray"), ("dog", "brown")):
        (tmp_path / "pets" / label).mkdir(parents=True)
        for index in range(10):
            Image.new("RGB", (40, 30 + index), color).save(tmp_path / "pets" / label / f"{index}.jpg")
    (tmp_path / "pets/cat/notes.txt").write_text("mine")
    (tmp_path / "pets/cat/.thumbnail.jpg").write_text("no image")
    return tmp_path / "pets"


def listed(folder):
    return sorted((str(path), path.stat().st_mtime_ns) for path in folder.rglob("*"))


@pytest.mark.system
def test_user_folder_is_trained_on_in_place_and_not_written_to(project, pets):
    project.own_data()
    before = listed(pets)
    arguments = {"dataset": "imagefolder", "dataset.root": pets, "dataset.classes": 2, "cache": "cold", **SMALL}
    project.run("train", *project.quick(**arguments), check=True)
    assert listed(pets) == before
    facts, windows = project.record().run()["dataset"], project.record().windows()
    assert facts["splits"] == {"train": 16, "val": 4}
    assert (facts["folder"], facts["classes"]) == (str(pets), 2)
    (epoch,) = [window["metrics"] for window in windows if window["window"] == "epoch"]
    assert epoch["epoch/samples"] == 16
    assert epoch["epoch/loader_read_s"] > 0
    assert epoch["epoch/loader_preprocess_s"] > epoch["epoch/loader_decode_s"] > 0


@pytest.mark.system
def test_stall_analysis_runs_three_data_sources_and_names_the_bottleneck(project):
    project.own_data()  # its pages are evicted
    overrides = {"experiment": "stalls", "sweep.repeats": 1, "epochs": 3, "batch": 512, "workers": 0, "cache": None}
    arguments = project.quick("-m", **overrides)
    done = project.run("train", *(text for text in arguments if not text.startswith("cache=")), check=True)
    overrides = [dict(text.split("=") for text in record.run()["overrides"]) for record in project.records()]
    assert [keys["data_source"] for keys in overrides] == ["synthetic", "cached", "storage"]
    experiment = OmegaConf.load(project.root / "conf/experiment/stalls.yaml")
    assert [*experiment.hydra.sweeper.params] == ["data_source"]
    assert experiment.sweep.repeats == 3, "each repeat runs all in turn"
    first = project.records()[0].windows()[0]["metrics"]
    assert not [name for name in first if "loader_read" in name or "read_bytes" in name or "cached" in name]
    assert first["epoch/samples"] == project.records()[0].run()["dataset"]["splits"]["train"]
    (sweep,) = project.sweeps()
    project.run("report", "tracking=none", check=True)
    (analysis,) = json.loads((sweep / "stalls.json").read_text())
    t1, t3, t2 = (analysis["times_s"][name]["value"] for name in ("synthetic", "cached", "storage"))
    assert t1 < t3  # the same process preprocesses and trains
    assert analysis["fetch"]["value"] == pytest.approx(t2 - t3)
    assert analysis["preprocessing"]["value"] == pytest.approx(t3 - t1)
    assert "Answer: lenet on digits, batch 512, workers 0: " in " ".join(done.stdout.split())
