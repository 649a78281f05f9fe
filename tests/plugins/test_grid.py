"""Which points of a grid a sweep goes through, how often, in which order and under which numbers."""

import re
from collections import Counter

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from omegaconf import OmegaConf

from epochmeter.config.errors import InputError
from epochmeter.config.schema import GridOrder
from epochmeter.sweep import sweep_folder

Plugins.instance()  # loads Hydra's own plugins anew: what derives from them is imported after that
from hydra_plugins import grid as plugin  # noqa: E402
from hydra_plugins.grid import GridSweeper, draw_sample, shuffle_points  # noqa: E402

GRID = [[f"batch={batch}", f"workers={workers}"] for batch in range(8) for workers in range(6)]
REPEATED = [[f"repeat={repeat}", *point] for repeat in range(4) for point in GRID]


@pytest.fixture
def sweeper(tmp_path, monkeypatch):
    """sweeper(sample=3) -> a sweeper whose folder is this test's, and whose points nobody composes."""
    monkeypatch.setattr(plugin, "check_configurations", lambda points, sweeper: None)

    def made(max_batch_size=None, sample=None, repeats=None, order="grid", seed=0):
        sweeper = GridSweeper(max_batch_size, None, sample, repeats, GridOrder[order], seed)
        sweeper.config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path / "sweep")}}})
        return sweeper

    return made


def points(sweeper, *typed):
    """The points that a sweeper goes through, those of all its batches."""
    parsed = OverridesParser.create().parse_overrides(list(typed))
    return [point for batch in sweeper.split_arguments(parsed, sweeper.max_batch_size) for point in batch]


def test_sample_has_different_points_in_the_order_of_the_grid():
    found = draw_sample(GRID, 5, seed=0)
    places = [GRID.index(point) for point in found]
    assert len(set(places)) == 5
    assert places == sorted(places)


def test_sample_is_of_all_points_and_not_of_the_diagonal():
    pairs = {tuple(point) for seed in range(200) for point in draw_sample(GRID, 5, seed)}
    assert len(pairs) == len(GRID)


def test_the_same_seed_draws_the_same_points_and_another_others():
    assert draw_sample(GRID, 5, seed=7) == draw_sample(GRID, 5, seed=7)
    assert draw_sample(GRID, 5, seed=7) != draw_sample(GRID, 5, seed=8)


@pytest.mark.parametrize("sample", [None, 48, 49])
def test_sample_of_all_points_is_the_grid(sample):
    assert draw_sample(GRID, sample, seed=3) == GRID


def test_a_point_that_is_drawn_is_drawn_with_all_of_its_repeats():
    found = draw_sample(REPEATED, 5, seed=0)
    assert Counter(point[0] for point in found) == {f"repeat={repeat}": 5 for repeat in range(4)}
    assert {tuple(point[1:]) for point in found} == {tuple(point) for point in draw_sample(GRID, 5, seed=0)}


def test_random_order_is_a_permutation_by_its_seed():
    found = shuffle_points(GRID, seed=1)
    assert found != GRID
    assert sorted(found) == sorted(GRID)
    assert found == shuffle_points(GRID, seed=1)
    assert found != shuffle_points(GRID, seed=2)


def test_repeats_in_random_order_are_complete_blocks_each_with_a_permutation_of_its_own():
    found = shuffle_points(REPEATED, seed=0)
    blocks = [found[first : first + len(GRID)] for first in range(0, len(found), len(GRID))]
    assert [{point[0] for point in block} for block in blocks] == [{f"repeat={repeat}"} for repeat in range(4)]
    orders = [[point[1:] for point in block] for block in blocks]
    assert all(sorted(order) == sorted(GRID) for order in orders)
    assert len({tuple(map(tuple, order)) for order in orders}) == 4


def test_no_place_in_a_block_is_any_points_own():
    """Over many seeds each point is as often first as last: 600 draws of 6, 100 each but for chance."""
    firsts = Counter(tuple(shuffle_points(GRID[:6], seed)[0]) for seed in range(600))
    assert len(firsts) == 6
    assert all(60 < count < 140 for count in firsts.values())


def test_repeats_wherever_they_were_typed_in_the_grid_make_blocks():
    grid = [[f"batch={batch}", f"repeat={repeat}"] for batch in (8, 16, 32) for repeat in (0, 1)]
    assert [point[1] for point in shuffle_points(grid, seed=0)] == ["repeat=0"] * 3 + ["repeat=1"] * 3


def test_without_a_sample_the_grid_is_hydras_own(sweeper):
    found = points(sweeper(), "batch=8,16", "power_limit=range(100,251,30)", "a=1")
    assert len(found) == 2 * 6
    assert found[0] == ["batch=8", "power_limit=100", "a=1"]
    assert found[-1] == ["batch=16", "power_limit=250", "a=1"]


def test_the_points_are_noted_by_their_numbers_before_the_first_is_run(sweeper, tmp_path):
    found = points(sweeper(order="random", seed=5), "batch=8,16,32", "workers=0")
    noted = sweep_folder.read_points(tmp_path / "sweep")
    assert noted.overrides == found
    assert noted.varied_keys == {"batch=8", "batch=16", "batch=32"}


def test_size_of_the_sample_and_of_the_grid_is_printed(sweeper, capsys):
    assert len(points(sweeper(sample=2), "batch=8,16,32", "repeat=0,1")) == 4
    assert capsys.readouterr().out == "sweep.sample=2: 2 of the grid's 3 configurations.\n"
    assert len(points(sweeper(sample=4), "batch=8,16,32")) == 3
    assert capsys.readouterr().out == "sweep.sample=4: all 3 of the grid's configurations.\n"


@pytest.mark.parametrize(
    ("completed", "said"),
    [
        (3, "3 of 3 runs are completed in sweep: nothing to do unless a default or the dataset has changed.\n"),
        (2, "2 of 3 runs are completed in sweep: 1 left to run.\n"),
        (0, ""),
    ],
)
def test_completed_runs_of_the_same_command_are_counted_before_anything_is_composed(
    sweeper, tmp_path, monkeypatch, capsys, completed, said
):
    points(sweeper(), "batch=8,16,32")
    for number in range(completed):
        (run := tmp_path / "sweep" / str(number)).mkdir()
        (run / "completed.json").write_text("{}")
    monkeypatch.setattr(plugin, "check_configurations", lambda *asked: print("composing"))
    points(sweeper(), "batch=8,16,32")
    assert capsys.readouterr().out == f"{said}composing\n"


def test_points_are_checked_in_batches_of_the_configured_size(sweeper):
    parsed = OverridesParser.create().parse_overrides(["batch=1,2,3,4,5"])
    assert [len(batch) for batch in sweeper(2, sample=3).split_arguments(parsed, 2)] == [2, 1]


@pytest.mark.parametrize("key", ["sample", "repeats"])
@pytest.mark.parametrize("count", [0, -1])
def test_none_of_something_is_refused_with_what_to_give(sweeper, key, count):
    with pytest.raises(InputError, match=f"`sweep.{key}={count}` is not valid"):
        sweeper(**{key: count}).sweep(["batch=8,16"])


@pytest.mark.parametrize(
    ("order", "typed", "warned"),
    [("grid", "repeat=0,1,2", True), ("random", "repeat=0,1,2", False), ("grid", "repeat=1", False)],
)
def test_typed_list_of_repeats_warns_unless_the_order_is_random(sweeper, monkeypatch, capsys, order, typed, warned):
    monkeypatch.setattr(plugin.BasicSweeper, "sweep", lambda self, arguments: arguments)
    sweeper(order=order).sweep(["batch=8,16", typed])
    assert ("hint: use sweep.repeats=3 sweep.order=random" in capsys.readouterr().out) == warned


def test_repeats_set_in_two_ways_are_refused(sweeper):
    with pytest.raises(InputError, match=r"`repeat=0,1` and `sweep\.repeats=3` both set the repeats"):
        sweeper(repeats=3).sweep(["batch=8,16", "repeat=0,1"])


@pytest.mark.system
def test_the_same_command_draws_the_same_points_and_goes_on_and_another_seed_is_another_sweep(project):
    asked = project.quick("-m", batch="64,128,256", workers="0,1", **{"sweep.sample": 2})
    first, again, other = (project.run("train", *asked, *more) for more in ((), (), ("sweep.seed=1",)))
    assert [done.returncode for done in (first, again, other)] == [0, 0, 0], first.stdout + first.stderr
    assert len(re.findall(r"^\d .*skipped", again.stdout, re.MULTILINE)) == 2
    one, two = project.sweeps()
    assert [len([path for path in sweep_folder.iterdir() if path.name.isdigit()]) for sweep_folder in (one, two)] == [
        2,
        2,
    ]
    assert "sweep.sample=2: 2 of the grid's 6 configurations." in first.stdout
