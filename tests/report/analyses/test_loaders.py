"""DataLoaders of scripts on the report's page."""

from dataclasses import replace

from golden import assert_golden
from sweeps import trained

from epochmeter.report.analyses import loaders

TRAINED = {
    "windows": ["epoch"], "class": "torch.utils.data.dataloader.DataLoader", "dataset": "__main__.Photos",
    "sampler": "torch.utils.data.sampler.RandomSampler", "batch_sampler": "torch.utils.data.sampler.BatchSampler",
    "batch": 64, "samples": 640, "batches": 10, "workers": 4, "prefetch": 2, "start_method": "fork",
    "drop_last": True, "pin_memory": False, "persistent_workers": True, "in_order": True, "iterable": False,
}  # fmt: skip
STREAM = {"windows": ["epoch", "val"], "dataset": "streams.Words", "iterable": True, "workers": 0, "in_order": False}
OTHER = {"windows": ["val"], "class": "ffcv.loader.loader.Loader", "batches": 3}
BUCKETED = {**TRAINED, "batch_sampler": "__main__.Bucketed", "batch": None}


def test_loaders_are_listed_with_the_runs_that_used_them():
    used = [[TRAINED, OTHER], [TRAINED, STREAM], [BUCKETED], []]
    runs = [replace(trained(number, 100.0), loaders=facts) for number, facts in enumerate(used)]
    assert [loader.runs for loader in loaders.analyze(runs)] == [["0", "1"], ["0"], ["1"], ["2"]]
    assert_golden("loaders", loaders.analyze(runs))
    assert loaders.analyze(runs[3:]) == []
