"""Which points of a grid a sweep goes through."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException

Plugins.instance()  # loads Hydra's own plugins anew: what derives from them is imported after that
from hydra_plugins.sample import SampleSweeper, drawn  # noqa: E402


class Unchecked(SampleSweeper):
    """A sweeper whose points nobody composes."""

    def check(self, points):
        pass


GRID = [[f"batch={batch}", f"workers={workers}"] for batch in range(8) for workers in range(6)]


def points(sweeper, *typed):
    """The points that a sweeper goes through, those of all its batches."""
    parsed = OverridesParser.create().parse_overrides(list(typed))
    return [point for batch in sweeper.split_arguments(parsed, sweeper.max_batch_size) for point in batch]


def test_so_many_different_points_of_the_grid_are_drawn_in_its_order():
    found = drawn(GRID, 5, seed=0)
    places = [GRID.index(point) for point in found]
    assert len(set(places)) == 5
    assert places == sorted(places)


def test_points_are_of_the_whole_grid_rather_than_its_diagonal():
    pairs = {tuple(point) for seed in range(200) for point in drawn(GRID, 5, seed)}
    assert len(pairs) == len(GRID)


def test_the_same_seed_draws_the_same_points_and_another_others():
    assert drawn(GRID, 5, seed=7) == drawn(GRID, 5, seed=7)
    assert drawn(GRID, 5, seed=7) != drawn(GRID, 5, seed=8)


@pytest.mark.parametrize("sample", [None, 48, 49])
def test_the_whole_grid_is_gone_through_where_no_fewer_are_asked_for(sample):
    assert drawn(GRID, sample, seed=3) == GRID


def test_without_a_sample_the_grid_is_hydras_own():
    found = points(Unchecked(None, None, sample=None, seed=0), "batch=8,16", "power_limit=range(100,251,30)", "a=1")
    assert len(found) == 2 * 6
    assert found[0] == ["batch=8", "power_limit=100", "a=1"]
    assert found[-1] == ["batch=16", "power_limit=250", "a=1"]


def test_how_many_were_drawn_is_said_and_that_there_are_no_more(capsys):
    assert len(points(Unchecked(None, None, sample=2, seed=0), "batch=8,16,32")) == 2
    assert capsys.readouterr().out == "sweep.sample=2: 2 of the grid's 3 points.\n"
    assert len(points(Unchecked(None, None, sample=4, seed=0), "batch=8,16,32")) == 3
    assert capsys.readouterr().out == "sweep.sample=4: 3 of the grid's 3 points. There are no 4.\n"


def test_points_are_run_in_batches_of_the_size_asked_for():
    parsed = OverridesParser.create().parse_overrides(["batch=1,2,3,4,5"])
    batches = Unchecked(2, None, sample=3, seed=0).split_arguments(parsed, 2)
    assert [len(batch) for batch in batches] == [2, 1]


@pytest.mark.parametrize("sample", [0, -1])
def test_a_sample_of_nothing_is_refused_with_what_to_give(sample):
    with pytest.raises(HydraException, match=f"sweep.sample={sample}: give 1 or more"):
        SampleSweeper(None, None, sample, seed=0).sweep(["batch=8,16"])


@pytest.mark.system
def test_the_same_command_draws_the_same_points_and_goes_on_and_another_seed_is_another_sweep(project):
    asked = project.quick("-m", batch="64,128,256", workers="0,1", **{"sweep.sample": 2})
    first, again, other = (project.run("train", *asked, *more) for more in ((), (), ("sweep.seed=1",)))
    assert [done.returncode for done in (first, again, other)] == [0, 0, 0], first.stdout + first.stderr
    assert again.stdout.count("whole before") == 2
    one, two = project.sweeps()
    assert [len([path for path in sweep.iterdir() if path.name.isdigit()]) for sweep in (one, two)] == [2, 2]
    assert "sweep.sample=2: 2 of the grid's 6 points." in first.stdout
