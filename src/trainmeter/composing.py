"""Composes the configurations of a sweep: each once, and those with the same group choices from one template."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trainmeter import job


def device_of(root: str) -> str:
    """The device, by its name in conf/device, that the machine below a root is."""
    from trainmeter.machine import host

    return host.detect(job.matches(), host.facts(root))


class Template(NamedTuple):
    """The configuration that a choice of groups makes, before any other override is applied."""

    pickled: bytes
    device: str
    """What `device=` is."""
    root: str
    """What `machine.root=` is."""


class SweepLoader(ConfigLoaderImpl):
    """Hydra's config loader, made fast for the many configurations of one sweep.

    Hydra reads and merges some 25 files for each configuration. Only overrides of groups (`model=`, `experiment=`)
    choose among files, so that the result of these is kept as a template, to which the other overrides are applied.
    A configuration that was composed for validation is kept until it is run.
    """

    def __init__(self, loader: ConfigLoaderImpl, detect: Callable[[str], str] | None = None) -> None:
        """Takes over a loader of Hydra's.

        Args:
            loader: the loader that reads conf/.
            detect: gives the device of the machine below a root, for configurations with `device=auto`; None to leave
                these as they are, for another machine to decide.
        """
        self.__dict__.update(vars(loader))
        self._detect = cache(detect) if detect else None
        self._templates: dict[tuple[str, ...], Template] = {}
        self._kept: dict[tuple[str, ...], bytes] = {}
        self.composed = 0
        """How many configurations were composed so far."""

    def keep(self, master: DictConfig, typed: Sequence[str]) -> DictConfig:
        """Composes a configuration and keeps it for the next `load_sweep_config` of the same overrides."""
        config = self._composed(master, list(typed))
        self._kept[tuple(typed)] = pickle.dumps(config)  # a tenth of the memory of the configuration itself
        return config

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """The configuration of these overrides: the one that was kept, or else a new one."""
        kept = self._kept.pop(tuple(sweep_overrides), None)
        return _unpickled(kept) if kept else self._composed(master_config, sweep_overrides)

    def _composed(self, master: DictConfig, typed: list[str]) -> DictConfig:
        self.composed += 1
        parsed = OverridesParser.create().parse_overrides(typed)
        groups = [override for override in parsed if self._chooses_files(override)]
        values = [override for override in parsed if override not in groups]
        config = _unpickled(self._template(master, [_text(override) for override in groups], values).pickled)
        OmegaConf.copy_cache(from_config=master, to_config=config)
        try:
            self._apply_overrides_to_config(values, config)
        except OmegaConfBaseException as error:
            raise ConfigCompositionException from error
        task = [override for override in parsed if not override.is_hydra_override()]
        config.hydra.overrides.task = [_text(override) for override in task]
        form = config.hydra.job.config.override_dirname
        config.hydra.job.override_dirname = get_overrides_dirname(task, form.exclude_keys, form.item_sep, form.kv_sep)
        return config

    def _template(self, master: DictConfig, groups: list[str], values: Sequence[Override]) -> Template:
        """The template of these groups, with the device of this machine in place of `device=auto`."""
        found = self._composed_once(master, tuple(groups))
        if self._detect is None or found.device != "auto":
            return found
        root = next((each.value() for each in reversed(values) if each.key_or_group == "machine.root"), found.root)
        others = [group for group in groups if not group.startswith("device=")]
        return self._composed_once(master, (*others, f"device={self._detect(str(root))}"))

    def _composed_once(self, master: DictConfig, groups: tuple[str, ...]) -> Template:
        if groups not in self._templates:
            config = super().load_sweep_config(master, list(groups))
            device = str(config.hydra.runtime.choices.get("device"))
            self._templates[groups] = Template(pickle.dumps(config), device, root=str(config.machine.root))
        return self._templates[groups]

    def _chooses_files(self, override: Override) -> bool:
        """Whether an override is one of a group, by Hydra's own rule, or of Hydra itself, such as its search path."""
        is_group = self.repository.group_exists(override.key_or_group) and not isinstance(override.value(), dict)
        return is_group or override.is_hydra_override()


def _unpickled(pickled: bytes) -> DictConfig:
    config: DictConfig = pickle.loads(pickled)
    return config


def _text(override: Override) -> str:
    assert override.input_line is not None
    return override.input_line
