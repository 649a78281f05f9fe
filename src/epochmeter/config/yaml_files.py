"""Read YAML files as OmegaConf does, with libyaml: each start of a command reads forty of them, some twice."""

import copy
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml

from epochmeter.config.versions import yaml_loader

KEPT_FILES = 500


def read_mapping(file: Path) -> dict[str, Any] | None:
    """Return the content of a file that is a mapping, which the caller may change.

    None for any other file, also for a missing or damaged one: OmegaConf's own reader names the cause.
    """
    try:
        status = file.stat()
        return copy.deepcopy(_read(file, status.st_mtime_ns, status.st_size, status.st_ino))
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError):
        return None


@lru_cache(KEPT_FILES)
def _read(file: Path, *version: int) -> dict[str, Any]:
    """Return the content of a version of a file; ValueError if it is no mapping."""
    content = yaml.load(file.read_text(encoding="utf-8"), _loader())  # noqa: S506 (OmegaConf's, which is safe)
    if not isinstance(content, dict):
        raise ValueError
    return content


@cache
def _loader() -> Any:
    """Return OmegaConf's class of loaders, with the parser of libyaml if PyYAML has it."""
    of_omegaconf = yaml_loader()
    parser = getattr(getattr(yaml, "cyaml", None), "CParser", None)
    if parser is None or issubclass(of_omegaconf, parser):
        return of_omegaconf

    def construct(self: Any, stream: str) -> None:
        parser.__init__(self, stream)
        yaml.constructor.SafeConstructor.__init__(self)
        yaml.resolver.Resolver.__init__(self)

    return type("Loader", (parser, of_omegaconf), {"__init__": construct})
