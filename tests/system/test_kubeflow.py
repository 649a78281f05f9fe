"""A run in a pod of a TrainJob: what Kubeflow's server is sent, and what a bad server costs."""

import pytest
from kubeflow import late, serving

pytestmark = pytest.mark.system
SCRIPT = """
import epochmeter, torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.ones(64, 4)), 8)
for epoch in epochmeter.Meter().epochs(4):
    for (inputs,) in loader:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
"""


def values(accepted):
    return {metric["name"]: float(metric["value"]) for metric in accepted["metrics"]}


def test_training_shows_progress_rest_and_metrics(project, tmp_path):
    with serving(tmp_path / "server") as server:
        done = project.run("train", *project.stubbed(epochs=4), check=True, **server.environment)
    assert "Kubeflow" not in done.stderr + done.stdout
    assert server.problems == []
    last = server.accepted[-1]
    assert (last["progressPercentage"], last["estimatedRemainingSeconds"]) == (100, 0)
    percentages = [accepted["progressPercentage"] for accepted in server.accepted]
    assert percentages == sorted(percentages)
    last_epoch = [line["metrics"] for line in project.record().windows() if line["window"] == "epoch"][-1]
    shown = values(last)
    assert shown["epoch"] == 4
    assert shown["epoch/e2e_s"] == pytest.approx(last_epoch["epoch/e2e_s"], rel=1e-4)


def test_script_shows_progress_and_metrics_and_its_output_stays(project, tmp_path):
    (project.root / "own.py").write_text(SCRIPT + 'print("done")\n')
    keys = ["tracking=none", "meter=none", "device=cpu", f"machine.lock_dir={project.root}", "device.python=null"]
    with serving(tmp_path / "server") as server:
        done = project.run("measure", *keys, "own.py", check=True, PYTHONPATH="src", **server.environment)
    assert done.stdout == "done\n"
    assert server.problems == []
    assert (server.accepted[-1]["progressPercentage"], values(server.accepted[-1])["epoch"]) == (100, 4)


@pytest.mark.parametrize("kind", ["slow", "gone", "refuses", "unauthorized"])
def test_bad_server_costs_one_line_and_a_few_seconds_at_the_end_only(project, tmp_path, kind):
    answers = {"slow": late(30), "refuses": lambda number: 500, "unauthorized": lambda number: 401}
    with serving(tmp_path / "server", answers.get(kind)) as server:
        environment = dict(server.environment)
        if kind == "gone":
            environment["KUBEFLOW_TRAINER_SERVER_URL"] = "https://127.0.0.1:9/status"
        done = project.run("train", *project.stubbed(epochs=3), check=True, **environment)
    assert done.stderr.count("Kubeflow does not show") + done.stdout.count("Kubeflow does not show") == 1
    record = project.record()
    assert record.is_completed()
    gaps_ns = [
        later["opened_ns"] - earlier["closed_ns"]
        for earlier, later in zip(record.windows(), record.windows()[1:], strict=False)
    ]
    assert max(gaps_ns) * 1e-9 < 3, "a window waited for the server"
