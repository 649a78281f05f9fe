"""Pictures of the datasets of runs in the page of a report."""

import base64
import io
from dataclasses import replace

import pytest
from PIL import Image
from sweeps import trained, write

from epochmeter.config.schema import Dataset, Storage
from epochmeter.datasets.ready import prepare_dataset
from epochmeter.report.build import Report
from epochmeter.report.output import report as output
from epochmeter.report.output import samples
from epochmeter.report.output.samples import MAX_BYTES, dataset_samples
from epochmeter.report.runs.load import load_run

STORAGE = {"name": "project", "root": "data", "medium": None}


def digits(root="data/digits", **keys):
    made = {"_target_": "epochmeter.datasets.digits.make"}
    return {"name": "digits", "layout": "files", "open": None, "root": root, "make": made, "classes": 10,
            "channels": 1, **keys}  # fmt: skip


@pytest.fixture
def run_of(tmp_path, monkeypatch):
    """run_of(dataset, facts) -> a run with this dataset, below a project in `tmp_path`."""
    monkeypatch.setattr(samples, "ROOT", tmp_path)
    count = iter(range(99))

    def run_of(dataset, facts=None):
        keys = {"dataset": dataset, "storage": STORAGE}
        record = write(tmp_path / "sweep", trained(next(count), 100.0, **keys))
        record.describe(record.job(), {**record.run(), "dataset": facts})
        return load_run(record.folder)

    return run_of


def prepare(root, keys):
    return dict(prepare_dataset(Dataset.from_dict(keys), Storage.from_dict(STORAGE), root, lambda *_: None))


def picture(found):
    kind, _, content = found.image.partition(",")
    assert kind == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(content)))


def test_dataset_of_several_runs_is_shown_once(tmp_path, run_of):
    facts = prepare(tmp_path, digits())
    (found,) = dataset_samples([run_of(digits(), facts), run_of(digits(), facts)])
    assert (found.dataset, picture(found).size) == ("digits", (540, 132))
    assert "16 training images" in found.text


def test_photographs_are_limited_to_some_bytes(tmp_path, run_of, monkeypatch):
    for number in range(16):
        noise = Image.effect_noise((64, 64), 100)
        path = tmp_path / f"data/photos/{number % 2}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.merge("RGB", [noise, noise.rotate(90), noise.rotate(180)]).save(path)
    scan = {"_target_": "epochmeter.datasets.image_folder.scan"}
    keys = {**digits("data/photos", adopt=scan, classes=2), "make": None}
    (found,) = dataset_samples([run_of(keys, prepare(tmp_path, keys))])
    assert picture(found).size == (540, 132)
    assert len(found.image) < 1.4 * MAX_BYTES


def test_absent_or_changed_dataset_has_a_reason(tmp_path, run_of):
    facts = prepare(tmp_path, digits())
    elsewhere = run_of(digits("data/elsewhere"), facts)
    other = run_of(digits(), {**facts, "digest": "0" * 64})
    for found in dataset_samples([elsewhere]) + dataset_samples([other]):
        assert (found.image, found.text) == ("", samples.phrase("no_dataset"))
    for path in (tmp_path / "data/digits/train").rglob("*.png"):
        path.write_bytes(b"damaged")
    (found,) = dataset_samples([run_of(digits(), facts)])
    assert found.image == ""
    assert "has no image that can be read" in found.text


def test_folder_that_only_a_record_names_is_not_read(tmp_path, run_of):
    private = tmp_path / "private/a"
    private.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(private / "x.png")
    scan = {"_target_": "epochmeter.datasets.image_folder.scan"}
    keys = {**digits(str(private.parent), adopt=scan), "make": None}
    (found,) = dataset_samples([run_of(keys, {"digest": "0" * 64, "folder": str(private.parent)})])
    assert found.image == ""


def test_texts_and_generated_or_unprepared_samples_have_no_place(run_of):
    words = {"name": "pairs", "layout": "memory", "open": None}
    generated = digits(None, make=None, name="tensors")
    runs = [run_of(words, {"digest": "1", "folder": "data/pairs"}), run_of(digits())]
    runs += [run_of(generated, {"digest": "1", "folder": None}), replace(runs[0], folder=None)]
    assert dataset_samples(runs) == []


def test_run_of_another_version_has_a_reason(run_of):
    (found,) = dataset_samples([run_of({"name": "old", "channels": 3}, {"digest": "1", "folder": "x"})])
    assert found.image == ""
    assert found.text


def test_page_shows_the_picture_with_its_text():
    pytest.importorskip("vl_convert")

    shown = [
        samples.Samples("digits <i>", "16 images", "data:image/png;base64,AAAA"),
        samples.Samples("b", "No images"),
    ]
    html = output.report_html(Report("t", "", (), [], (), (), ()), "<p>table</p>", shown)
    first, second = (html.index(f'<section id="dataset-{number}"') for number in (1, 2))
    assert first < second < html.index('<section id="all-runs"')
    assert '<img src="data:image/png;base64,AAAA" alt="Training images of digits &lt;i&gt;">' in html[first:second]
    assert "<img" not in html[second:]
