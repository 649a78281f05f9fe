import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from epochmeter.config.schema import Dataset

CONF = str(Path(__file__).parents[2] / "conf")


@pytest.fixture
def composed_dataset():
    """composed_dataset(name, *overrides, **keys): the configuration of a dataset, with some of its keys replaced."""

    def compose_dataset(name, *overrides, **keys):
        with initialize_config_dir(CONF, version_base=None):
            job = compose(f"dataset/{name}", overrides=list(overrides))
        return Dataset.from_dict({**OmegaConf.to_container(job, resolve=True)["dataset"], **keys})

    return compose_dataset


@pytest.fixture
def pack():
    """pack(path, {name: bytes}) writes a tar, gzipped if the path says so, and returns its MD5."""

    def write(path, contents):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            for name, data in contents.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        data = file.getvalue()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        return hashlib.md5(path.read_bytes()).hexdigest()

    return write
