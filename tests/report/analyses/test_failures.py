"""Failed runs and damaged records: the reason, and the hint of the error."""

from golden import assert_golden
from sweeps import trained, write

from epochmeter.report.analyses import failures
from epochmeter.report.runs.filter import select
from epochmeter.report.runs.load import read_sweep
from epochmeter.shared.atomic_files import write_json

OOM = "CUDA is out of memory at batch 512\n  hint: `batch=256` did fit"
NO_GPU = "torch 2.15.0 finds no GPU. Set device.accelerator=cpu."


def test_failures_have_their_reasons_and_hints(tmp_path):
    for number, message in enumerate([OOM, "process 7 was killed", NO_GPU, None, "process 7 was killed"]):
        run = trained(number, 100.0, typed={"batch": str(128 << number)})
        record = write(tmp_path, run, state="failed" if message else "completed")
        if message:
            write_json(record.folder / "summary.json", {**record.summary(), "failure": {"message": message}})
    write(tmp_path, trained(5, 100.0)).folder.joinpath("job.json").write_text("{")
    assert_golden("failures", failures.analyze(select(read_sweep(tmp_path))))
