"""Hydra's reader of YAML files, with a limit for nested aliases (`*name`)."""

from contextlib import suppress
from pathlib import Path

import yaml
from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.plugins.config_source import ConfigResult

from epochmeter.shared.problem import input_error

MAX_NODES = 10_000  # values of a file, with those of aliases as often as they are used


class FileConfigSource(file_config_source.FileConfigSource):
    """Reads a file of a group. Hydra keeps the first source that is registered under this name."""

    def load_config(self, config_path: str) -> ConfigResult:
        check_aliases(Path(self.path, self._normalize_file_name(config_path)))
        return super().load_config(config_path)


def register() -> None:
    """Let Hydra read files by this source; call it before Hydra starts."""
    SourcesRegistry.instance().register(FileConfigSource)


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
