"""Measure PyTorch training: the time of every epoch by cause, and its energy in joules."""

TYPE_CHECKING = False  # `typing` would slow down the import, and the training process runs on Python 3.6
if TYPE_CHECKING:
    from epochmeter.agent.meter import BudgetReached as BudgetReached
    from epochmeter.agent.meter import Measurement as Measurement
    from epochmeter.agent.meter import Meter as Meter
    from epochmeter.report.runs.frames import load_runs as load_runs

__all__ = ["BudgetReached", "Measurement", "Meter", "load_runs"]


def __getattr__(name: str) -> object:
    """Import the public functions when they are used, as `import epochmeter` is also the training process's."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name != "load_runs":
        from epochmeter.agent import meter

        return getattr(meter, name)
    from epochmeter.report.runs.frames import load_runs

    return load_runs
