/* A stub of amdsmi with one GPU, at 0000:c1:00.0, whose counter increases by 90 W in steps of 15.3 uJ.
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
