"""Check `_target_` specifications before training starts: `python -m epochmeter.worker.check_spec SPECS`.

SPECS is JSON: the specifications of a configuration by group. For a torchvision model, the name is looked up without
importing torch. For others, the keys are compared with the signature of the target, which imports it and thus torch.
Problems are printed, one per line.
"""

import json
import sys

from epochmeter.shared.instantiate import resolve_target
from epochmeter.worker.models.classifiers import check_name

PREREQUISITES = {"optimizer": ["parameters"], "scheduler": ["optimizer"]}
"""Positional arguments that the training process passes, by group."""


def main(specs):
    """Check specifications given as JSON, and print the problems."""
    for group, spec in json.loads(specs).items():
        try:
            check_buildable(group, spec)
        except ValueError as error:
            print(error)


def check_buildable(group, spec):
    """Raise ValueError if a specification cannot be instantiated."""
    if set(spec) == {"architecture"}:
        check_name(spec["architecture"])
    else:
        resolve_target(spec, *PREREQUISITES.get(group, []))


if __name__ == "__main__":
    main(sys.argv[1])
