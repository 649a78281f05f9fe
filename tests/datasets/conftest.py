import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

CONF = str(Path(__file__).parents[2] / "conf")


@pytest.fixture
def spec():
    """A dataset's specification as composed with overrides: plain dictionaries; `keys` replace some of them."""

    def composed(name, *overrides, **keys):
        with initialize_config_dir(CONF, version_base=None):
            job = compose(f"dataset/{name}", overrides=list(overrides))
        return {**OmegaConf.to_container(job, resolve=True)["dataset"], **keys}

    return composed


def packed(contents, compressed=False):
    """A tar of files by name, the same bytes whenever it is written: gzip would stamp it with the time."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return gzip.compress(file.getvalue(), mtime=0) if compressed else file.getvalue()


@pytest.fixture
def pack():
    """Writes a tar and gives its MD5: `pack(path, {name: bytes})`, gzipped if the path says so."""

    def write(path, contents):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(packed(contents, compressed=path.suffix == ".gz"))
        return hashlib.md5(path.read_bytes()).hexdigest()

    return write
