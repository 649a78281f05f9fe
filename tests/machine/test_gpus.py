import pytest

from trainmeter.machine.gpus import used

FIRST, SECOND = "GPU-6d5a4f3e-0000", "GPU-6d77aaaa-1111"
TWO = [{"vendor": "nvidia", "uuid": FIRST}, {"vendor": "nvidia", "uuid": SECOND}]


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, [FIRST]),
        ("0", [FIRST]),
        ("1", [SECOND]),
        ("1,0", [SECOND]),
        (" 1 , 0", [SECOND]),
        (SECOND, [SECOND]),
        ("GPU-6d7", [SECOND]),
        ("GPU-6d", [FIRST]),
        (f"{SECOND},{FIRST}", [SECOND]),
        ("", []),
        ("-1", []),
        ("2", []),
        ("GPU-dead", []),
    ],
)
def test_a_process_trains_on_the_first_gpu_that_it_is_let_see(visible, found):
    assert used(TWO, visible) == found


def test_where_there_is_no_gpu_none_is_used():
    assert used([], None) == []


def test_gpus_of_others_are_not_numbered():
    assert used([{"vendor": "amd", "model": "MI300X"}, *TWO], "0") == [FIRST]


@pytest.mark.parametrize("visible", [None, "0"])
def test_a_gpu_whose_uuid_is_not_known_yet_is_not_taken_for_the_next(visible):
    unknown = {"vendor": "nvidia", "model": "H200"}
    assert used([unknown, TWO[1]], visible) == []
    assert used([unknown, TWO[1]], "1") == [SECOND]
