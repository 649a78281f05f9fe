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
