from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

CONF = str(Path(__file__).parents[2] / "conf")


@pytest.fixture
def spec():
    """A dataset's specification as composed for a storage root: plain dictionaries."""

    def composed(name, root="data", **keys):
        with initialize_config_dir(CONF, version_base=None):
            job = compose(f"dataset/{name}", overrides=[f"+storage.root={root}"])
        return {**OmegaConf.to_container(job, resolve=True)["dataset"], **keys}

    return composed
