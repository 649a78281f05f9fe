"""Hydra's reader of YAML files, with a limit for nested aliases (`*name`)."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf

from epochmeter.config.arguments import warn_of_old_names
from epochmeter.config.installation import CONF
from epochmeter.config.yaml_files import read_mapping
from epochmeter.shared.problem import input_error
from epochmeter.shared.renamed import Note, Renamed, current_choices, current_keys

HEADER_LENGTH = 512  # characters of a file in which Hydra looks for its header, such as `# @package _global_`
MAX_NODES = 10_000  # values of a file, with those of aliases as often as they are used


AUTO = CONF / "device" / "auto.yaml"
GROUP_OF_DEFAULT = re.compile(
    r"(?P<words>(?:(?:override|optional) +)*)(?P<slash>/?)(?P<group>[\w/]+)(?P<package>(?:@.*)?)"
)


class FileConfigSource(file_config_source.FileConfigSource):
    """Reads a file of a group.

    Attributes:
        detected: The device that `device=auto` means, if it is known before Hydra composes; its file is read then.
    """

    detected: str | None = None

    def load_config(self, config_path: str) -> ConfigResult:
        file = Path(self.path, self._normalize_file_name(config_path))
        if self.detected and file == AUTO:
            file = AUTO.with_name(f"{self.detected}.yaml")
        check_aliases(file)
        content = read_mapping(file)
        if content is None:
            return super().load_config(config_path)
        header = self._get_header_dict(file.read_text(encoding="utf-8")[:HEADER_LENGTH])
        path = f"{self.scheme()}://{self.path}"
        config = OmegaConf.create(with_current_keys(content, Path(config_path).parent, header["package"]))
        return ConfigResult(provider=self.provider, path=path, config=config, header=header)


def register() -> None:
    """Let Hydra read files by this source."""
    SourcesRegistry.instance().types[FileConfigSource.scheme()] = FileConfigSource


def use_device(device: str | None) -> None:
    """Let Hydra read the files of this device for `device=auto`; None: compose again when the device is detected."""
    FileConfigSource.detected = device


def with_current_keys(content: dict[str, Any], group: Path, package: str | None) -> dict[str, Any]:
    """Return the content of a file in the folder of its group with the new names of keys, such as of a user's file."""
    sections = group.parts if package in (None, "_group_") else () if package == "_global_" else (package,)
    found: dict[Renamed, None] = {}
    current = current_keys(content, found.setdefault, "".join(f"{section}." for section in sections))
    if isinstance(defaults := current.get("defaults"), list):
        current = {**current, "defaults": [current_default(each, group, found.setdefault) for each in defaults]}
    warn_of_old_names(found)
    return current


def current_default(default: Any, group: Path, note: Note) -> Any:
    """Return an element of a list of defaults, such as `override /storage: ssd`, with the new name of its option.

    Names without a leading slash are those of groups below the file's own `group`.
    """
    if isinstance(default, str):
        base, slash, option = default.rpartition("/")
        found = current_default({base: option}, group, note) if slash else {}
        return next((f"{key}/{value}" for key, value in found.items()), default)
    if not isinstance(default, dict) or len(default) != 1:
        return default
    ((name, options),) = default.items()
    parsed = GROUP_OF_DEFAULT.fullmatch(name) if isinstance(name, str) else None
    if parsed is None or not (parsed["slash"] or group == Path()):
        return default
    ((key, options),) = current_choices({parsed["group"]: options}, note).items()
    return {f"{parsed['words']}{parsed['slash']}{key}{parsed['package']}": options}


def check_aliases(file: Path) -> None:
    """Refuse a file with more values than `MAX_NODES`, which OmegaConf would copy for days; InputError."""
    with suppress(OSError, UnicodeDecodeError, yaml.YAMLError):  # Hydra names the cause
        text = file.read_text(encoding="utf-8")
        if "*" in text and (root := yaml.compose(text, yaml.SafeLoader)) and _node_count(root, {}) > MAX_NODES:
            problem = f"`{file}` is too large: with its nested aliases (`*name`), it has more than {MAX_NODES:,} values"
            raise input_error(problem, "write fewer values, or lists without aliases")


def _node_count(node: yaml.Node, counts: dict[int, int]) -> int:
    """Return the number of values of a node; each node is visited once, and one that contains itself is too large."""
    if id(node) not in counts:
        counts[id(node)] = MAX_NODES + 1
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = [nested for child in children for nested in (child if isinstance(child, tuple) else [child])]
        counts[id(node)] = 1 + sum(_node_count(nested, counts) for nested in parts)
    return counts[id(node)]
