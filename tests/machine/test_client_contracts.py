"""Each function, constant and field of a driver's Python client that this project uses exists in the real client.

nvidia-ml-py is imported, which needs no driver. The sources of amdsmi and jetson-stats are parsed instead: the first
needs ROCm's library, and the second changes how this process starts others. Their tests are skipped without them:
`pip install amdsmi jetson-stats`.
"""

import ast
import importlib.util
import inspect
import re
from functools import cache
from pathlib import Path

import pytest

from epochmeter.machine import amd, nvml
from epochmeter.machine.recorded import driver_calls, jtop_calls

SOURCES = [*(Path(nvml.__file__).parents[1]).rglob("*.py")]
BY_CALLER = {  # number of arguments with which functions of NVML are called, with the handle
    "nvmlDeviceGetHandleByIndex": 1, "nvmlDeviceGetHandleByUUID": 1, "nvmlDeviceSetPowerManagementLimit": 2,
    "nvmlDeviceGetPowerManagementLimitConstraints": 1, "nvmlDeviceGetPowerManagementLimit": 1,
    "nvmlDeviceGetClockInfo": 2, "nvmlDeviceGetTemperature": 2, "nvmlDeviceGetFieldValues": 2,
    "nvmlDeviceSetGpuLockedClocks": 3, "nvmlDeviceSetMemoryLockedClocks": 3, "nvmlDeviceResetGpuLockedClocks": 1,
    "nvmlDeviceResetMemoryLockedClocks": 1, "nvmlDeviceGetSupportedMemoryClocks": 1,
    "nvmlDeviceGetSupportedGraphicsClocks": 2, "nvmlGpmSampleGet": 2, "nvmlGpmMigSampleGet": 3, "nvmlGpmSampleAlloc": 0,
    "nvmlGpmSampleFree": 1, "nvmlGpmMetricsGet": 1, "nvmlGpmQueryDeviceSupport": 1, "nvmlInit": 0, "nvmlShutdown": 0,
    "nvmlDeviceGetComputeRunningProcesses": 1, "nvmlDeviceGetGpuInstanceId": 1, "nvmlDeviceGetMigMode": 1,
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": 1, "nvmlDeviceGetC2cModeInfoV": 1,
}  # fmt: skip
CALLS = (
    *((name,) for name in driver_calls.SYSTEM_CALLS),
    *driver_calls.POWER_CALLS,
    *driver_calls.GAUGE_CALLS,
    *driver_calls.GPU_CALLS,
)
"""Functions of NVML with their constants, in a recording."""
AMD_ARGUMENTS = {  # with the handle; other functions have only that
    "amdsmi_init": 1, "amdsmi_get_clock_info": 2, "amdsmi_set_gpu_clk_range": 4, "amdsmi_set_gpu_perf_level": 2,
}  # fmt: skip
AMD_FIELDS = {
    "amdsmi_get_clock_info": ("min_clk", "max_clk"),
    "amdsmi_get_energy_count": ("energy_accumulator", "counter_resolution"),
    "amdsmi_get_gpu_metrics_info": (
        *("system_clock_counter", "accumulation_counter"),
        *amd.ACTIVITIES.values(),
        *amd.LINKS.values(),
    ),
}
JTOP = {  # class -> what this project uses of it, with the number of arguments of methods
    "jtop": {"__init__": 1, "start": 0, "close": 0, "ok": 1,
             **dict.fromkeys((*jtop_calls.ONCE, *jtop_calls.POWER, *jtop_calls.GAUGES), 0)},
    "NVPModel": {"set_nvpmodel_id": 1, **dict.fromkeys(jtop_calls.MEMBERS["nvpmodel"], 0)},
    "JetsonClocks": dict.fromkeys(jtop_calls.MEMBERS["jetson_clocks"], 0),
    "Fan": {"set_profile": 2, "set_speed": 2},
    "GenericInterface": {"__iter__": 0, "items": 0},
}  # fmt: skip


def words(pattern):
    """The names of a form in the code of this project."""
    return {name for file in SOURCES for name in re.findall(pattern, file.read_text())}


@pytest.fixture(scope="module")
def pynvml():
    return pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")


def test_functions_of_nvml_exist_and_take_the_arguments_of_this_project(pynvml):
    for function, count in BY_CALLER.items():
        inspect.signature(getattr(pynvml, function)).bind(*[None] * count)
    for function, *constants in CALLS:
        count = len(constants) if function != driver_calls.FIELDS else 1
        inspect.signature(getattr(pynvml, function)).bind(*[None] * (count + (not function.startswith("nvmlSystem"))
                                                                     - (function == "nvmlDeviceGetCount")))  # fmt: skip


def test_constants_of_nvml_exist(pynvml):
    named = words(r"\.(NVML_[A-Z0-9_]+)\b") | {constant for _, *constants in CALLS for constant in constants}
    named |= {f"NVML_GPM_METRIC_{name}" for name, _ in nvml.GPM.values()}
    named |= {f"nvmlClocksThrottleReason{name}" for reasons in nvml.THROTTLE_REASONS.values() for name in reasons}
    named |= {*driver_calls.GPM_ERRORS.values(), "NVML_GPM_METRICS_GET_VERSION", "c_nvmlGpmMetricsGet_t"}
    assert len(named) > 30
    assert [name for name in sorted(named) if not hasattr(pynvml, name)] == []


def test_functions_of_nvml_in_the_code_exist(pynvml):
    named = words(r"[\"\.](nvml(?:Device|System|Gpm|Init|Shutdown)[A-Za-z]*)\b")
    parts = {name for name in named if name.endswith(("Get", "Set", "Reset"))}  # of names that are composed
    assert [name for name in sorted(named - parts) if not hasattr(pynvml, name)] == []


def test_structures_of_nvml_have_the_fields_of_this_project(pynvml):
    fields = {
        "c_nvmlUtilization_t": ("gpu",), "c_nvmlMemory_t": ("used",), "nvmlPciInfo_t": ("busId",),
        "c_nvmlC2cModeInfo_v1_t": ("isC2cEnabled",), "c_nvmlGpmSupport_t": ("isSupportedDevice",),
        "c_nvmlFieldValue_t": ("nvmlReturn", "value"), "c_nvmlValue_t": ("uiVal",),
        "c_nvmlGpmMetric_t": ("metricId", "nvmlReturn", "value"), "c_nvmlProcessInfo_v2_t": ("pid", "usedGpuMemory"),
        "c_nvmlGpmMetricsGet_t": ("version", "numMetrics", "sample1", "sample2", "metrics"),
    }  # fmt: skip
    for name, wanted in fields.items():
        assert {field for field, *_ in getattr(pynvml, name)._fields_} >= {*wanted}, name


@cache
def parsed(package, file):
    """The syntax tree of a module of a package that is installed but not imported; skips the test without it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin:
        pytest.skip(f"{package} is not installed")
    return ast.parse((Path(spec.origin).parent / file).read_text())


def functions_of(tree):
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def classes_of(tree):
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def takes(function, count, *, is_method=False):
    """Whether a function can be called with a number of positional arguments."""
    most = len(function.args.args) - is_method
    return most - len(function.args.defaults) <= count <= most or function.args.vararg is not None


def test_functions_and_fields_of_amdsmi_exist():
    tree = parsed("amdsmi", "amdsmi_interface.py")
    functions, used = functions_of(tree), words(r"[\"\.](amdsmi_[a-z_]+)\b") - {"amdsmi_interface"}
    assert len(used) >= 12
    assert sorted(used - functions.keys()) == []
    assert [name for name in used if not takes(functions[name], AMD_ARGUMENTS.get(name, 1))] == []
    for name, fields in AMD_FIELDS.items():
        texts = {node.value for node in ast.walk(functions[name]) if isinstance(node, ast.Constant)}
        assert [field for field in fields if field not in texts] == [], name


def test_enumerations_of_amdsmi_have_the_members_of_this_project():
    classes = classes_of(parsed("amdsmi", "amdsmi_interface.py"))

    def members(name):
        return {target.id for node in classes[name].body if isinstance(node, ast.Assign) for target in node.targets}

    assert members("AmdSmiClkType") >= {"GFX", "MEM"}
    assert members("AmdSmiInitFlags") >= {"INIT_AMD_GPUS"}
    assert members("AmdSmiDevPerfLevel") >= {"AUTO", "MANUAL", "LOW", "HIGH", "DETERMINISM"}
    assert "AmdSmiException" in classes_of(parsed("amdsmi", "amdsmi_exception.py"))


def test_client_of_jtop_has_the_attributes_of_this_project():
    files = {
        "jtop": "jtop.py",
        "NVPModel": "core/nvpmodel.py",
        "JetsonClocks": "core/jetson_clocks.py",
        "Fan": "core/fan.py",
        "GenericInterface": "core/common.py",
    }
    for name, wanted in JTOP.items():
        (node,) = [one for one in classes_of(parsed("jtop", files[name])).values() if one.name == name]
        # Of a property, the getter is before its setter.
        methods = {one.name: one for one in reversed(node.body) if isinstance(one, ast.FunctionDef)}
        assert sorted(wanted.keys() - methods.keys()) == [], name
        assert [one for one, count in wanted.items() if not takes(methods[one], count, is_method=True)] == [], name
    exported = ast.dump(parsed("jtop", "__init__.py"))
    assert "JtopException" in exported
    assert "'jtop'" in exported
