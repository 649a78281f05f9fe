"""The public surface is that of docs/surface.json: nothing is removed or changed without a deprecation."""

import json
import re
import sys

import pytest
from cases import case, cases
from project import ROOT

from epochmeter.shared import renamed
from epochmeter.shared.renamed import KEY, METRIC, OPTION, Renamed

CODE = re.compile("`[^`]+`")
SURFACE = json.loads((ROOT / "docs/surface.json").read_text())


@pytest.fixture
def surface(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import surface

    return surface


def test_nothing_public_was_removed_or_changed_and_the_list_is_complete(surface):
    now = surface.surface()
    assert surface.problems(SURFACE, now) == []
    assert surface.to_text(now) == surface.FILE.read_text(), f"something public is new: run `{surface.COMMAND}`"


def test_list_has_what_a_user_relies_on():
    """Known answers, of each kind."""
    assert SURFACE["keys"]["batch"] == "a whole number, 1 or more, at most 1,000,000,000; default 16"
    assert SURFACE["keys"]["report: gate.time"].endswith("or null; default null")
    assert SURFACE["options"]["meter=estimate tdp_w"] == "default null"
    assert SURFACE["options"]["experiment=stalls"] == "option"
    assert SURFACE["metrics"]["epoch/energy_j"] == "J"
    assert SURFACE["record"]["summary.json: failure.code"] == "text"
    assert SURFACE["record"]["steps.bin: compute_s"] == "column 3 of 4"
    assert SURFACE["documents"]["output: exit_code"] == "integer"
    assert SURFACE["exit codes"]["report: 3"] == "the runs are too few to decide"
    assert SURFACE["python"]["epochmeter.Meter.last"] == "property -> Measurement"
    codes = [name for name in SURFACE["exit codes"] if name.partition(":")[0] in ("train", "doctor", "watch")]
    assert codes == [f"train: {code}" for code in (0, 1, "128 + n")] + ["watch: 0", "watch: 1"] + [
        f"doctor: {code}" for code in (0, 1, "128 + n")
    ]


@cases(
    case("the same", kind="metrics", before="s", now="s", breaks=False),
    case("other unit", kind="metrics", before="s", now="J", breaks=True),
    case("removed", kind="metrics", before="s", now=None, breaks=True),
    case("removed field", kind="record", before="text", now=None, breaks=True),
    case("removed code", kind="exit codes", before="it failed", now=None, breaks=True),
    case("reworded code", kind="exit codes", before="it failed", now="it has failed", breaks=False),
    case("default", kind="keys", before="one of a, b; default a", now="one of a, b; default b", breaks=True),
    case("more words", kind="keys", before="one of a, b; default a", now="one of a, c, b; default a", breaks=False),
    case("fewer words", kind="keys", before="one of a, b; default a", now="one of a; default a", breaks=True),
    case(
        "more arguments", kind="python", before="(a: int) -> str", now="(a: int, b: int=1, *, c=0) -> str", breaks=False
    ),
    case("required argument", kind="python", before="(a: int) -> str", now="(a: int, b: int) -> str", breaks=True),
    case("required by name", kind="python", before="(a, *, b=1)", now="(a, *, b=1, c)", breaks=True),
    case("argument before others", kind="python", before="(a=1)", now="(b=2, a=1)", breaks=True),
    case("removed argument", kind="python", before="(a=1, *, b=2)", now="(a=1)", breaks=True),
    case("other result", kind="python", before="(a) -> str", now="(a) -> int", breaks=True),
)
def test_change_breaks_if_what_was_valid_is_not_any_more(surface, kind, before, now, breaks):
    found = surface.problems({kind: {"name": before}}, {kind: {"name": now} if now else {}})
    assert len(found) == breaks
    assert all(text.startswith(f"{kind}: `name` was ") for text in found)
    assert surface.problems({kind: {}}, {kind: {"name": before}}) == [], "additions break nothing"


@cases(
    case(kind="keys", row=Renamed(KEY, "old", "new", "0.2.0"), before="old", now="new"),
    case(kind="options", row=Renamed(OPTION, "g=old", "g=new", "0.2.0"), before="g=old", now="g=new"),
    case(kind="options", row=Renamed(OPTION, "g=old", "g=new", "0.2.0"), before="g=old key", now="g=new"),
    case(kind="metrics", row=Renamed(METRIC, "epoch/old", "epoch/new", "0.2.0"), before="val/old", now="val/new"),
)
def test_name_may_go_if_it_is_the_old_form_of_a_rename(surface, monkeypatch, kind, row, before, now):
    (text,) = surface.problems({kind: {before: "s"}}, {kind: {now: "s"}})
    assert "by a row of RENAMED" in text
    monkeypatch.setattr(renamed, "RENAMED", (row,))
    assert surface.problems({kind: {before: "s"}}, {kind: {now: "s"}}) == []
    assert len(surface.problems({kind: {before: "s"}}, {kind: {}})) == 1, "without its new form"


@cases(
    case(kind="metrics", name="epoch/e2e_s", do="RENAMED"),
    case(kind="keys", name="batch", do="RENAMED"),
    case(kind="exit codes", name="report: 2", do="next to it"),
    case(kind="record", name="summary.json: state", do="next to it"),
    case(kind="python", name="epochmeter.testing.check_loader", do="minor version"),
)
def test_removal_of_each_kind_is_named_with_what_to_do(surface, kind, name, do):
    now = {**SURFACE, kind: {each: text for each, text in SURFACE[kind].items() if each != name}}
    (text,) = surface.problems(SURFACE, now)
    assert text.startswith(f"{kind}: `{name}` was removed. Keep it")
    assert do in text


def test_public_function_that_its_file_lacks_is_a_removal(surface, monkeypatch):
    monkeypatch.setattr(surface, "PYTHON", {"epochmeter.testing.check_gone": ("testing/adapters.py", None)})
    assert dict(surface.python_names()) == {}


def test_command_keeps_what_was_removed_unless_it_is_accepted(surface, monkeypatch, tmp_path, capsys):
    now, file = surface.surface(), tmp_path / "surface.json"
    monkeypatch.setattr(surface, "FILE", file)
    monkeypatch.setattr(sys, "argv", ["surface.py"])
    del (older := json.loads(surface.to_text(now)))["metrics"]["epoch/e2e_s"]
    file.write_text(surface.to_text(older))
    assert surface.main() == 0
    assert file.read_text() == surface.to_text(now)
    older["metrics"]["epoch/gone_s"] = "s"
    file.write_text(before := surface.to_text(older))
    assert (surface.main(), file.read_text()) == (1, before)
    assert "error: metrics: `epoch/gone_s` was removed." in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["surface.py", "--accept"])
    assert (surface.main(), file.read_text()) == (0, surface.to_text(now))


def test_page_of_the_public_surface_names_every_public_name_of_python():
    page = (ROOT / "docs/public.md").read_text()
    names = {name for name in SURFACE["python"] if SURFACE["python"][name].startswith("class")}
    names |= {name for name in SURFACE["python"] if name.startswith(("epochmeter.load", "epochmeter.testing.check"))}
    shown = {*CODE.findall(page)}
    assert [name for name in sorted(names) if not {f"`{name}`", f"`{name.rpartition(chr(46))[2]}`"} & shown] == []
