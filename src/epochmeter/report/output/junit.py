"""The checks of a gate as a JUnit file, which continuous integration shows as test results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from epochmeter.report.analyses.gate import Check


def junit_xml(checks: Sequence[Check], title: str) -> str:
    """Return the file's text: a violated bound is a failure, an undecided one an error.

    Args:
        checks: one test case each.
        title: name of the test suite.
    """
    counts = {verdict: sum(check.verdict == verdict for check in checks) for verdict in ("violated", "undecided")}
    suite = ElementTree.Element(
        "testsuite",
        name=title,
        tests=str(len(checks)),
        failures=str(counts["violated"]),
        errors=str(counts["undecided"]),
    )
    for check in checks:
        case = ElementTree.SubElement(suite, "testcase", classname=f"gate.{check.metric}", name=check.title)
        if check.verdict != "passed":
            ElementTree.SubElement(case, "failure" if check.verdict == "violated" else "error", message=_message(check))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _message(check: Check) -> str:
    if check.ratio is None:
        return f"no ratio: {check.reason}"
    bounds = f" ({check.ratio.low:.4g} to {check.ratio.high:.4g})" if check.ratio.low and check.ratio.high else ""
    return f"ratio {check.ratio.value:.4g}{bounds}, bound {check.bound:g}"
