"""What the page of an experiment in MLflow opens with: what its runs are, and how to read their numbers."""

from __future__ import annotations

from collections.abc import Mapping

SECTIONS = {
    "`epoch/` `val/`": "a value an epoch: of its training, of the evaluation after it",
    "`steady/` `spread/`": "mean and standard deviation over the epochs after the warm-up",
    "`total/`": "the whole run, warm-up and evaluation included",
    "`rank_max/`": "of several ranks the largest, where the rest are means",
    "`model/`": "what the model is made of",
    "`throughput/`": "between the two steps that were asked for",
    "`step/` `power/`": "curves within the epochs: the loss, the power",
}


def description(energy_and_time: str, by_covers: Mapping[str, str], by_device_and_limit: str, reports: str) -> str:
    """The experiment's description in Markdown, given the addresses of its views and of its reports.

    `by_covers` has those of the views of what energies are those of, where that is not the same for all runs.
    """
    table = ["| metrics | |", "| --- | --- |", *(f"| {names} | {meaning} |" for names, meaning in SECTIONS.items())]
    told = [  # a line each: MLflow breaks lines where the text does
        "**Training runs that were measured: where the time of each epoch went, and what it cost in joules.**",
        f"Look at [energy and time]({energy_and_time}) of the newest runs, at their means "
        f"[by device and power limit]({by_device_and_limit}), or at the [reports]({reports}) of whole sweeps.",
        *([_apart(by_covers)] if by_covers else []),
        "\n".join(table),
        "Units are in the names: `_s` seconds, `_j` joules, `_w` watts, `_bytes`. What could not be measured is absent "
        "and never 0; the tag `epochmeter.energy_reason` says why.",
        "`epochmeter.energy_covers` says what a run's energy is that of (a module, GPUs, a CPU): where that differs, "
        "runs are not compared by it: the view of all draws no energy then, and no group is of two.",
        "A run with `epochmeter.rehearsal=true` was asked for what its machine is not, and is no result.",
        "In the project: `README.md`, `docs/metrics.md` (every metric), `docs/measuring.md` (how they are taken).",
    ]
    return "\n\n".join(told)


def _apart(by_covers: Mapping[str, str]) -> str:
    views = ", ".join(f"[{covers}]({address})" for covers, address in by_covers.items())
    return f"The energies of these runs cover different things. Energy and time of those alone that cover: {views}."
