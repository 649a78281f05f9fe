"""The description on the experiment's page in MLflow: its runs, and how to read their metrics."""

from __future__ import annotations

from collections.abc import Mapping

SECTIONS = {
    "`epoch/` `val/`": "one value per epoch: training, and the evaluation after it",
    "`steady/` `std/`": "mean and standard deviation over the epochs after the warm-up",
    "`total/`": "the whole run, warm-up and evaluation included",
    "`rank_max/`": "the largest value of all ranks; other metrics are means over ranks",
    "`model/`": "model statistics: parameters, FLOPs, memory",
    "`throughput/`": "throughput between the two configured steps",
    "`step/` `power/`": "curves within epochs: loss and power",
}


def experiment_note(energy_and_time: str, by_scope: Mapping[str, str], by_device_and_limit: str, reports: str) -> str:
    """Return the experiment's description in Markdown.

    Args:
        energy_and_time: Address of the view of energy and time.
        by_scope: Addresses of the views by the hardware that energy covers, if that differs between runs.
        by_device_and_limit: Address of the view by device and power limit.
        reports: Address of the view of reports.
    """
    links = ", ".join(f"[{scope}]({address})" for scope, address in by_scope.items())
    scopes = f"The energies of these runs cover different hardware. Energy and time by what they cover: {links}."
    rows = [f"| {names} | {meaning} |" for names, meaning in SECTIONS.items()]
    paragraphs = [  # one line per paragraph: MLflow keeps line breaks
        "**Measured training runs: where the time of each epoch went, and how many joules it used.**",
        f"See [energy and time]({energy_and_time}) of the newest runs, their means "
        f"[by device and power limit]({by_device_and_limit}), or the [reports]({reports}) of sweeps.",
        *([scopes] if by_scope else []),
        "\n".join(["| metrics | |", "| --- | --- |", *rows]),
        "Units are in the names: `_s` seconds, `_j` joules, `_w` watts, `_bytes`. Values that could not be "
        "measured are absent, never 0; the tag `epochmeter.energy_reason` has the reason.",
        "`epochmeter.energy_covers` names the hardware that a run's energy covers (a module, GPUs, a CPU). Energies of "
        "different hardware are not compared: the view of all runs then has no energy, and groups are separate.",
        "A run with `epochmeter.rehearsal=true` was configured for other hardware than its machine, and is no result.",
        "In the project: `README.md`, `docs/metrics.md` (every metric), `docs/measuring.md` (how they are measured).",
    ]
    return "\n\n".join(paragraphs)
