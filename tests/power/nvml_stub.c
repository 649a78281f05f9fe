/* An NVML with two GPUs: each reading of gpu0's counter finds 12.5 J more, of gpu1's 25 J more.
 * STUB=unsupported answers as a Jetson's NVML does, STUB=lost loses the GPUs at the second reading,
 * STUB=silent does not start, STUB=zero has counters that stand at 0, STUB=mig has gpu1 in slices; else gpu1's
 * MIG mode is off, and gpu0 knows no such mode. */
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, AMPERE = 7 };

typedef struct gpu { unsigned index; const char *uuid; unsigned long long mj, step_mj; int readings; } *gpu_t;

static struct gpu gpus[] = {{0, "GPU-aaaa", 1000000, 12500, 0}, {1, "GPU-bbbb", 5000000, 25000, 0}};

static int stub_is(const char *what) {
    const char *stub = getenv("STUB");
    return stub && !strcmp(stub, what);
}

int nvmlInitWithFlags(unsigned flags) { return stub_is("silent") ? DRIVER_NOT_LOADED : SUCCESS; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

int nvmlDeviceGetHandleByUUID(const char *uuid, gpu_t *gpu) {
    for (unsigned i = 0; i < 2; i++)
        if (!strcmp(gpus[i].uuid, uuid)) { *gpu = &gpus[i]; return SUCCESS; }
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu_t *gpu) { *gpu = &gpus[index]; return SUCCESS; }
int nvmlDeviceGetIndex(gpu_t gpu, unsigned *index) { *index = gpu->index; return SUCCESS; }
int nvmlDeviceGetC2cModeInfoV(gpu_t gpu, void *info) { return NOT_SUPPORTED; }
int nvmlDeviceGetArchitecture(gpu_t gpu, unsigned *architecture) { *architecture = AMPERE; return SUCCESS; }

int nvmlDeviceGetMigMode(gpu_t gpu, unsigned *mode, unsigned *pending) {
    if (gpu->index == 0) return NOT_SUPPORTED;
    *mode = *pending = stub_is("mig");
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(gpu_t gpu, unsigned long long *mj) {
    if (stub_is("unsupported")) return NOT_SUPPORTED;
    if (stub_is("lost") && gpu->readings > 1) return GPU_IS_LOST;
    gpu->readings++;
    *mj = stub_is("zero") ? 0 : (gpu->mj += gpu->step_mj);
    return SUCCESS;
}
