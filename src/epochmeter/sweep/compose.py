"""Compose the configurations of a sweep; those with the same group choices share a template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.config_repository import IConfigRepository
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from epochmeter.config import job

SEARCH_PATH = "hydra.searchpath"


def device_of(root: str) -> str:
    """Return the device, by its name in conf/device, of the machine whose files are below a root."""
    from epochmeter.machine import host

    return host.detect_device(job.device_matches(), host.device_facts(root))


class SweepLoader(ConfigLoaderImpl):
    """Hydra's config loader, made fast for the many configurations of one sweep.

    Hydra reads and merges some 25 files for each configuration. Only overrides of groups (`model=`, `experiment=`)
    choose among files, so that the result of these is kept as a template. Each configuration is a copy of a template,
    to which the other overrides are applied.
    """

    def __init__(self, loader: ConfigLoaderImpl, detect: Callable[[str], str] | None = None) -> None:
        """Take over the state of Hydra's loader.

        Args:
            loader: The loader that reads conf/.
            detect: Returns the device of the machine below a root; None: leave `device=auto` for another machine.
        """
        self.__dict__.update(vars(loader))
        self._detect = cache(detect) if detect else None
        self._templates: dict[tuple[str, ...], DictConfig] = {}
        # By the overrides of the search path, which may add folders to this loader's.
        self._repositories: dict[tuple[str, ...], IConfigRepository] = {(): self.repository}

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """Return the configuration of these overrides, equal to the one that Hydra composes."""
        parsed = OverridesParser.create().parse_overrides(sweep_overrides)
        repository = self._repository(master_config, parsed)
        groups: list[Override] = []
        values: list[Override] = []
        for override in parsed:
            is_group = repository.group_exists(override.key_or_group) and not isinstance(override.value(), dict)
            (groups if is_group or override.is_hydra_override() else values).append(override)
        template = self._template(master_config, [_text(override) for override in groups], values)
        config = self._apply(values, template)
        OmegaConf.copy_cache(from_config=master_config, to_config=config)
        task = [override for override in parsed if not override.is_hydra_override()]
        config.hydra.overrides.task = [_text(override) for override in task]
        form = config.hydra.job.config.override_dirname
        config.hydra.job.override_dirname = get_overrides_dirname(task, form.exclude_keys, form.item_sep, form.kv_sep)
        return config

    def _repository(self, master: DictConfig, parsed: Sequence[Override]) -> IConfigRepository:
        """Return the repository of config files for these overrides."""
        overrides = (*master.hydra.overrides.hydra, *map(_text, parsed))
        paths = tuple(text for text in overrides if text.lstrip("+").startswith(f"{SEARCH_PATH}="))
        if paths not in self._repositories:
            name = master.hydra.job.config_name
            _, self._repositories[paths] = self._parse_overrides_and_create_caching_repo(name, [*paths])
        return self._repositories[paths]

    def _template(self, master: DictConfig, groups: list[str], values: Sequence[Override]) -> DictConfig:
        """Return the template of these groups, with the detected device instead of `device=auto`."""
        template = self._composed_once(master, groups)
        if self._detect is None or template.hydra.runtime.choices.get("device") != "auto":
            return template
        # Only `machine.` overrides: other keys may exist only in the detected device's group.
        machine_values = [value for value in values if value.key_or_group.partition(".")[0] == "machine"]
        root = str((self._apply(machine_values, template) if machine_values else template).machine.root)
        other_groups = [group for group in groups if not group.startswith("device=")]
        return self._composed_once(master, [*other_groups, f"device={self._detect(root)}"])

    def _composed_once(self, master: DictConfig, groups: list[str]) -> DictConfig:
        """Return Hydra's composition of groups only; must not be modified."""
        if tuple(groups) not in self._templates:
            self._templates[tuple(groups)] = super().load_sweep_config(master, groups)
        return self._templates[tuple(groups)]

    def _apply(self, values: Sequence[Override], template: DictConfig) -> DictConfig:
        """Return a copy of a template with value overrides applied; raises ConfigCompositionException as Hydra does."""
        config = deepcopy(template)
        try:
            self._apply_overrides_to_config([*values], config)
        except OmegaConfBaseException as error:
            raise ConfigCompositionException from error
        return config


def _text(override: Override) -> str:
    assert override.input_line is not None
    return override.input_line
