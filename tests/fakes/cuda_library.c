/* A stand-in for libcuda.so.1 with one device, for the process that holds memory. Its state is a text file:
 * MOEGPU_FAKE_CUDA names it, "pid bytes" of the last allocation; MOEGPU_FAKE_CUDA_TOTAL is the device's memory in bytes,
 * MOEGPU_FAKE_CUDA_CONTEXT what a context takes, MOEGPU_FAKE_CUDA_LARGEST the largest block in one piece. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static size_t used;

static size_t number(const char *name, size_t otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void note(void) {
    FILE *file = fopen(getenv("MOEGPU_FAKE_CUDA"), "w");
    if (!file) return;
    fprintf(file, "%d %zu\n", (int)getpid(), used);
    fclose(file);
}

int cuInit(unsigned flags) {
    (void)flags;
    return (int)number("MOEGPU_FAKE_CUDA_INIT", 0);
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    *context = &used;
    used += number("MOEGPU_FAKE_CUDA_CONTEXT", 0);
    note();
    return 0;
}

int cuCtxSetCurrent(void *context) { return context == &used ? 0 : 201; }

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    *total = number("MOEGPU_FAKE_CUDA_TOTAL", 0);
    *free_bytes = *total - used;
    return 0;
}

int cuMemAlloc_v2(unsigned long long *pointer, size_t size) {
    if (size > number("MOEGPU_FAKE_CUDA_LARGEST", (size_t)-1) || size > number("MOEGPU_FAKE_CUDA_TOTAL", 0) - used) return 2;
    used += size;
    *pointer = used;
    note();
    return 0;
}

int cuGetErrorString(int code, const char **words) {
    *words = code == 2 ? "out of memory" : code == 100 ? "no CUDA-capable device is detected" : "unknown error";
    return 0;
}
