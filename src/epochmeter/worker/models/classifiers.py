"""The names of torchvision's classifiers, read from its sources: to import it takes torch, and seconds."""

import ast
import os
import re
from difflib import get_close_matches
from importlib.util import find_spec


def check_name(architecture):
    """Refuses what is no classifier of this interpreter's torchvision, with what there is; ValueError."""
    known = names(os.path.join(os.path.dirname(find_spec("torchvision").origin), "models"))
    if architecture in known:
        return
    near = get_close_matches(architecture, known, 5, 0.5)
    raise ValueError(
        "model.name={!r} is not a classifier of this torchvision; it has{} {}.".format(
            architecture,
            ", the nearest first," if near else "",
            ", ".join(near + [name for name in known if name not in near]),
        )
    )


def names(folder):
    """The lower-case functions that the modules in `torchvision/models` give away and that know of classes."""
    found = set()
    for name in os.listdir(folder):
        if name.endswith(".py") and not name.startswith("_"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                source = file.read()
            if "num_classes" in source:
                found.update(_given(source).intersection(re.findall(r"^def ([a-z]\w*)\(", source, re.MULTILINE)))
    return sorted(found)


def _given(source):
    """What a module says that `import *` takes."""
    said = re.search(r"^__all__ = (\[.*?\])", source, re.MULTILINE | re.DOTALL)
    return set(ast.literal_eval(said.group(1))) if said else set()
