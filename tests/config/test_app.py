"""What a command says of what Hydra refuses: in a terminal, of the real command."""


def test_flags_that_do_not_go_together_are_refused_in_a_sentence(project):
    done = project.run("train", "-m", "batch=8,16", "--cfg", "job")
    assert done.returncode == 1
    assert done.stderr.startswith("error: Only one of --run, --multirun, --cfg")
    assert len(done.stderr.splitlines()) == 2
