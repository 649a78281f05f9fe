/* A stub of NVML with two GPUs. STUB selects its behavior by comma-separated words:
 *
 *   (none)        each reading of gpu0's counter adds 12.5 J, of gpu1's 25 J
 *   ticks         the counters are updated every 100 ms of CLOCK_MONOTONIC, at STUB_W watts (200)
 *   fast          the same, every 10 ms
 *   unsupported   as on a Jetson: it starts, but supports nothing
 *   silent        does not start
 *   zero          the counters are 0
 *   nocounter     no energy counter, as before Volta
 *   nopower       no power reading
 *   instant       instantaneous power is a field value; the usual reading is 9/10 of it
 *   module        so is that of the GPU's module: 5/2 of the GPU's
 *   total         the updated counters are of the module
 *   oneboard      both GPUs are on the same board
 *   noserial      the serial numbers of boards are not known
 *   ga100         the GPUs' compute capability is 8.0, else 8.6
 *   wsl           the GPUs have no minor numbers, as under WSL2
 *   hopper        the GPUs have performance counters (GPM)
 *   dcgm          another program uses these counters
 *   mig           gpu1 is in MIG mode, with the slice MIG-cccc; gpu0 does not support that mode
 *   throttled     power cap and temperature lower the clocks
 *   capped        the power cap lowers the clocks
 *   gh200         the GPUs are named GH200
 *   superchip     NVLink-C2C connects the GPUs to a CPU, as in a Grace Hopper
 *   nopermission  the power limit may not be set
 *   dcgm, root    another program uses the performance counters; only root may read them
 *   no_effect     setting the power limit has no effect
 *   late          a power limit takes effect 0.2 s after it is set; setting the current one has no effect
 *   only0         the power limit of gpu1 may not be set
 *
 *   sliced        the driver attributes energy and power to a MIG slice: 2/5 of the GPU's power
 *   whole         the driver shows the GPU's energy and power for a MIG slice
 *   noclocks      the clocks cannot be locked, as before Volta
 *   held          another program holds the clocks higher than they are locked
 *
 * Locks of clocks, as `lowest highest` MHz, are in STUB_LIMIT.gpu and STUB_LIMIT.memory, and gpu1's in STUB_LIMIT.1.gpu
 * and so on. Without them, the GPU's clock is 1410 MHz and its memory's 1215 MHz.
 *
 * STUB_PROCESSES lists the processes on gpu0 as `pid:MiB`, separated by spaces; -1 MiB is unknown.
 *
 * Power limits, 100 to 300 W and initially 250 W, are in the file STUB_LIMIT (gpu1: STUB_LIMIT.1), in milliwatts,
 * so that other processes read them. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9,
    IN_USE = 19, POWER_INSTANT = 186, MODULE_SCOPE = 1, UNSIGNED_INT = 1,
    MIN_MW = 100000, DEFAULT_MW = 250000, MAX_MW = 300000, SW_POWER_CAP = 0x4, SW_THERMAL_SLOWDOWN = 0x20
};

typedef struct gpu { unsigned index; const char *uuid; unsigned long long mj, step_mj; } *gpu_t;
typedef struct { unsigned id, scope; int64_t at, latency; unsigned type, code; union { unsigned mw; double any; }; } field_t;
typedef struct { char old_id[16]; unsigned domain, bus, device, pci_device, pci_subsystem; char id[32]; } pci_t;

static struct gpu gpus[] = {{0, "GPU-aaaa", 1000000, 12500}, {1, "GPU-bbbb", 5000000, 25000}, {0, "MIG-cccc"}};

static int stub_is(const char *what) {
    const char *stub = getenv("STUB");
    return stub && strstr(stub, what);
}

static int answer(void) { return stub_is("unsupported") ? NOT_SUPPORTED : SUCCESS; }

static unsigned power_mw(void) {
    const char *watts = getenv("STUB_W");
    return 1000 * (watts ? atof(watts) : 200);
}

static unsigned module_mw(void) { return power_mw() / 2 * 5; }

static unsigned long long ticked_mj(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    unsigned ticks_per_s = stub_is("fast") ? 100 : 10;
    unsigned long long ticks = now.tv_sec * ticks_per_s + now.tv_nsec / (1000000000 / ticks_per_s);
    return ticks * (stub_is("total") ? module_mw() : power_mw()) / ticks_per_s;
}

/* The driver */

int nvmlInitWithFlags(unsigned flags) { return stub_is("silent") ? DRIVER_NOT_LOADED : SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case IN_USE: return "In use by another client";
    default: return "Unknown Error";
    }
}

/* Properties of a GPU */

int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return SUCCESS; }

int nvmlDeviceGetHandleByUUID(const char *uuid, gpu_t *gpu) {
    for (unsigned i = 0; i < 3; i++)
        if (!strcmp(gpus[i].uuid, uuid)) { *gpu = &gpus[i]; return SUCCESS; }
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu_t *gpu) { *gpu = &gpus[index]; return SUCCESS; }
int nvmlDeviceGetIndex(gpu_t gpu, unsigned *index) { *index = gpu->index; return SUCCESS; }
int nvmlDeviceGetUUID(gpu_t gpu, char *uuid, unsigned room) { snprintf(uuid, room, "%s", gpu->uuid); return SUCCESS; }
int nvmlDeviceGetName(gpu_t gpu, char *name, unsigned room) {
    snprintf(name, room, "%s", stub_is("gh200") ? "NVIDIA GH200 480GB" : "Stub GPU");
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(gpu_t gpu, int *major, int *minor) {
    *major = 8, *minor = stub_is("ga100") ? 0 : 6;
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(gpu_t gpu, pci_t *pci) {
    *pci = (pci_t){.bus = gpu->index + 1};
    snprintf(pci->id, sizeof pci->id, "00000000:%02X:00.0", pci->bus);
    return SUCCESS;
}

int nvmlDeviceGetMinorNumber(gpu_t gpu, unsigned *minor) {
    *minor = gpu->index;
    return stub_is("wsl") ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetSerial(gpu_t gpu, char *serial, unsigned room) {
    snprintf(serial, room, "%u", stub_is("oneboard") ? 0 : gpu->index);
    return stub_is("noserial") ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetC2cModeInfoV(gpu_t gpu, unsigned *enabled) {
    *enabled = 1;
    return stub_is("superchip") ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetMigMode(gpu_t gpu, unsigned *mode, unsigned *pending) {
    if (gpu->index == 0) return NOT_SUPPORTED;
    *mode = *pending = stub_is("mig") != 0;
    return SUCCESS;
}

/* Energy and power */

int nvmlDeviceGetTotalEnergyConsumption(gpu_t gpu, unsigned long long *mj) {
    if (stub_is("nocounter")) return NOT_SUPPORTED;
    if (answer()) return answer();
    if (gpu == &gpus[2]) {
        *mj = stub_is("sliced") ? ticked_mj() / 5 * 2 : ticked_mj();
        return stub_is("sliced") || stub_is("whole") ? SUCCESS : NOT_SUPPORTED;
    }
    *mj = stub_is("zero") ? 0 : stub_is("ticks") || stub_is("fast") ? ticked_mj() : (gpu->mj += gpu->step_mj);
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(gpu_t gpu, unsigned *mw) {
    if (stub_is("nopower")) return NOT_SUPPORTED;
    if (answer()) return answer();
    if (gpu == &gpus[2]) {
        *mw = stub_is("sliced") ? power_mw() / 5 * 2 : power_mw();
        return stub_is("sliced") || stub_is("whole") ? SUCCESS : NOT_SUPPORTED;
    }
    *mw = stub_is("instant") ? power_mw() / 10 * 9 : power_mw();
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(gpu_t gpu, int count, field_t *fields) {
    if (answer()) return answer();
    for (field_t *field = fields; field < fields + count; field++) {
        int is_module = field->scope == MODULE_SCOPE;
        int has_scope = stub_is(is_module ? "module" : "instant");
        field->code = has_scope && field->id == POWER_INSTANT ? SUCCESS : NOT_SUPPORTED;
        field->type = UNSIGNED_INT;
        field->mw = is_module ? module_mw() : power_mw();
    }
    return SUCCESS;
}

/* The power limit */

static FILE *limit_file(gpu_t gpu, const char *mode) {
    char path[4096];
    if (!getenv("STUB_LIMIT")) return NULL;
    snprintf(path, sizeof path, gpu->index ? "%s.%u" : "%s", getenv("STUB_LIMIT"), gpu->index);
    return fopen(path, mode);
}

static struct { unsigned mw; double due_s; } late[2];

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void keep_limit(gpu_t gpu, unsigned mw) {
    FILE *file = limit_file(gpu, "w");
    if (file) { fprintf(file, "%u\n", mw); fclose(file); }
}

int nvmlDeviceGetPowerManagementLimit(gpu_t gpu, unsigned *mw) {
    if (late[gpu->index].mw && now_s() >= late[gpu->index].due_s) {
        keep_limit(gpu, late[gpu->index].mw);
        late[gpu->index].mw = 0;
    }
    *mw = DEFAULT_MW;
    FILE *file = limit_file(gpu, "r");
    if (file) { if (fscanf(file, "%u", mw) != 1) *mw = DEFAULT_MW; fclose(file); }
    return answer();
}

int nvmlDeviceGetPowerManagementLimitConstraints(gpu_t gpu, unsigned *min_mw, unsigned *max_mw) {
    *min_mw = MIN_MW, *max_mw = MAX_MW;
    return answer();
}

int nvmlDeviceSetPowerManagementLimit(gpu_t gpu, unsigned mw) {
    if (answer()) return answer();
    if (stub_is("nopermission") || (stub_is("only0") && gpu->index)) return NO_PERMISSION;
    if (mw < MIN_MW || mw > MAX_MW) return INVALID_ARGUMENT;
    if (stub_is("late")) {
        unsigned present;
        nvmlDeviceGetPowerManagementLimit(gpu, &present);
        if (mw != present) late[gpu->index].mw = mw, late[gpu->index].due_s = now_s() + 0.2;
    } else if (!stub_is("no_effect")) keep_limit(gpu, mw);
    return SUCCESS;
}

/* Performance monitoring (GPM): a sample is the number of readings; each counter's mean is its number plus the GPU's
 * index, and that of a counter above 60 is not supported. */

typedef struct sample { int readings; unsigned gpu; } *gpm_sample_t;
typedef struct { unsigned id; int code; double value; const char *texts[3]; } gpm_metric_t;
typedef struct { unsigned version, count; gpm_sample_t first, second; gpm_metric_t metrics[]; } gpm_request_t;
static int gpm_samples, gpm_readings;

int nvmlGpmQueryDeviceSupport(gpu_t gpu, unsigned *version_supported) {
    version_supported[1] = stub_is("hopper") != 0;
    return SUCCESS;
}
int nvmlGpmSampleAlloc(gpm_sample_t *sample) { *sample = calloc(1, sizeof **sample); gpm_samples++; return SUCCESS; }
int nvmlGpmSampleFree(gpm_sample_t sample) { free(sample); gpm_samples--; return SUCCESS; }
int nvmlGpmOpenSamples(void) { return gpm_samples; }
int nvmlGpmSampleGet(gpu_t gpu, gpm_sample_t sample) {
    if (stub_is("dcgm") || stub_is("root")) return stub_is("root") ? NO_PERMISSION : IN_USE;
    *sample = (struct sample){++gpm_readings, gpu->index};
    return SUCCESS;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpu_t slice, gpu_t *gpu) {
    *gpu = &gpus[1];
    return slice == &gpus[2] ? SUCCESS : INVALID_ARGUMENT;
}
int nvmlDeviceGetGpuInstanceId(gpu_t slice, unsigned *instance) { *instance = 7; return SUCCESS; }
int nvmlGpmMigSampleGet(gpu_t gpu, unsigned instance, gpm_sample_t sample) {
    *sample = (struct sample){++gpm_readings, 10 * instance};
    return gpu == &gpus[1] ? SUCCESS : INVALID_ARGUMENT;
}
int nvmlGpmMetricsGet(gpm_request_t *request) {
    if (request->version != 1 || request->second->readings <= request->first->readings) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < request->count; i++) {
        request->metrics[i].value = request->metrics[i].id + request->second->gpu;
        request->metrics[i].code = request->metrics[i].id > 60 ? NOT_SUPPORTED : SUCCESS;
    }
    return SUCCESS;
}

/* Activity */

int nvmlDeviceGetUtilizationRates(gpu_t gpu, unsigned *percent) { percent[0] = 87, percent[1] = 40; return answer(); }
int nvmlDeviceGetMemoryInfo(gpu_t gpu, unsigned long long *bytes) { bytes[0] = 8000000000, bytes[2] = 3000000000; return answer(); }
int nvmlDeviceGetTemperature(gpu_t gpu, unsigned sensor, unsigned *celsius) { *celsius = 61; return answer(); }

/* Locked clocks */

enum { MEMORY_CLOCK = 2, MEMORY_MHZ = 1215, SLOW_MEMORY_MHZ = 405, LOW_MHZ = 210, HIGH_MHZ = 1410, STEP_MHZ = 15 };

static char *lock_path(gpu_t gpu, int is_memory, char *path, unsigned room) {
    const char *limit = getenv("STUB_LIMIT");
    if (!limit) return NULL;
    snprintf(path, room, "%s%s.%s", limit, gpu->index ? ".1" : "", is_memory ? "memory" : "gpu");
    return path;
}

static int list_clocks(unsigned low, unsigned high, unsigned step, unsigned *count, unsigned *clocks) {
    unsigned had = *count;
    *count = (high - low) / step + 1;
    if (!clocks || had < *count) return 7;
    for (unsigned i = 0; i < *count; i++) clocks[i] = high - i * step;
    return SUCCESS;
}

int nvmlDeviceGetSupportedMemoryClocks(gpu_t gpu, unsigned *count, unsigned *clocks) {
    if (stub_is("noclocks")) return NOT_SUPPORTED;
    return answer() ? answer() : list_clocks(SLOW_MEMORY_MHZ, MEMORY_MHZ, MEMORY_MHZ - SLOW_MEMORY_MHZ, count, clocks);
}

int nvmlDeviceGetSupportedGraphicsClocks(gpu_t gpu, unsigned memory, unsigned *count, unsigned *clocks) {
    return answer() ? answer() : list_clocks(LOW_MHZ, memory == MEMORY_MHZ ? HIGH_MHZ : 405, STEP_MHZ, count, clocks);
}

static int lock(gpu_t gpu, int is_memory, unsigned low, unsigned high) {
    char path[4096];
    if (answer()) return answer();
    if (stub_is("nopermission") || (stub_is("only0") && gpu->index)) return NO_PERMISSION;
    if (!lock_path(gpu, is_memory, path, sizeof path)) return INVALID_ARGUMENT;
    if (!high) { remove(path); return SUCCESS; }
    if ((low - LOW_MHZ) % STEP_MHZ || high > (is_memory ? MEMORY_MHZ : HIGH_MHZ)) return INVALID_ARGUMENT;
    FILE *file = stub_is("no_effect") ? NULL : fopen(path, "w");
    if (file) { fprintf(file, "%u %u\n", low, high); fclose(file); }
    return SUCCESS;
}

int nvmlDeviceSetGpuLockedClocks(gpu_t gpu, unsigned low, unsigned high) { return lock(gpu, 0, low, high); }
int nvmlDeviceResetGpuLockedClocks(gpu_t gpu) { return lock(gpu, 0, 0, 0); }
int nvmlDeviceSetMemoryLockedClocks(gpu_t gpu, unsigned low, unsigned high) { return lock(gpu, 1, low, high); }
int nvmlDeviceResetMemoryLockedClocks(gpu_t gpu) { return lock(gpu, 1, 0, 0); }

int nvmlDeviceGetClockInfo(gpu_t gpu, unsigned type, unsigned *mhz) {
    char path[4096];
    int is_memory = type == MEMORY_CLOCK;
    *mhz = is_memory ? MEMORY_MHZ : HIGH_MHZ;
    FILE *file = lock_path(gpu, is_memory, path, sizeof path) ? fopen(path, "r") : NULL;
    unsigned low, high;
    if (file) { if (fscanf(file, "%u %u", &low, &high) == 2 && !stub_is("held")) *mhz = high; fclose(file); }
    return answer();
}

int nvmlDeviceGetCurrentClocksThrottleReasons(gpu_t gpu, unsigned long long *reasons) {
    *reasons = stub_is("throttled") ? SW_POWER_CAP | SW_THERMAL_SLOWDOWN : stub_is("capped") ? SW_POWER_CAP : 0;
    return answer();
}

/* Processes */

typedef struct { unsigned pid; unsigned long long bytes; unsigned instance, compute; } process_t;
enum { INSUFFICIENT_SIZE = 7, MOST = 16 };
static struct { unsigned pid; long mib; } users[MOST];

static unsigned find_users(gpu_t gpu) {
    const char *text = getenv("STUB_PROCESSES");
    unsigned count = 0;
    for (int read = 0; text && gpu->index == 0 && count < MOST; text += read, count++)
        if (sscanf(text, " %u:%ld%n", &users[count].pid, &users[count].mib, &read) < 2) break;
    return count;
}

int nvmlDeviceGetComputeRunningProcesses_v3(gpu_t gpu, unsigned *room, process_t *processes) {
    if (answer()) return answer();
    unsigned count = find_users(gpu), had = *room;
    *room = count;
    if (count > had) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < count; i++)
        processes[i] = (process_t){users[i].pid, users[i].mib < 0 ? ~0ULL : (unsigned long long)users[i].mib << 20, ~0, ~0};
    return SUCCESS;
}
