"""Failed runs and damaged records: the reason, and the hint of the error."""

from golden import assert_golden
from sweeps import trained, write

from epochmeter.report.analyses import failures
from epochmeter.report.runs.filter import select
from epochmeter.report.runs.load import read_sweep
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.problem import Problem

OOM = Problem("CUDA is out of memory at batch 512", "`batch=256` did fit", "oom").to_fields()
USERS = Problem("The labels are missing. They were found in the folder of last year.").to_fields()
OF_EARLIER_VERSION = {"kind": "exception", "message": "torch finds no GPU\n  hint: set device.accelerator=cpu"}
KILLED = {"code": "of another version", "message": "process 7 was killed"}


def test_failures_have_their_reasons_and_hints(tmp_path):
    for number, failure in enumerate([OOM, KILLED, OF_EARLIER_VERSION, None, KILLED, USERS, {}]):
        run = trained(number, 100.0, typed={"batch": str(128 << number)})
        record = write(tmp_path, run, state="completed" if failure is None else "failed")
        if failure is not None:
            write_json(record.folder / "summary.json", {**record.summary(), "failure": failure})
    write(tmp_path, trained(7, 100.0)).folder.joinpath("job.json").write_text("{")
    assert_golden("failures", failures.analyze(select(read_sweep(tmp_path))))
