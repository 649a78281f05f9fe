"""Loads Hydra's own plugins before the tests import classes that are derived from them: loading replaces them."""

from hydra.core.plugins import Plugins

Plugins.instance()
