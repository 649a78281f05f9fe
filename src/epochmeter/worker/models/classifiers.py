"""Names of torchvision's classifiers, read from its source files, since importing it takes seconds and needs torch."""

import ast
import os
import re
import shlex
import sys
from difflib import get_close_matches
from importlib.util import find_spec

LIST_NAMES = "{} -c 'from torchvision import models; print(*models.list_models(models))'"
"""Shell command that prints all names."""


def check_name(architecture):
    """Check that torchvision has a classifier.

    Args:
        architecture: Name of the function in `torchvision.models`.

    Raises:
        ValueError: With the three most similar names and the command that lists all.
    """
    known = names(os.path.join(os.path.dirname(find_spec("torchvision").origin), "models"))
    if architecture in known:
        return
    near = get_close_matches(architecture, known, 3, 0.5)
    raise ValueError(
        "`model.name={}` is not a classifier of the installed torchvision. {}List all names: `{}`".format(
            architecture,
            "Did you mean {}? ".format(" or ".join(filter(None, [", ".join(near[:-1]), near[-1]]))) if near else "",
            LIST_NAMES.format(shlex.quote(sys.executable)),
        )
    )


def names(folder):
    """Return the exported lower-case functions of modules in `torchvision/models` with a `num_classes` argument."""
    found = set()
    for name in os.listdir(folder):
        if name.endswith(".py") and not name.startswith("_"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                source = file.read()
            if "num_classes" in source:
                found.update(
                    _exported_names(source).intersection(re.findall(r"^def ([a-z]\w*)\(", source, re.MULTILINE))
                )
    return sorted(found)


def _exported_names(source):
    """Return the names in a module's `__all__`."""
    exported = re.search(r"^__all__ = (\[.*?\])", source, re.MULTILINE | re.DOTALL)
    return set(ast.literal_eval(exported.group(1))) if exported else set()
