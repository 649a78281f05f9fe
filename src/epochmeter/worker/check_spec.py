"""Check `_target_` specifications before training starts: `python -m epochmeter.worker.check_spec SPECS`.

SPECS is JSON: the specifications of a configuration by group; for a torchvision model only its `architecture`. The
keys are compared with the signature of the target. Problems are printed, one per line.
"""

import json
import sys

from epochmeter.shared.instantiate import resolve_target

PREREQUISITES = {"optimizer": ["parameters"], "scheduler": ["optimizer"]}
"""Positional arguments that the training process passes, by group."""


def main(specs):
    """Check specifications given as JSON, and print the problems."""
    for group, spec in json.loads(specs).items():
        try:
            if set(spec) == {"architecture"}:
                from epochmeter.worker.models.vision import find_architecture  # needs torchvision

                find_architecture(spec["architecture"])
            else:
                resolve_target(spec, *PREREQUISITES.get(group, []))
        except ValueError as error:
            print(error)


if __name__ == "__main__":
    main(sys.argv[1])
