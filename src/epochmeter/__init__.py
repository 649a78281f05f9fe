"""Training of deep networks, metered: where the time of every epoch went, and what it cost in joules."""

TYPE_CHECKING = False  # `typing` would slow down the import, and the training process runs on Python 3.6
if TYPE_CHECKING:
    from epochmeter.report.runs.frames import load_runs as load_runs

__all__ = ["load_runs"]


def __getattr__(name: str) -> object:
    """Import the public functions when they are used, as `import epochmeter` is also the training process's."""
    if name != "load_runs":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from epochmeter.report.runs.frames import load_runs

    return load_runs
