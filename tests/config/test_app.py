"""Errors of Hydra, as a real command prints them."""


def test_incompatible_flags_are_refused_with_a_hint(project):
    done = project.run("train", "-m", "batch=8,16", "--cfg", "job")
    assert done.returncode == 1
    assert done.stderr.startswith("error: Only one of --run, --multirun, --cfg")
    assert len(done.stderr.splitlines()) == 2
