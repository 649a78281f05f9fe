"""Invalid input, through the command: errors with remedies, and nothing is lost."""


def test_invalid_input_is_refused_and_leaves_no_files(project):
    def files():
        return {path for path in project.root.rglob("*") if "__pycache__" not in path.parts}

    before = files()
    done = project.run("train", "-m", "batch=8,0", f"machine.lock_dir={project.root}/locks")
    assert done.returncode == 1
    assert "error: Nothing is trained: 1 of 2 configurations are refused\n`batch=0` is not valid" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert files() == before
