"""Scaling over several devices, against known answers."""

from dataclasses import replace

import pytest
from sweeps import trained

from epochmeter.report.analyses.scaling import STRONG, WEAK, Scaling, Unpaired, overhead, page, scalings, sentences
from epochmeter.report.statistics import Estimate


def one(found):
    (result,) = scalings(found)
    assert isinstance(result, Scaling)
    return result


def ddp(number, speed, **keys):
    return trained(number, speed, strategy="ddp", ranks=2, **keys)


def test_same_batch_per_rank_is_weak_scaling():
    result = one([trained(0, 100.0), ddp(1, 190.0)])
    assert (result.kind, result.devices, result.device_batch, result.global_batch) == (WEAK, 2, 64, 128)
    assert (result.speedup.value, result.efficiency.value) == pytest.approx((1.9, 0.95))
    assert (result.numbers, result.one_numbers) == ([1], [0])


def test_same_global_batch_is_strong_scaling():
    result = one([trained(0, 100.0, batch=128), ddp(1, 150.0)])
    assert (result.kind, result.speedup.value) == (STRONG, pytest.approx(1.5))
    assert result.overhead_s is None


def test_both_kinds_of_scaling_are_compared():
    result = scalings([trained(0, 100.0), trained(1, 110.0, batch=128), ddp(2, 198.0)])
    assert {each.kind: each.speedup.value for each in result} == pytest.approx({WEAK: 1.98, STRONG: 1.8})


def test_data_parallel_splits_its_batch():
    result = one([trained(0, 100.0), trained(1, 130.0, strategy="dp", ranks=2, batch=128)])
    assert (result.kind, result.device_batch, result.global_batch) == (WEAK, 64, 128)


def test_one_rank_of_ddp_replaces_a_single_device():
    found = [trained(0, 98.0, strategy="ddp"), ddp(1, 196.0)]
    assert one(found).speedup.value == pytest.approx(2.0)
    assert one([*found, trained(2, 100.0)]).one_numbers == [2]


def test_overhead_is_the_longer_compute_time_per_step():
    # 1000 samples: 16 steps of 64 in 9 s of compute on one, 8 a rank in 4.9 s on two: 562.5 and 612.5 ms a step.
    result = one([trained(0, 100.0), ddp(1, 187.5, steady={"compute_s": 4.9})])
    assert (result.step_s, result.overhead_s.value) == pytest.approx((0.5625, 0.05))
    assert "50.0 ms of compute time per step, 8.9 % of one device's 0.562 s" in sentences(result)[1]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (Estimate(0.001, -0.001, 0.003), "not differ significantly from one device's 0.100 s: 1.00 ms (-1.00 to 3.00)"),
        (Estimate(0.0), "not differ significantly"),
        (Estimate(0.0015), "not differ significantly"),
        (Estimate(0.0025), "add 2.50 ms of compute time per step, 2.5 %"),
        (Estimate(0.0015, 0.001, 0.002), "add 1.50 ms ± 33.3 % of compute time per step, 1.5 %"),
        (Estimate(-0.02, -0.03, -0.01), "Something else differs"),
        (Estimate(0.02, 0.01, 0.03), "add 20.0 ms ± 50.0 % of compute time per step, 20.0 %"),
    ],
)
def test_insignificant_or_negative_overhead_is_stated(more, text):
    assert text in overhead(more, 0.1, "ddp")


def test_repeats_give_intervals():
    shown = one(
        [trained(n, 100.0 + n, repeat=n) for n in range(3)] + [ddp(3 + n, 190.0 + n, repeat=n) for n in range(3)]
    )
    assert shown.speedup.low < 1.9 < shown.speedup.high
    assert shown.numbers == [3, 4, 5]
    assert "no significant difference" not in sentences(shown)[0]
    noisy = one(
        [trained(n, 100.0 + 40 * n, repeat=n) for n in range(2)]
        + [ddp(3 + n, 100.0 + 50 * n, repeat=n) for n in range(2)]
    )
    assert "no significant difference" in sentences(noisy)[0]


def test_seeds_are_repeats():
    assert one([trained(0, 100.0, seed=0), trained(1, 102.0, seed=1), ddp(2, 190.0, seed=2)]).one_numbers == [0, 1]


def test_configurations_that_differ_in_more_are_not_compared():
    (result,) = scalings([trained(0, 100.0, model="resnet50"), ddp(1, 190.0)])
    assert isinstance(result, Unpaired)
    assert result.missing == "no run of strategy=single batch=64 or 128 to compare with ddp x 2"


def test_one_device_of_another_host_is_named_but_not_compared():
    (result,) = scalings([replace(trained(0, 100.0), host="h1"), replace(ddp(1, 190.0), host="h2")])
    assert (result.title, result.missing) == (
        "resnet152 on jpeg, h2",
        "no run of strategy=single batch=64 or 128 to compare with ddp x 2 on its host: it ran on h1",
    )


def test_each_model_has_its_own_scaling():
    found = [trained(n, 100.0 * (1 + n), model=model) for n, model in enumerate(["resnet50", "resnet152"])]
    found += [ddp(2 + n, 150.0 * (1 + n), model=model) for n, model in enumerate(["resnet50", "resnet152"])]
    assert [each.title for each in scalings(found)] == ["resnet50 on jpeg", "resnet152 on jpeg"]
    assert [each.speedup.value for each in scalings(found)] == pytest.approx([1.5, 1.5])


def test_titles_name_the_host_if_there_are_several():
    found = [replace(each, host=host) for host, each in zip(("h1", "h1", "h2", "h2"), (
        trained(0, 100.0), ddp(1, 190.0), trained(2, 100.0), ddp(3, 180.0)
    ), strict=True)]  # fmt: skip
    assert [(each.title, each.numbers) for each in scalings(found)] == [
        ("resnet152 on jpeg, h1", [1]),
        ("resnet152 on jpeg, h2", [3]),
    ]


def test_without_several_devices_there_is_no_scaling():
    assert scalings([trained(0, 100.0), trained(1, 120.0, batch=128)]) == []
    assert page([trained(0, 100.0)]) is None
    assert page([]) is None


def test_unknown_number_of_devices_is_not_guessed():
    (result,) = scalings([trained(0, 100.0), replace(trained(1, 150.0, strategy="dp", ranks=2), devices=None)])
    assert isinstance(result, Unpaired)
    assert "the number of devices of dp is not known" in result.missing


def test_run_without_speed_is_not_compared():
    assert scalings([trained(0, 100.0), ddp(1, 190.0, steady={"samples_per_s": None})]) == []


def test_superlinear_scaling_is_questioned():
    assert "something else differs" in sentences(one([trained(0, 100.0), ddp(1, 230.0)]))[1]
    assert "something else differs" not in sentences(one([trained(0, 100.0), ddp(1, 203.0)]))[1]
    spread = [ddp(1 + n, 180.0 + 60 * n, repeat=n) for n in range(2)]
    chance = sentences(one([trained(0, 100.0, repeat=0), trained(3, 99.0, repeat=1), *spread]))
    assert not any(text.startswith("Scaling is superlinear") for text in chance)


# Energy and memory


def test_energy_per_sample_is_a_multiple():
    result = one(
        [trained(0, 100.0, steady={"energy_per_sample_j": 2.0}), ddp(1, 190.0, steady={"energy_per_sample_j": 2.2})]
    )
    assert result.energy.value == pytest.approx(1.1)
    assert "Energy per sample: 1.10 times that on one device." in sentences(result)


@pytest.mark.parametrize(("joules", "missing"), [({}, 2), ({"energy_per_sample_j": 2.0}, 1)])
def test_energy_missing_in_some_runs_has_no_ratio(joules, missing):
    result = one([trained(0, 100.0), ddp(1, 190.0, steady=joules)])
    assert (result.energy, result.no_energy) == (None, f"{missing} of 2 runs measured none: no meter here")


def test_zero_energy_has_no_ratio():
    found = [trained(0, 100.0, steady={"energy_per_sample_j": 0.0}), ddp(1, 190.0, steady={"energy_per_sample_j": 2.0})]
    assert one(found).energy is None


def test_energies_of_different_parts_are_not_compared():
    joules = {"energy_per_sample_j": 2.0}
    result = one([trained(0, 100.0, steady=joules), replace(ddp(1, 190.0, steady=joules), energy_covers="module")])
    assert result.energy is None
    assert result.no_energy == "it covers different things: GPUs used, module"


def test_memory_is_per_device_and_absent_if_unknown():
    result = one([trained(0, 100.0, steady={"gpu_memory_peak_bytes": 8e9}),
                ddp(1, 190.0, steady={"gpu_memory_peak_bytes": 9e9})])  # fmt: skip
    assert (result.one_memory_bytes, result.memory_bytes) == (8e9, 9e9)
    assert one([trained(0, 100.0), ddp(1, 190.0)]).memory_bytes is None


# The page


def test_page_has_the_answer_and_notes():
    result = page([trained(0, 100.0), ddp(1, 190.0)])
    assert (result.name, result.numbers) == ("scaling", [0, 1])
    (section,) = result.sections
    answer, *notes = section.sentences
    assert answer.startswith(
        "resnet152 on jpeg: ddp on 2 ranks, batch 64 per device: 1.90 times the samples/s of one device with the same "
        "batch per device (weak scaling); scaling efficiency 95.0 %. Gradient exchange"
    )
    assert notes[0].startswith("A data stall of one rank appears as compute")
    assert any("sweep.repeats=3 sweep.order=random" in text for text in notes)
    assert "Energies are not compared: 2 of 2 runs measured none: no meter here." in notes
    (grid,) = section.grids
    assert grid.rows[0][1:6] == ["ddp", "2", "64", "weak", "190"]
    assert grid.rows[0][-2:] == ["-", "-"]


def test_configuration_has_one_sentence_and_a_row_per_kind():
    (section,) = page(
        [trained(0, 100.0), trained(1, 110.0, batch=128), ddp(2, 198.0), ddp(3, 210.0, batch=128)]
    ).sections
    words = [text for text in section.sentences if "scaling efficiency" in text]
    assert [("batch 64 per device" in text, "(weak scaling)" in text) for text in words] == [
        (True, True),
        (False, True),
    ]
    assert [row[3:5] for row in section.grids[0].rows] == [["64", "weak"], ["64", "strong"], ["128", "weak"]]


def test_missing_runs_are_named():
    (section,) = page([ddp(0, 190.0)]).sections
    assert section.sentences == [
        "resnet152 on jpeg: no scaling: no run of strategy=single batch=64 or 128 to compare with ddp x 2."
    ]
