import pytest

from trainmeter.machine.gpus import used

FIRST = {"vendor": "nvidia", "bus": "0000:01:00.0", "minor": "0", "uuid": "GPU-6d5a4f3e-0000"}
SECOND = {"vendor": "nvidia", "bus": "0000:02:00.0", "minor": "1", "uuid": "GPU-6d77aaaa-1111"}
TWO = [FIRST, SECOND]


def anyone(gpu):
    return True


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, [FIRST]),
        ("0", [FIRST]),
        ("1", [SECOND]),
        ("1,0", [SECOND]),
        (" 1 , 0", [SECOND]),
        (SECOND["uuid"], [SECOND]),
        ("GPU-6d7", [SECOND]),
        ("GPU-6d", [FIRST]),
        (f"{SECOND['uuid']},{FIRST['uuid']}", [SECOND]),
        ("", []),
        ("-1", []),
        ("2", []),
        ("GPU-dead", []),
    ],
)
def test_a_process_trains_on_the_first_gpu_that_it_is_let_see(visible, found):
    assert used(TWO, visible, anyone) == found


def test_where_there_is_no_gpu_none_is_used():
    assert used([], None, anyone) == []


def test_gpus_of_others_are_not_numbered():
    assert used([{"vendor": "amd", "model": "MI300X"}, *TWO], "0", anyone) == [FIRST]


def test_a_clusters_job_numbers_the_gpus_that_it_may_open():
    assert used(TWO, "0", may_open=lambda gpu: gpu["minor"] == "1") == [SECOND]


@pytest.mark.parametrize("visible", [None, "0"])
def test_a_gpu_whose_uuid_is_not_known_yet_is_used_all_the_same(visible):
    unknown = {"vendor": "nvidia", "model": "H200", "bus": "0000:01:00.0"}
    assert used([unknown, SECOND], visible, anyone) == [unknown]
    assert used([unknown, SECOND], "1", anyone) == [SECOND]
