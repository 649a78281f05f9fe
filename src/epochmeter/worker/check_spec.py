"""What the worker would refuse to build, said before there is one: `python -m epochmeter.worker.check_spec SPECS`.

SPECS, as JSON, are specifications of a job by their groups. Of a model of torchvision's the name is looked up; of any
other the keys are held against what its target takes, which imports that, and so torch.
"""

import json
import sys

from epochmeter.shared.instantiate import fitting
from epochmeter.worker.models.classifiers import check_name

BEFORE = {"optimizer": ["parameters"], "scheduler": ["optimizer"]}
"""What the worker passes beside the keys, by the group."""


def main(specs):
    for group, spec in json.loads(specs).items():
        try:
            check(group, spec)
        except ValueError as error:
            print(error)


def check(group, spec):
    """Refuses a specification that cannot be built; ValueError."""
    if set(spec) == {"architecture"}:
        check_name(spec["architecture"])
    else:
        fitting(spec, *BEFORE.get(group, []))


if __name__ == "__main__":
    main(sys.argv[1])
