"""Grids: samples, repeats, random order, and the numbers of runs."""

from importlib import import_module
from types import GenericAlias, SimpleNamespace

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from sweeps import row

from epochmeter.results.run_result import RunResult
from epochmeter.results.sweep_files import Points, read_points
from epochmeter.shared.problem import InputError, Problem
from epochmeter.sweep.grid import draw_sample, has_common_failure, shuffle_points
from hydra_plugins.grid import GridSweeper

GRID = [[f"batch={batch}", f"workers={workers}"] for batch in range(8) for workers in range(6)]
REPEATED = [[f"repeat={repeat}", *point] for repeat in range(4) for point in GRID]


@pytest.fixture
def sweeper(tmp_path, monkeypatch):
    """sweeper(sample=3) -> a sweeper in the folder of this test that composes no configuration."""
    monkeypatch.setattr(GridSweeper, "check_configurations", lambda sweeper, points: None)

    def make(sample=None, repeats=None, order="grid", seed=0, prior=None):
        sweeper = GridSweeper(None, sample, repeats, SimpleNamespace(name=order), seed)
        folder = {"sweep": {"dir": str(tmp_path / "sweep")}}
        sweeper.config = OmegaConf.create({"hydra": folder, "sweep": {"prior": prior}})
        return sweeper

    return make


def points(sweeper, *overrides):
    """Return the points of a sweeper."""
    (batch,) = sweeper.split_arguments(OverridesParser.create().parse_overrides(list(overrides)), None)
    return batch


def test_sample_is_drawn_by_its_seed_from_all_points_in_their_order_with_all_repeats():
    samples = [draw_sample(GRID, 5, seed) for seed in (0, 0, 1)]
    assert samples[0] == samples[1] != samples[2]
    places = [GRID.index(point) for point in samples[0]]
    assert places == sorted(set(places))
    assert len(places) == 5
    assert len({tuple(point) for seed in range(200) for point in draw_sample(GRID, 5, seed)}) == len(GRID)
    assert [draw_sample(GRID, sample, seed=3) for sample in (None, 48, 49)] == [GRID] * 3
    assert draw_sample(REPEATED, 5, seed=0) == [[f"repeat={n}", *point] for n in range(4) for point in samples[0]]


def test_random_order_is_by_its_seed_and_has_repeats_as_blocks_with_own_permutations():
    order = shuffle_points(REPEATED, seed=0)
    assert order == shuffle_points(REPEATED, seed=0) != shuffle_points(REPEATED, seed=1)
    blocks = [order[first : first + len(GRID)] for first in range(0, len(order), len(GRID))]
    assert [{point[0] for point in block} for block in blocks] == [{f"repeat={repeat}"} for repeat in range(4)]
    orders = [[point[1:] for point in block] for block in blocks]
    assert all(sorted(order) == sorted(GRID) for order in orders)
    assert len({tuple(map(tuple, order)) for order in orders}) == 4
    grid = [[f"batch={batch}", f"repeat={repeat}"] for batch in (8, 16, 32) for repeat in (0, 1)]
    assert [point[1] for point in shuffle_points(grid, seed=0)] == ["repeat=0"] * 3 + ["repeat=1"] * 3


def test_points_without_a_sample_are_hydra_s_and_recorded_before_the_first_run(sweeper, tmp_path):
    configurations = points(sweeper(), "batch=8,16", "power_limit=range(100,251,30)", "a=1")
    assert configurations == [[f"batch={b}", f"power_limit={w}", "a=1"] for b in (8, 16) for w in range(100, 251, 30)]
    for typed, values in (
        (r"power_limit=id:2,a\\\:b,'c:d','e f',null", ["id:2", r"a\\:b", "'c:d'", "'e f'", "null"]),
        ("power_limit=true,False,'True'", ["true", "false", "'True'"]),
    ):
        assert points(sweeper(), typed) == [[f"power_limit={value}"] for value in values]
    shuffled = points(sweeper(order="random", seed=5), "batch=8,16,32", "workers=0")
    varied = frozenset({"batch=8", "batch=16", "batch=32"})
    assert read_points(tmp_path / "sweep") == (shuffled, varied, frozenset())


def test_repeats_are_rounds_of_all_configurations_also_of_an_experiment_unless_the_user_lists_them(
    sweeper, monkeypatch, composed
):
    monkeypatch.setattr(BasicSweeper, "sweep", lambda sweeper, arguments: [*sweeper._parse_config(), *arguments])
    experiment = composed("experiment=stalls")
    repeating = sweeper(repeats=experiment.sweep.repeats)
    repeating.params = {"data_source": "replay,cached"}
    overrides = repeating.sweep(["batch=8"])
    assert points(repeating, *overrides) == [
        [f"repeat={number}", f"data_source={source}", "batch=8"]
        for number in range(3)
        for source in ("replay", "cached")
    ]
    listed = sweeper(repeats=experiment.sweep.repeats)
    assert points(listed, *listed.sweep(["repeat=5", "batch=8"])) == [["repeat=5", "batch=8"]]
    run = row(0, "synthetic", 1.0, job_keys={"repeat": 1, "sweep": OmegaConf.to_container(experiment.sweep)})
    assert run.round == (run.name.partition("/")[0], 1), "so that runs are compared in their round"


def test_invalid_sample_and_repeats_are_refused(sweeper):
    for keys in ({"sample": 0}, {"repeats": 10**9}, {"seed": -1}):
        with pytest.raises(InputError, match=rf"`sweep\.{next(iter(keys))}=.*` is not valid"):
            sweeper(**keys).sweep(["batch=8,16"])
    with pytest.raises(InputError, match=r"`repeat=0,1` and `sweep\.repeats=3` both set the repeats"):
        sweeper(repeats=3).sweep(["batch=8,16", "repeat=0,1", "sweep.repeats=3"])
    with pytest.raises(InputError, match=r"`sweep\.prior=` is for searches"):
        sweeper(prior="multirun/earlier").sweep(["batch=8,16"])


def test_configurations_of_ended_runs_are_not_kept(composed, tmp_path):
    """The configurations of 10,000 runs would take 2 GB."""
    hydra, overrides = GlobalHydra.instance().hydra, ["batch=8,16", f"hydra.sweep.dir={tmp_path}"]
    ((first, last),) = hydra.multirun("train", lambda config: config.batch, overrides, with_log_configuration=False)
    assert (first.return_value, last.return_value) == (8, 16)
    assert {first.cfg, first.hydra_cfg, last.cfg, last.hydra_cfg} == {None}


def test_no_plugin_module_has_a_type_alias_which_hydra_refuses_on_python_3_10():
    modules = [import_module(f"hydra_plugins.{name}") for name in ("grid", "search", "slurm")]
    assert [name for module in modules for name, value in vars(module).items() if type(value) is GenericAlias] == []


FOUR = [["compile=true", "batch=8"], ["compile=true", "batch=16"], ["compile=false", "batch=8"], ["a=1"]]


@pytest.mark.parametrize(
    ("ends", "runs", "is_over"),
    [
        (["exception no GPU\nsee 0", "exception no GPU\nsee 1", "exception no GPU"], FOUR, True),
        (["job no GPU"] * 3, FOUR, True),
        (["job no GPU"] * 3, [["repeat=0"], ["repeat=1"], ["repeat=2"], ["repeat=3"]], True),
        (["job no GPU"] * 3, FOUR[:3], False),
        (["job no GPU"] * 2, FOUR[1:], False),
        (["job no GPU", "job no GPU", "job no disk"], FOUR, False),
        (["job no GPU", "exception no GPU", "job no GPU"], FOUR, False),
        (["oom no memory"] * 3, FOUR, False),
        (["exception exit code 1"] * 3, FOUR, False),
        (["job no compiler"] * 3, [*FOUR[:2], ["compile=true", "batch=32"], ["compile=false", "batch=8"]], False),
        ([None] * 3, FOUR, False),
    ],
    ids=["training", "refused", "repeats", "last run", "two", "other error", "other kind", "memory", "script",
         "one value", "completed"],
)  # fmt: skip
def test_grid_ends_if_its_first_runs_have_the_same_error_with_two_values_of_each_key(ends, runs, is_over):
    overrides = frozenset(text for run in runs for text in run if text != "a=1")
    results = [RunResult(number, run) for number, run in enumerate(runs[: len(ends)])]
    for result, end in zip(results, ends, strict=True):
        if end:
            code, message = end.split(" ", 1)
            result.set_failed(Problem(message, code=code))
            result.exit_code = 1 if end.endswith("exit code 1") else None
    assert has_common_failure(Points(runs, overrides), results) == is_over
