"""Cases of parametrized tests with named fields, for tables of many columns."""

from typing import Any, NamedTuple

import pytest

Mark = pytest.MarkDecorator


class Case(NamedTuple):
    """One case: its values by the names of the test's parameters, and its name and marks, if it has any."""

    fields: dict[str, Any]
    name: str
    marks: tuple[Mark, ...]


def case(name: str = "", /, *marks: Mark, **fields: Any) -> Case:
    return Case(fields, name, marks)


def cases(*rows: Case) -> Mark:
    """Parametrize a test by cases, which all have the same fields in the same order."""
    names = list(rows[0].fields)
    assert all(list(row.fields) == names for row in rows), f"all cases have the fields {names}"
    params = [pytest.param(*row.fields.values(), id=row.name or None, marks=row.marks) for row in rows]
    return pytest.mark.parametrize(names, params)
