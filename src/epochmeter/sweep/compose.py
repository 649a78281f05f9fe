"""Compose the configurations of a sweep; those with the same group choices share a template."""

import io
import pickle
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from epochmeter.config.suggestions import entry_keys


class SweepLoader(ConfigLoaderImpl):
    """Hydra's config loader, made fast for the many configurations of one sweep: 3 ms instead of 80 ms each.

    Hydra reads some 25 files for each. Here, configurations are copies of one template, with the overrides of keys
    applied, if they have the same overrides that choose files, such as `model=` and `experiment=`.
    """

    def __init__(self, loader: ConfigLoaderImpl, detect: Callable[[str], str] | None = None) -> None:
        """Take over the state of Hydra's loader; `detect` finds the device below a root, None: on another machine."""
        self.__dict__.update(vars(loader))
        self._detect = cache(detect) if detect else None
        self._templates: dict[tuple[str, ...], Template] = {}

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """Return the configuration of these overrides, equal to the one that Hydra composes."""
        parsed = OverridesParser.create().parse_overrides(sweep_overrides)
        values = [override for override in parsed if _is_of_key(override)]
        groups = [str(override.input_line) for override in parsed if not _is_of_key(override)]
        template = self._template(master_config, groups)
        if self._detect and template.config.hydra.runtime.choices.get("device") == "auto":
            # Only `machine.` overrides: other keys may exist only in the detected device's group.
            machine = [value for value in values if value.key_or_group.partition(".")[0] == "machine"]
            root = (_applied(machine, template) if machine else template.config).machine.root
            others = [group for group in groups if not group.startswith("device=")]
            template = self._template(master_config, [*others, f"device={self._detect(str(root))}"])
        config = _applied(values, template)
        OmegaConf.copy_cache(from_config=master_config, to_config=config)
        task = [str(override.input_line) for override in parsed if not override.is_hydra_override()]
        config.hydra.overrides.task = task
        return config

    def _template(self, master: DictConfig, groups: Sequence[str]) -> "Template":
        if tuple(groups) not in self._templates:
            self._templates[tuple(groups)] = Template(super().load_sweep_config(master, [*groups]))
        return self._templates[tuple(groups)]


class Template:
    """A configuration that is copied many times: from a pickle, in a sixth of the time of `deepcopy`."""

    def __init__(self, config: DictConfig) -> None:
        self.config = config
        self._cache = OmegaConf.get_cache(config)  # it may have values of any type
        OmegaConf.clear_cache(config)
        text = io.BytesIO()
        self._types = _Pickler(text).dump_with_types(config)
        OmegaConf.set_cache(config, self._cache)
        self._text = text.getvalue()

    def copy(self) -> DictConfig:
        """Return an equal configuration of its own."""
        config: DictConfig = _Unpickler(io.BytesIO(self._text), self._types).load()
        OmegaConf.set_cache(config, self._cache)
        return config


class _Pickler(pickle.Pickler):
    """Writes a number for each type: those of structured configurations may be in no module."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._numbers: dict[type, int] = {}

    def persistent_id(self, value: object) -> int | None:
        return self._numbers.setdefault(value, len(self._numbers)) if isinstance(value, type) else None

    def dump_with_types(self, value: object) -> list[type]:
        """Write a value, and return the types by their numbers."""
        self.dump(value)
        return [*self._numbers]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, types: Sequence[type]) -> None:
        super().__init__(file)
        self._types = types

    def persistent_load(self, number: Any) -> Any:
        return self._types[number]


def _is_of_key(override: Override) -> bool:
    """Whether an override sets a key and chooses no file; an unknown name may be a group of the user's."""
    key = override.key_or_group
    is_key = "." in key or key in entry_keys("train")[1] or isinstance(override.value(), dict)
    return is_key and not override.is_hydra_override()


def _applied(overrides: list[Override], template: Template) -> DictConfig:
    config = template.copy()
    try:
        ConfigLoaderImpl._apply_overrides_to_config(overrides, config)
    except OmegaConfBaseException as error:
        raise ConfigCompositionException from error
    return config
