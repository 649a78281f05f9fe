"""The files of a machine that a recording contains: what this tool reads, and what a question about it may need.

Patterns are relative to the root of the machine. Nothing else is read, so that a recording contains no user's files.
"""

FILES = (
    # processor, memory, load, storage, network
    *(f"proc/{name}" for name in ("cpuinfo", "meminfo", "stat", "diskstats", "loadavg", "net/dev")),
    *("proc/self/mountinfo", "proc/self/mounts"),
    *("proc/sys/kernel/osrelease", "proc/sys/kernel/hostname", "proc/sys/kernel/random/boot_id"),
    *(f"sys/devices/system/cpu/{name}" for name in ("online", "possible", "cpu[0-9]*/cpufreq/*")),
    *(f"sys/devices/system/cpu/cpu[0-9]*/{name}" for name in ("topology/*_id", "thermal_throttle/*", "cache/*/size")),
    *("sys/class/block/*/size", "sys/class/block/*/removable", "sys/class/block/*/partition"),
    *(f"sys/class/block/*/queue/{name}" for name in ("rotational", "scheduler", "read_ahead_kb")),
    *(f"sys/class/block/*/device/{name}" for name in ("model", "vendor", "type", "name", "transport")),
    # names and releases
    *(f"sys/firmware/devicetree/base/{name}" for name in ("model", "compatible")),
    *(f"sys/class/dmi/id/{name}" for name in ("sys_vendor", "product_name", "board_name", "bios_version")),
    *("etc/os-release", "etc/nv_tegra_release", "etc/nvpmodel.conf", "etc/nvfancontrol.conf"),
    *("var/lib/nvpmodel/status", "var/lib/nvfancontrol/status"),
    # NVIDIA's and AMD's drivers
    *("proc/driver/nvidia/version", "proc/driver/nvidia/gpus/*/information", "proc/driver/nvidia/gpus/*/power"),
    *(f"sys/class/drm/card*/device/{name}" for name in ("uevent", "unique_id", "device", "vendor", "pp_*", "mem_*")),
    *(f"sys/class/drm/card*/device/{name}" for name in ("gpu_busy_percent", "power_dpm_*", "hwmon/hwmon*/*")),
    *("sys/class/kfd/kfd/topology/nodes/*/name", "sys/class/kfd/kfd/topology/nodes/*/properties"),
    # power, temperatures, clocks, limits
    *("sys/class/hwmon/hwmon*/*", "sys/class/hwmon/hwmon*/device/name", "sys/class/powercap/*/*"),
    *(f"sys/bus/i2c/devices/*/{name}" for name in ("name", "iio:device*/*", "hwmon/hwmon*/*", "of_node/*")),
    *("sys/bus/i2c/devices/*/of_node/channel@*/*", "sys/bus/i2c/drivers/ina*/*/name", "sys/bus/iio/devices/*/*"),
    *("sys/class/devfreq/*/*", "sys/class/thermal/thermal_zone*/*", "sys/class/thermal/cooling_device*/*"),
    *("sys/class/power_supply/*/*", "sys/cray/pm_counters/*", "sys/devices/pwm-fan/*"),
    *("sys/devices/gpu.0/load", "sys/devices/platform/gpu.0/load", "sys/devices/platform/*.g*/load"),
    *("sys/devices/platform/bus@0/*.g*/load", "sys/devices/gpu.0/*_pg_mask"),
)
"""Patterns of files; a link on the way to one is recorded as a link."""
FOLDERS = ("sys/class/net/*/device", "sys/dev/block/*", "sys/class/block/*/slaves/*")
"""Patterns of links and folders that count by their existence."""
IDENTIFYING = r"serial|uuid|wwid|wwn|^address|unique_id$|_unique|broadcast|phys_.*_id|^uevent$"
"""Names of files that identify a machine or a part of it. GPUs' `unique_id` and `uevent` have rules of their own."""
GPU_FACTS = ("unique_id", "uevent")

POWER = (
    *("sys/class/powercap/*/energy_uj", "sys/cray/pm_counters/*", "sys/class/power_supply/*/*_now"),
    *(f"{chip}/{name}" for chip in ("sys/class/hwmon/hwmon*", "sys/bus/i2c/devices/*/hwmon/hwmon*",
                                    "sys/class/drm/card*/device/hwmon/hwmon*")
      for name in ("power*_input", "power*_average", "energy*_input", "in[0-9]*_input", "curr*_input")),
    *(f"{device}/in_{quantity}*_input" for device in ("sys/bus/i2c/devices/*/iio:device*", "sys/bus/iio/devices/*")
      for quantity in ("power", "voltage", "current")),
)  # fmt: skip
"""Patterns of files with power and energy, which are sampled often."""
GAUGES = (
    *("proc/stat", "proc/meminfo", "proc/diskstats", "proc/net/dev", "proc/loadavg"),
    *("sys/class/thermal/thermal_zone*/temp", "sys/class/thermal/cooling_device*/cur_state"),
    *("sys/class/hwmon/hwmon*/temp*_input", "sys/class/hwmon/hwmon*/freq*_input", "sys/class/hwmon/hwmon*/pwm1"),
    *("sys/class/hwmon/hwmon*/oc*_event_cnt", "sys/class/devfreq/*/cur_freq", "sys/class/drm/card*/device/mem_*"),
    # Of the first cores only: reading the clock of a core takes up to 10 ms.
    *("sys/devices/system/cpu/cpu[0-7]/cpufreq/scaling_cur_freq", "sys/class/drm/card*/device/gpu_busy_percent"),
    *("sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/package_throttle_count",),
    *("sys/devices/gpu.0/load", "sys/devices/platform/gpu.0/load", "sys/devices/platform/*.g*/load"),
    *("sys/devices/platform/bus@0/*.g*/load",),
)
"""Patterns of files with other quantities that change, which are sampled rarely."""
POWER_PERIOD_S, GAUGE_PERIOD_S = 0.01, 0.5
"""Periods of the samples of both, in seconds."""
JTOP_PERIOD_S = 0.5  # of jtop's service, as of `meter=jtop`
COUNTERS = (
    (r"pm_counters/[^/]*power[^/]*$", 10**12),  # its time in microseconds, not its watts
    (r"(?:^|/)(?:energy[^/]*|[^/]*_energy|stat|diskstats|dev|freshness|[^/]*_cnt|[^/]*_count)$", 0),
)
"""Pattern of a file with counters -> the least number in it that can be one."""
