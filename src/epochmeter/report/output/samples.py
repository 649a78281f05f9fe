"""Pictures of the datasets of a report: a few training images each, embedded in its page."""

import base64
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

from epochmeter.config.installation import ROOT
from epochmeter.config.schema import Dataset, Storage
from epochmeter.report.render import phrase
from epochmeter.report.runs.run import Run
from epochmeter.results.run_folder import READ_ERRORS, RunFolder
from epochmeter.shared.problem import InputError, MachineError, problem_of

COUNT, COLUMNS, SIDE_PX, GAP_PX = 16, 8, 64, 4
MAX_BYTES = 60_000  # of a picture as PNG; a larger one gets fewer colors
COLORS = 128
MAX_DATASETS = 4


class Samples(NamedTuple):
    """Images of a dataset: `image` is a PNG as a data URL; empty if there is none, and `text` then has the reason."""

    dataset: str
    text: str
    image: str = ""


def dataset_samples(runs: Sequence[Run]) -> list[Samples]:
    """Return pictures of the image datasets of some runs, or why there are none.

    A dataset is read only if its manifest here has the checksum that the run has recorded. So neither another dataset
    is shown, nor a folder that a record from elsewhere names.
    """
    shown: dict[tuple[str, str], Samples] = {}
    for run in runs:
        dataset = run.job.get("dataset")
        if not isinstance(dataset, dict) or dataset.get("channels") is None or run.folder is None:
            continue  # it has no images
        try:
            facts = RunFolder(run.folder).run.dataset or {}
        except READ_ERRORS:
            continue
        name, digest = str(dataset.get("name")), facts.get("digest")
        if facts.get("folder") is None or not digest or (name, digest) in shown:
            continue  # generated samples, or none were prepared
        shown[name, digest] = _samples(name, digest, run.job)
        if len(shown) == MAX_DATASETS:
            break
    return [*shown.values()]


def _samples(name: str, digest: str, job: Any) -> Samples:
    try:
        from epochmeter.datasets.ready import prepared_folder
        from epochmeter.datasets.sample_images import grid, read_samples

        folder = prepared_folder(Dataset.from_dict(job["dataset"]), Storage.from_dict(job["storage"]), ROOT, digest)
        if folder is None:
            return Samples(name, phrase("no_dataset"))
        images = read_samples(folder, COUNT, SIDE_PX)
        picture = _png(grid(images, COLUMNS, SIDE_PX, GAP_PX))
    except (InputError, MachineError) as error:
        return Samples(name, phrase("no_samples", reason=problem_of(error).message))
    except (OSError, ValueError, TypeError, LookupError) as error:  # of a record of another version
        return Samples(name, phrase("no_samples", reason=str(error)))
    text = phrase("samples", count=len(images))
    return Samples(name, text, f"data:image/png;base64,{base64.b64encode(picture).decode()}")


def _png(picture: Any) -> bytes:
    """Return a picture as PNG, with fewer colors if it would be large."""
    content = _encoded(picture)
    return content if len(content) <= MAX_BYTES else _encoded(picture.quantize(COLORS))


def _encoded(picture: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return file.getvalue()
