"""Check specifications by group: `python -m epochmeter.worker.check_spec JSON` prints why one cannot be constructed."""

import json
import sys

from epochmeter.shared.instantiate import bind_spec

PREREQUISITES = {"optimizer": ["parameters"], "scheduler": ["optimizer"]}
"""Positional arguments that the training process passes, by group."""


def main(specs):
    try:
        for group, spec in specs.items():
            if set(spec) == {"architecture"}:  # of a torchvision model
                from epochmeter.worker.models.vision import find_architecture  # needs torchvision

                find_architecture(spec["architecture"])
            else:
                bind_spec(spec, *PREREQUISITES.get(group, []))
    except ValueError as error:
        print(error)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
