"""The example of docs/extending.md, with the files as printed there, is validated and trained."""

import re
import sys

import torch
from hydra import compose
from project import ROOT, put

from epochmeter.config import job
from epochmeter.config.schema import Dataset, Job, Storage
from epochmeter.datasets.ready import prepare_dataset
from epochmeter.run import preflight
from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.worker.data.loader import make_loaders
from epochmeter.worker.trainer import Trainer


def test_example_is_valid_and_learns(tmp_path, composed, monkeypatch):
    text = (ROOT / "docs" / "extending.md").read_text()
    put(tmp_path, dict(re.findall(r"```\w+\n# (\S+)\n(.*?)```", text, re.DOTALL)))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_package", raising=False)
    composed()  # Hydra knows its resolvers from here on
    overrides = [f"hydra.searchpath=[file://{tmp_path}/conf]", "dataset=squares", "epochs=2", "workers=0"]
    example = job.to_plain(compose("train", overrides=[*overrides, "optimizer.lr=0.1"]))
    choices = {group: example[group]["name"] for group in ("dataset", "task", "model")}
    assert choices == {"dataset": "squares", "task": "attributes", "model": "net"}
    preflight.validate_job(Job.from_dict(example), choices, [])
    torch.manual_seed(0)
    strategy, task = instantiate_spec(example["strategy"]), instantiate_spec(example["task"])
    facts = prepare_dataset(Dataset.from_dict(example["dataset"]), Storage.from_dict(example["storage"]), ROOT, print)
    training, validation = make_loaders(example, facts, task, strategy, cuda=False)
    trainer = Trainer(example, task, strategy, torch.device("cpu"))
    assert trainer.model_stats()["flops_per_sample"] == 2 * (3 * (256 * 32 + 32 * 2) - 256 * 32)
    tallies = [trainer.train_epoch(training).totals() for _ in range(example["epochs"])]
    evaluated = trainer.evaluate_epoch(validation).totals()
    assert [tally["weight"] for tally in tallies] == [2 * 400] * 2
    assert tallies[1]["loss_sum"] < tallies[0]["loss_sum"]
    assert evaluated["correct"] / evaluated["weight"] > 0.9
