from pathlib import Path

import pytest

from epochmeter.trace.nsight import DURATION, PIPES, NsightError, analyze_pipes

DATA = Path(__file__).parents[1] / "data/nsight"
TENSOR = PIPES["tensor"]


@pytest.mark.parametrize("layout", ["columns", "rows", "rows with another unit"])
def test_pipes_are_weighted_by_the_time_of_kernels_in_both_layouts(tmp_path, layout):
    text = (DATA / f"{layout.split()[0]}.csv").read_text()
    if layout == "rows with another unit":
        text = text.replace('"nsecond","1,100,000"', '"msecond","1.1"')
    (tmp_path / "ncu.csv").write_text(text + '"9","trunc')
    result = analyze_pipes(tmp_path / "ncu.csv")
    fma, alu = (1180 * 0.025 + 20 * 0.125) / 1200, (1180 * 0.05 + 20 * 0.1) / 1200
    expected = {"fma": fma, "alu": alu, "fp16": 0.0, "tensor": (80 * 0.6 + 1100 * 0.7) / 1200, "xu": 20 * 0.5 / 1200}
    assert result["metrics"] == pytest.approx({f"pipe_{pipe}_fraction": value for pipe, value in expected.items()})
    gemm, other = result["kernels"]
    assert (gemm["calls"], other["calls"], result["missing"]) == (2, 1, [])
    assert (gemm["total_s"], result["total_s"]) == pytest.approx((1180e-6, 1200e-6))
    assert gemm["tensor"] == pytest.approx((80 * 0.6 + 1100 * 0.7) / 1180)


@pytest.mark.parametrize("value", ["n/a", "", "65,77", "nan"])
def test_a_pipe_that_is_unknown_for_a_kernel_is_absent(tmp_path, value):
    path = tmp_path / "ncu.csv"
    path.write_text((DATA / "columns.csv").read_text().replace('"60.00"', f'"{value}"'))
    result = analyze_pipes(path)
    assert "pipe_tensor_fraction" not in result["metrics"]
    assert result["metrics"]["pipe_xu_fraction"] == pytest.approx(20 * 0.5 / 1200)
    (reason,) = result["missing"]
    assert TENSOR in reason


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "is not a CSV file of Nsight Compute"),
        ("==PROF== Connected\n==ERROR== unrecognised option '--page'\n", "^unrecognised option '--page'$"),
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", "NVreg_RestrictProfilingToAdminUsers=0"),
        ('"ID","Kernel Name"\n"0","' + "x" * 140000 + '"\n', "is damaged"),
        ('"ID","Name"\n"0","gemm"\n', "unknown layout"),
        ('"ID","Kernel Name"\n"","\n', "has no kernels"),
        ('"ID","Kernel Name"\n"0","gemm"\n', "kernel without `gpu__time_duration.sum`"),
        (f'"ID","Kernel Name","{DURATION}"\n"","","cycle"\n"0","gemm","5"\n', f"kernel without `{DURATION}`"),
    ],
)
def test_a_file_without_kernels_is_an_error_with_its_cause(tmp_path, text, cause):
    path = tmp_path / "ncu.csv"
    path.write_text(text)
    with pytest.raises(NsightError, match=cause):
        analyze_pipes(path)
