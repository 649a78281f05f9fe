"""Strategies; two real ranks over gloo are compared with one process that trains on the same samples."""

import json
from functools import cache
from multiprocessing import get_context

import pytest
import torch
from project import free_ports
from timed import repeat_of
from worker import ranked
from worker.ranked import EPOCHS, NAP_S, NAPS, SAMPLES, make_trainer

from epochmeter.results.rank_merge import merge_ranks
from epochmeter.shared.protocol import WindowClosed, WindowMeasured, WindowOpening, decode
from epochmeter.shared.record import Record
from epochmeter.worker import strategy as strategies
from epochmeter.worker.strategy import Distributed, Parallel, Shard, Single, rank_seed


@pytest.mark.parametrize(("count", "ranks"), [(12, 2), (13, 2), (13, 4), (5, 4)])
def test_shards_cover_all_samples_equally_in_training_and_once_in_evaluation(count, ranks):
    for padded in (True, False):
        shards = [Shard(range(count), rank, ranks, padded) for rank in range(ranks)]
        samples = [list(shard) for shard in shards]
        assert set().union(*samples) == set(range(count))
        assert [len(shard) for shard in shards] == [len(own) for own in samples]
        assert len({*map(len, samples)}) == 1 if padded else sum(map(len, samples)) == count


def test_data_parallel_trains_and_evaluates_on_all_gpus_or_on_one_device(monkeypatch):
    model, strategy = ranked.model(), Parallel(None)
    assert strategy.wrap(model, torch.device("cpu")) == (model, model)
    assert (strategy.replicas, Single(1).replicas, strategy.describe()) == (1, 1, {"gpus": []})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(strategies.nn, "DataParallel", lambda model, gpus: (model, gpus))
    assert strategy.wrap(model, torch.device("cuda")) == ((model, [0, 1]), (model, [0, 1]))
    assert strategy.replicas == 2


def test_rank_seeds_are_unique_across_seeds():
    seeds = [rank_seed(seed, rank) for seed in range(20) for rank in range(8)]
    assert len(set(seeds)) == len(seeds)
    assert [rank_seed(seed, 0) for seed in range(3)] == [0, 1, 2]


@pytest.fixture
def ranks(request, tmp_path_factory):
    """Results of two ranks, and their record."""
    return results_of_ranks(tmp_path_factory.getbasetemp() / f"ranks{repeat_of(request)}")


@cache
def results_of_ranks(folder):
    folder.mkdir()
    (port,) = free_ports(1)
    # Forking is fast, as torch is imported already, but a process with CUDA cannot train after it.
    context = get_context("spawn" if torch.cuda.is_available() else "fork")
    processes = [context.Process(target=ranked.main, args=(folder, rank, port), daemon=True) for rank in range(2)]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)], Record(folder)


def messages(lines, kind=object):
    return [message for message in map(decode, lines) if isinstance(message, kind)]


def test_node_reports_its_own_gpus(monkeypatch):
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1, "LOCAL_RANK": 0, "GROUP_RANK": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(strategies, "gpu_uuid", lambda device: "mine")
    strategy = Distributed(2, "torchrun", 30)
    strategy._device, strategy._backend = torch.device("cuda", 0), "nccl"
    monkeypatch.setattr(
        strategy, "all_gather", lambda own: [[(0, "another node's")] if isinstance(own, list) else {"rank": 0}, own]
    )
    description = strategy.describe()
    assert (description["gpus"], description["gpus_here"]) == (["another node's", "mine"], ["mine"])
    place = description["places"][1]
    assert (place["rank"], place["device"], place["gpu"]) == (1, "cuda:0", "mine")


def test_ddp_trains_like_one_process_with_the_global_batch(ranks, tmp_path):
    (first, second), record = ranks
    reference, trained = Record(tmp_path), make_trainer(Single(1))
    lines = ranked.measured(Single(1), tmp_path, trained, 8)  # the same samples in the same order
    places = first["description"].pop("places")
    assert [(place["rank"], place["device"]) for place in places] == [(0, "cpu"), (1, "cpu")]
    assert first["description"] == {"ranks": 2, "backend": "gloo", "gpus": [], "gpus_here": []}
    assert first["weights"] == second["weights"]
    for weights, expected in zip(first["weights"], trained.model.parameters(), strict=True):
        torch.testing.assert_close(torch.tensor(weights), expected.detach(), rtol=1e-5, atol=1e-6)
    count = EPOCHS * SAMPLES // 8
    assert list(record.losses())[:count] == pytest.approx(list(reference.losses()), rel=1e-5)
    assert len(record.steps()) // 4 == len(record.losses()) == count + NAPS // 4  # of the first rank
    actual, expected = (
        [merge_ranks(message.ranks) for message in messages(own, WindowMeasured)] for own in (first["windows"], lines)
    )
    assert [window.loss for window in actual] == pytest.approx([window.loss for window in expected], rel=1e-5)
    assert [window.accuracy for window in actual] == [window.accuracy for window in expected]
    assert [window.parts["samples"] for window in actual] == [24, 7, 24, 7]


def test_first_rank_sends_the_requests_and_all_ranks_start_before_any_ends(ranks):
    """An evaluation may be over in less than the other rank takes to begin: nothing passes between them there."""
    (first, second), _ = ranks
    kinds = [type(message) for message in messages(first["windows"])]
    assert (kinds, second["windows"]) == ([WindowOpening, WindowClosed, WindowMeasured] * 2 * EPOCHS, [])
    for message in messages(first["windows"], WindowMeasured)[::2]:
        opened, closed = zip(*((rank.opened_ns, rank.closed_ns) for rank in message.ranks), strict=True)
        assert max(opened) < min(closed)


def test_evaluation_uses_rank_0_buffers_and_uneven_shards_do_not_hang(ranks):
    first, second = ranks[0]
    assert first["means"][0] != second["means"][0]
    assert first["means"][1] == second["means"][1] == first["means"][0]
    assert (first["validation"]["weight"], second["validation"]["weight"]) == (3, 2)


@pytest.mark.timed
def test_slow_rank_has_the_stall_and_other_ranks_have_compute(ranks):
    (message,) = messages(ranks[0][0]["slow"], WindowMeasured)
    swift, slow = (rank.parts for rank in message.ranks)
    naps_s = NAPS * NAP_S
    assert naps_s <= slow["data_stall_s"] < naps_s + 0.1
    assert swift["data_stall_s"] < 0.1
    assert swift["compute_s"] > naps_s - 0.05
    naps_waited_s = naps_s - 0.05 - NAP_S  # the first nap may be over before the window opens
    assert naps_waited_s < swift["communication_s"] - slow["communication_s"] < naps_s + 0.1
    rows = ranks[1].rank_rows()
    assert len(rows) % (2 * 4 * message.rank_steps) == 0
    together = merge_ranks(message.ranks)
    assert together.rank_max["data_stall_s"] == slow["data_stall_s"]
    assert together.parts["data_stall_s"] == pytest.approx((swift["data_stall_s"] + slow["data_stall_s"]) / 2)
