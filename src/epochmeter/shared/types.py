"""Types of annotations that several modules share."""

import os
from array import array
from typing import TYPE_CHECKING, Any, Mapping, Union

StrPath = Union[str, "os.PathLike[str]"]
"""The path of a file or a folder."""
Document = Mapping[str, Any]
"""A JSON object, such as a part of a record: its keys depend on its file and version."""

if TYPE_CHECKING:
    FloatArray = array[float]
else:  # before Python 3.12, an array has no type arguments
    FloatArray = array
