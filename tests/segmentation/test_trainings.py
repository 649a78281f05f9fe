"""Which windows of a process belong to the same training, from events at known times, and from real optimizers."""

import pytest
import torch
from scripted import MILLISECOND, Script, windows_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epochmeter.segmentation.process import ProcessWindows
from epochmeter.shared import events

GENERATOR, DISCRIMINATOR = 21, 22


def epoch(script, *optimizers, evaluates=False):
    """Write a pass in which each optimizer steps once per batch, and an evaluation after it."""
    number = 10 + script.now_ns // MILLISECOND
    script.begin(number, length=2)
    for _ in range(2):
        script.fetch(number)
        for optimizer in optimizers:
            script.write(events.STEP, 10, 0.1, optimizer)
    script.end(number)
    if evaluates:
        script.evaluate(number + 5)


def steps(script, count, optimizer, learning_rate=0.1):
    """Write optimizer steps outside of passes."""
    for _ in range(count):
        script.write(events.STEP, 10, learning_rate, optimizer)


def trainings(process):
    """Return the final number of the training of each window."""
    return [process.trainings[window.training] for window in process.windows]


@pytest.mark.parametrize(
    ("acts", "expected"),
    [
        ([[1], [1], [1]], [0, 0, 0]),
        ([[1], [1], [2], [2], [3]], [0, 0, 1, 1, 2]),
        ([[GENERATOR, DISCRIMINATOR]] * 3, [0, 0, 0]),
        ([[GENERATOR], [DISCRIMINATOR], [GENERATOR]], [0, 0, 0]),
        ([[1], [2], [3], [2]], [0, 1, 1, 1]),
        ([[1], [2], [1], [3]], [0, 0, 0, 1]),
        ([[1], [1, 2], [2]], [0, 0, 0]),
    ],
    ids=["one", "trials", "gan", "phases", "later phases", "phases, then a trial", "handed over within an epoch"],
)
def test_training_begins_with_an_optimizer_if_the_earlier_ones_do_not_step_again(acts, expected):
    script = Script()
    for optimizers in acts:
        epoch(script, *optimizers)
    assert trainings(windows_of(script)) == expected


def test_evaluation_belongs_to_the_training_before_it():
    script = Script()
    epoch(script, 1, evaluates=True)
    epoch(script, 2, evaluates=True)
    process = windows_of(script)
    assert [window.name for window in process.windows] == ["epoch", "val", "epoch", "val"]
    assert trainings(process) == [0, 0, 1, 1]


def test_training_is_known_for_each_window_as_it_ends_and_corrected_later():
    script, process = Script(), ProcessWindows(500)
    found = []
    for optimizer in (1, 2, 1, 3):
        epoch(script, optimizer)
        process.add({0: script.events})
        script.events = []
        found.append(process.windows[-1].training)
    assert found == [0, 1, 0, 2]
    assert [*process.trainings] == [0, 0, 1]


def test_optimizers_of_the_same_parameters_are_one_training():
    script, process = Script(), ProcessWindows(500)
    for number, earlier in ((1, []), (2, [1]), (3, [])):
        process.add_facts({"kind": "optimizer", "object": number, "class": "torch.optim.SGD", "earlier": earlier})
    for optimizer in (1, 2, 3):
        epoch(script, optimizer)
    process.add({0: script.events}, is_final=True)
    assert trainings(process) == [0, 0, 1]


def test_backward_passes_before_the_first_step_are_part_of_its_training():
    script = Script()
    script.begin(1, length=2)
    for _ in range(2):
        script.fetch(1)
        script.write(events.BACKWARD, 10)
    script.end(1)
    epoch(script, 7)
    epoch(script, 8)
    assert trainings(windows_of(script)) == [0, 0, 1]


def test_trainings_of_two_threads_do_not_end_each_other():
    first, second = Script(), Script()
    second.now_ns = 5 * MILLISECOND
    for script, optimizers in ((first, (1, 3)), (second, (2, 4))):
        for optimizer in optimizers:
            epoch(script, optimizer)
    assert trainings(windows_of(first, second)) == [0, 1], "the other thread is not measured"


def test_windows_of_counted_steps_end_before_the_next_training():
    script = Script()
    steps(script, 8, 1, learning_rate=0.5)
    steps(script, 12, 2, learning_rate=0.25)
    process = ProcessWindows(5)
    process.add({0: script.events}, is_final=True)
    assert [(window.parts["steps"], window.is_partial) for window in process.windows] == [
        *((5, False), (2, True)),
        *((5, False), (5, False), (1, True)),
    ]
    assert [window.parts["learning_rate"] for window in process.windows] == [0.5, 0.5, 0.25, 0.25, 0.25]
    assert [len(window.rows) // 4 for window in process.windows] == [5, 2, 5, 5, 1]
    assert trainings(process) == [0, 0, 1, 1, 1]
    assert process.windows[2].opened_ns == 90 * MILLISECOND, "the end of the first step of the second training"


def test_counted_steps_of_alternating_optimizers_are_one_training():
    script = Script()
    for _ in range(4):
        steps(script, 3, DISCRIMINATOR)
        steps(script, 1, GENERATOR)
    process = ProcessWindows(5)
    process.add({0: script.events}, is_final=True)
    assert [window.parts["steps"] for window in process.windows] == [5, 5, 5]
    assert trainings(process) == [0, 0, 0]


def fit(script, model, optimizer, epochs=1):
    data = TensorDataset(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long))
    script.model, script.optimizer = model, optimizer
    for _ in range(epochs):
        script.train(DataLoader(data, batch_size=4))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_new_model_and_optimizer_are_a_new_training_even_at_the_same_address(script):
    for _ in range(4):
        model = nn.Linear(4, 2)
        fit(script, model, sgd(model), epochs=2)
        del model
        script.model = script.optimizer = None
    assert trainings(script.measured) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_new_optimizer_of_the_same_model_continues_its_training(script):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    fit(script, model, sgd(model[1]))
    fit(script, model, sgd(model))
    fit(script, model, torch.optim.Adam(model[0].parameters()))
    assert trainings(script.measured) == [0, 0, 0]


def test_models_with_a_common_frozen_part_are_trained_one_after_another(script):
    frozen = nn.Linear(4, 4).requires_grad_(requires_grad=False)
    for _ in range(2):
        model = nn.Sequential(frozen, nn.Linear(4, 2))
        fit(script, model, sgd(model))
    assert trainings(script.measured) == [0, 1]
