"""The points of a sweep: what makes runs one, and how they are called."""

from dataclasses import replace

from sweeps import trained

from epochmeter.report.runs.configuration import group_repeats, groups


def test_repeats_of_a_job_are_one_point():
    found = group_repeats([trained(number, 100.0, repeat=number, batch=8 + number // 2) for number in range(4)])
    assert [point.numbers for point in found] == [[0, 1], [2, 3]]
    assert [each.title for each in found] == ["batch 8", "batch 9"]


def test_the_same_job_on_another_host_is_another_point_and_is_called_by_it():
    hosts = ["nano", "orin", "nano"]
    found = group_repeats([replace(trained(number, 100.0), host=host) for number, host in enumerate(hosts)])
    assert [(point.numbers, point.title.rpartition(", ")[2]) for point in found] == [([0, 2], "nano"), ([1], "orin")]
    on = [replace(trained(n, 100.0, batch=batch), host=host) for n, (host, batch) in
          enumerate([("nano", 8), ("h200", 8), ("h200", 16)])]  # fmt: skip
    assert [[point.numbers for point in group] for group in groups(group_repeats(on), ["batch"])] == [[[0]], [[1], [2]]]


def test_equal_titles_have_run_numbers():
    found = group_repeats([trained(0, 100.0, evaluation={"every": 1}), trained(1, 100.0, evaluation={"every": 2})])
    assert [each.title for each in found] == ["resnet152, batch 64 (run 0)", "resnet152, batch 64 (run 1)"]


def test_title_has_the_model_without_the_override_of_its_name():
    models = ["resnet50", "resnet152"]
    runs = [trained(n, 100.0, model=model, typed={"model.name": model}) for n, model in enumerate(models)]
    assert [each.title for each in group_repeats(runs)] == models
