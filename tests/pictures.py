"""One picture of each kind, small enough to know all of it."""

from epochmeter.report.figures import (
    Axis,
    Band,
    Bar,
    Bars,
    Callout,
    Cell,
    Heatmap,
    Level,
    Lines,
    Mark,
    Reach,
    Scatter,
    Series,
    Stack,
)

EVIL = "<script>alert(1)</script> & $x_1$"
LINK = "http://127.0.0.1:5000/#/experiments/1/runs/abc"

SCATTER = Scatter(
    "energy_by_time",
    "Energy against time",
    "Each mark is a job.",
    Axis("Time of an epoch", "s"),
    Axis("Energy of an epoch", "J", log=True),
    [
        Series(
            "batch 8", [Mark(1.0, 200.0, ("batch 8", "time 1.00 s", "run 0"), LINK, Reach(0.1, 0.1), Reach(4.0, 5.0))]
        ),
        Series(EVIL, [Mark(2.0, 3.0, (EVIL, "time 2.00 s", "run 1"))], 1),
    ],
    [[(1.0, 200.0), (2.0, 3.0)]],
    [Callout("fastest", 1.0, 200.0)],
)
LINES = Lines(
    "epochs_time",
    "Epoch by epoch: time",
    "",
    Axis("Epoch"),
    Axis("Time", "s"),
    [Series(EVIL, [Mark(0, 3.0), Mark(1, 2.0, y_reach=Reach(0.1, 0.1))])],
    [Band(-0.5, 0.5, "warm-up")],
    Level(2.5, "as asked"),
)
BARS = Bars(
    "epoch_parts",
    "Where the time goes",
    "A steady epoch.",
    Axis("Time of an epoch", "s"),
    ["batch 8", EVIL],
    [
        Stack("fetch stall", [Bar(1.0, ("batch 8", "fetch stall 1.00 s"), LINK), Bar(2.0)], 1),
        Stack("compute", [Bar(3.0), None]),
    ],
)
HEATMAP = Heatmap(
    "grid_time",
    "Time by batch and power limit",
    "Dark is less.",
    Axis("Batch"),
    Axis("Power limit", "W or mode"),
    Axis("Time of an epoch", "s", log=True),
    ["8", "16"],
    ["100", EVIL],
    [[Cell(1.0, "1.0", ("batch 8",)), None], [Cell(100.0, "100", (EVIL,), LINK), Cell(10.0, "10.0")]],
)
EVERY = [SCATTER, LINES, BARS, HEATMAP]
