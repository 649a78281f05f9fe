"""Contract tests for your own meter, dataset, loader or adapter: each function raises AssertionError with the reason.

They need no test framework, no GPU and no board. docs/extending.md has an example.
"""

TYPE_CHECKING = False  # as in the package itself
if TYPE_CHECKING:
    from epochmeter.testing.adapters import check_adapter as check_adapter
    from epochmeter.testing.adapters import check_loader as check_loader
    from epochmeter.testing.datasets import check_dataset as check_dataset
    from epochmeter.testing.meters import check_absent_meter as check_absent_meter
    from epochmeter.testing.meters import check_meter as check_meter

__all__ = ["check_absent_meter", "check_adapter", "check_dataset", "check_loader", "check_meter"]
MODULES = {
    **dict.fromkeys(("check_adapter", "check_loader"), "adapters"),
    "check_dataset": "datasets",
    **dict.fromkeys(("check_absent_meter", "check_meter"), "meters"),
}


def __getattr__(name: str) -> object:
    """Import a function when it is used: a meter needs no torch, and an adapter no tool."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
