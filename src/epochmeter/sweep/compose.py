"""Compose the configurations of a sweep; those with the same group choices share a template."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from epochmeter.config.suggestions import entry_keys


class SweepLoader(ConfigLoaderImpl):
    """Hydra's config loader, made fast for the many configurations of one sweep: 5 ms instead of 80 ms each.

    Hydra reads some 25 files for each. Here, configurations are copies of one template, with the overrides of keys
    applied, if they have the same overrides that choose files, such as `model=` and `experiment=`.
    """

    def __init__(self, loader: ConfigLoaderImpl, detect: Callable[[str], str] | None = None) -> None:
        """Take over the state of Hydra's loader; `detect` finds the device below a root, None: on another machine."""
        self.__dict__.update(vars(loader))
        self._detect = cache(detect) if detect else None
        self._templates: dict[tuple[str, ...], DictConfig] = {}

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """Return the configuration of these overrides, equal to the one that Hydra composes."""
        parsed = OverridesParser.create().parse_overrides(sweep_overrides)
        values = [override for override in parsed if _is_of_key(override)]
        groups = [str(override.input_line) for override in parsed if not _is_of_key(override)]
        template = self._template(master_config, groups)
        if self._detect and template.hydra.runtime.choices.get("device") == "auto":
            # Only `machine.` overrides: other keys may exist only in the detected device's group.
            machine = [value for value in values if value.key_or_group.partition(".")[0] == "machine"]
            root = (_applied(machine, template) if machine else template).machine.root
            others = [group for group in groups if not group.startswith("device=")]
            template = self._template(master_config, [*others, f"device={self._detect(str(root))}"])
        config = _applied(values, template)
        OmegaConf.copy_cache(from_config=master_config, to_config=config)
        task = [str(override.input_line) for override in parsed if not override.is_hydra_override()]
        config.hydra.overrides.task = task
        return config

    def _template(self, master: DictConfig, groups: Sequence[str]) -> DictConfig:
        if tuple(groups) not in self._templates:
            self._templates[tuple(groups)] = super().load_sweep_config(master, [*groups])
        return self._templates[tuple(groups)]


def _is_of_key(override: Override) -> bool:
    """Whether an override sets a key and chooses no file; an unknown name may be a group of the user's."""
    key = override.key_or_group
    is_key = "." in key or key in entry_keys("train")[1] or isinstance(override.value(), dict)
    return is_key and not override.is_hydra_override()


def _applied(overrides: list[Override], template: DictConfig) -> DictConfig:
    config = deepcopy(template)
    try:
        ConfigLoaderImpl._apply_overrides_to_config(overrides, config)
    except OmegaConfBaseException as error:
        raise ConfigCompositionException from error
    return config
