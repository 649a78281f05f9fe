import pytest
import torch
from PIL import Image
from project import make_unreadable

from epochmeter.worker.data.faults import BadSampleError
from epochmeter.worker.data.images import ImageFiles, InMemoryImages
from epochmeter.worker.data.timed_dataset import TimedDataset


@pytest.fixture
def folder(tmp_path):
    colors = {"train/cat/b": "green", "train/cat/a": "red", "train/dog/ü": "blue", "val/dog/z": "white"}
    for name, color in colors.items():
        path = tmp_path / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), color).save(path)
    return tmp_path


def listed(samples):
    return [(image.getpixel((1, 1)), image.size, label) for image, label in (samples[i] for i in range(len(samples)))]


def test_unreadable_image_is_an_error_that_names_it_as_is_a_folder_without_images(folder):
    path = folder / "train/cat/a.png"
    truncated, samples = path.read_bytes()[:-20], ImageFiles(str(folder), "train", str)
    bad = [(b"", "the file is empty"), (b"no image", "not an image"), (truncated, "truncated"), (None, "No such file")]
    for contents, reason in (*bad, (b"\x89PNG\r\n\x1a\n", ""), (b"GIF89a", ""), (b"\xff\xd8\xff\xe0", "")):
        path.unlink(missing_ok=True)
        if contents is not None:
            path.write_bytes(contents)
        with pytest.raises(BadSampleError, match=rf"image {path}: .*{reason}.*\n  hint: restore the file"):
            samples[0]
    (folder / "val/dog/z.png").unlink()
    with pytest.raises(RuntimeError, match=rf"{folder / 'val'} has no images"):
        ImageFiles(str(folder), "val", str)
    with pytest.raises(RuntimeError, match=rf"cannot read dataset folder {folder / 'test'}: No such file"):
        ImageFiles(str(folder), "test", str)


@pytest.mark.parametrize("kind", [ImageFiles, InMemoryImages])
def test_unreadable_entries_are_named_with_the_reason_and_skipped_with_on_bad_skip(folder, kind):
    cat = folder / "train/cat"
    expected = {str(cat / name): reason for name, reason in make_unreadable(cat).items()}
    (cat / "folder.png").mkdir()

    def opened(transform):
        return kind(str(folder), "train", transform)

    samples, reasons = opened(str), {}
    for index in range(len(samples)):
        try:
            samples[index]
        except BadSampleError as bad:
            reasons[bad.name] = bad.problems[0].message.partition(f"{bad.name}: ")[2]
    assert reasons == expected
    skipping = TimedDataset(opened, lambda image: torch.tensor(image.getpixel((0, 0))), skip=True)
    (pixels, _), _, bad = skipping[range(len(samples))]
    assert len(pixels) == 3
    assert {*bad} == {*expected}


def test_samples_are_sorted_by_class_and_name_and_in_memory_need_no_files(folder):
    expected = [((255, 0, 0), (4, 4), 0), ((0, 128, 0), (4, 4), 0), ((0, 0, 255), (4, 4), 1)]
    files, held = (kind(str(folder), "train", lambda image: image) for kind in (ImageFiles, InMemoryImages))
    assert listed(files) == expected
    for path in sorted((folder / "train").rglob("*.png")):
        path.unlink()
    assert listed(held) == expected


def test_bad_image_in_memory_raises_unless_skipped(folder):
    (folder / "train/cat/a.png").write_bytes(b"no image")

    def opened(transform):
        return InMemoryImages(str(folder), "train", transform)

    with pytest.raises(BadSampleError, match=r"a\.png: not an image"):
        TimedDataset(opened, str)[[0, 1]]
    samples = TimedDataset(opened, lambda image: torch.tensor(image.getpixel((0, 0))), skip=True)
    (pixels, _), _, bad = samples[[0, 1]]
    assert pixels.tolist() == [[0, 128, 0]]
    assert bad == [str(folder / "train/cat/a.png")]
