/* A stub of amdsmi with one GPU, at 0000:c1:00.0, whose counter increases by 90 W in steps of 15.3 uJ.
 * Its firmware accumulates 75 % utilization of compute and 20 % of memory, and 3 + 1 MiB over two of eight XGMI links; two
 * seconds pass between readings. STUB=cycles: it counts its cycles, of 2 ms; STUB=other: it accumulates nothing, as of a
 * Radeon; STUB=percent: utilization is a hundred times too large.
 * STUB=still: it does not advance; STUB=unit: its step is reported a thousand times too large; STUB=unsupported: no
 * counter; STUB=silent: ROCm does not start; STUB=lost: the GPU is lost at the fourth reading. The test adds the other
 * symbols that the client binds. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 2, NOT_FOUND = 31, DRIVER_NOT_LOADED = 34, FIRST = 0xc100 };

static int gpu, readings;

static int stub_is(const char *what) { return getenv("STUB") && !strcmp(getenv("STUB"), what); }

int amdsmi_init(uint64_t flags) { return stub_is("silent") ? DRIVER_NOT_LOADED : SUCCESS; }

int amdsmi_get_processor_handle_from_bdf(uint64_t place, void **handle) {
    *handle = &gpu;
    return place == FIRST ? SUCCESS : NOT_FOUND;
}

int amdsmi_get_energy_count(void *handle, uint64_t *steps, float *step_uj, uint64_t *at_ns) {
    struct timespec now;
    if (stub_is("unsupported")) return NOT_SUPPORTED;
    if (stub_is("lost") && readings++ > 2) return NOT_FOUND;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *at_ns = now.tv_sec * 1000000000ULL + now.tv_nsec;
    *steps = stub_is("still") ? 1000000 : *at_ns * 90 / 15300;
    *step_uj = stub_is("unit") ? 15300 : 15.3;
    return SUCCESS;
}

typedef struct { /* amdsmi_gpu_metrics_t of amdsmi 7.0 up to the counter of cycles; 0xFF: the GPU lacks it */
    uint32_t header;
    uint16_t temperatures[6], activities[3], power_w;
    uint64_t energy, at_ns;
    uint16_t clocks[14];
    uint32_t throttling;
    uint16_t fan, pcie_width, pcie_speed;
    uint32_t gfx_percent, memory_percent;
    uint16_t hbm[4];
    uint64_t firmware_at;
    uint16_t voltages[3];
    uint64_t throttlers;
    uint16_t socket_power_w, video[4];
    uint32_t locked;
    uint16_t xgmi_width, xgmi_speed;
    uint64_t pcie[5], read_kib[8], written_kib[8];
    uint16_t gfx_clocks[8], other_clocks[12], jpeg[32];
    uint32_t naks[2];
    uint64_t cycles;
} Metrics;

int amdsmi_get_gpu_metrics_info(void *handle, Metrics *metrics) {
    static uint64_t reading;
    uint64_t cycles = stub_is("cycles") ? 1000 : 2000, percent = stub_is("percent") ? 7500 : 75;
    if (stub_is("unsupported")) return NOT_SUPPORTED;
    memset(metrics, 0xFF, sizeof *metrics);
    metrics->at_ns = ++reading * 2000000000;
    if (stub_is("other")) return SUCCESS;
    metrics->gfx_percent = 4294292296u + reading * cycles * percent; /* exceeds 32 bits at the fifth reading */
    metrics->memory_percent = reading * cycles * 20;
    metrics->read_kib[0] = reading * 3072;
    metrics->read_kib[3] = reading * 1024;
    metrics->written_kib[0] = reading * 2048;
    if (stub_is("cycles")) metrics->cycles = reading * cycles;
    return SUCCESS;
}

/* Clocks: 500 to 1700 MHz of the GPU, and 900 MHz of its memory; STUB=noclocks: their ranges are not reported;
 * STUB=refused: they may not be set. */

enum { NO_PERMISSION = 10, MEMORY_CLOCK = 4, LEVEL_AUTO = 0, LEVEL_MANUAL = 3 };
typedef struct { uint32_t now, low, high; uint8_t locked, deep_sleep, padding[2]; uint32_t reserved[4]; } Clock;
static Clock clocks[2] = {{1500, 500, 1700}, {900, 900, 900}};
static uint32_t level = LEVEL_AUTO;

int amdsmi_get_clock_info(void *handle, uint32_t type, Clock *clock) {
    if (stub_is("noclocks")) return NOT_SUPPORTED;
    *clock = clocks[type == MEMORY_CLOCK];
    return SUCCESS;
}

int amdsmi_set_gpu_clk_range(void *handle, uint64_t low, uint64_t high, uint32_t type) {
    if (stub_is("refused")) return NO_PERMISSION;
    clocks[type == MEMORY_CLOCK].low = low, clocks[type == MEMORY_CLOCK].high = high;
    level = LEVEL_MANUAL;
    return SUCCESS;
}

int amdsmi_get_gpu_perf_level(void *handle, uint32_t *now) { *now = level; return SUCCESS; }
int amdsmi_set_gpu_perf_level(void *handle, uint32_t wanted) { level = wanted; return SUCCESS; }
