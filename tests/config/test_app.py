"""Commands with a composed configuration."""

import sys

from hydra._internal.config_loader_impl import ConfigLoaderImpl

from epochmeter.config import app, resolvers


def test_command_without_sweeps_composes_its_configuration_once(monkeypatch, tmp_path):
    compose, composed, tasks = ConfigLoaderImpl.load_configuration, [], []

    def counted(self, *arguments, **keys):
        composed.append(arguments)
        return compose(self, *arguments, **keys)

    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", counted)
    monkeypatch.setattr(sys, "argv", ["src/report.py", "report.next=5"])
    resolvers.register(lambda command, many, again: tmp_path)
    app.run("report", tasks.append, "The command.")
    assert [config.report.next for config in tasks] == [5]
    assert len(composed) == 1
