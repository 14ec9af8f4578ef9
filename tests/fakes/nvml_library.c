/* A stand-in for libnvidia-ml.so.1 that answers from a text file, named by NVML_SCRIPT. One row an answer:

     FUNCTION DEVICE [@CALL] CODE [NAME=VALUE ...]

   DEVICE is the index of a GPU, GPU/PLACE for a MIG instance, or - for functions without a device. CODE is `ok` or an
   NVML_ERROR_ name without its front. A row with @CALL holds from that call on (1 is the first); of several rows that
   hold the last one is taken. VALUE is a number, `ones` for all ones, or after `text=` the rest of the row.
   A device function whose row has sleep= answers after so many milliseconds.
   A device function without a row is NOT_SUPPORTED. # begins a comment. Structures and codes are those of nvml.h. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       ARGUMENT_VERSION_MISMATCH = 25 };

static const struct { const char *name; int code; } CODES[] = {
    {"ok", 0}, {"UNINITIALIZED", 1}, {"INVALID_ARGUMENT", 2}, {"NOT_SUPPORTED", 3}, {"NO_PERMISSION", 4},
    {"NOT_FOUND", 6}, {"INSUFFICIENT_SIZE", 7}, {"INSUFFICIENT_POWER", 8}, {"DRIVER_NOT_LOADED", 9}, {"TIMEOUT", 10},
    {"IRQ_ISSUE", 11}, {"LIBRARY_NOT_FOUND", 12}, {"FUNCTION_NOT_FOUND", 13}, {"CORRUPTED_INFOROM", 14},
    {"GPU_IS_LOST", 15}, {"RESET_REQUIRED", 16}, {"OPERATING_SYSTEM", 17}, {"LIB_RM_VERSION_MISMATCH", 18},
    {"NO_DATA", 21}, {"ARGUMENT_VERSION_MISMATCH", 25}, {"DEPRECATED", 26}, {"GPU_NOT_FOUND", 28}, {"UNKNOWN", 999},
};

enum { MOST_ROWS = 1000, LONGEST_ROW = 4000 };
typedef struct { char function[64], device[16], values[LONGEST_ROW]; unsigned from; int code; } Row;
typedef struct { char function[64], device[16]; unsigned calls; } Counter;
typedef struct { char name[16]; } Device;

static Row rows[MOST_ROWS];
static Counter counters[MOST_ROWS];
static Device devices[64];
static int row_count = -1, counter_count, device_count, running;

static void stop(const char *what, const char *text) {
    fprintf(stderr, "NVML_SCRIPT: %s: %s\n", what, text);
    abort();
}

static int code_of(const char *name) {
    for (size_t i = 0; i < sizeof CODES / sizeof *CODES; i++)
        if (!strcmp(CODES[i].name, name)) return CODES[i].code;
    stop("unknown code", name);
    return 0;
}

static void load(void) {
    if (row_count >= 0) return;
    const char *path = getenv("NVML_SCRIPT");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) stop("cannot be read", path ? path : "not set");
    char line[LONGEST_ROW];
    row_count = 0;
    while (fgets(line, sizeof line, file)) {
        Row *row = &rows[row_count];
        char call[64], code[64];
        int end = 0;
        line[strcspn(line, "#\n")] = 0;
        if (line[strspn(line, " ")] == 0) continue;
        if (row_count == MOST_ROWS || sscanf(line, "%63s %15s %63s %n", row->function, row->device, call, &end) != 3)
            stop("bad row", line);
        row->from = 1;
        strcpy(code, call);
        if (call[0] == '@') {
            int more = 0;
            row->from = (unsigned)atoi(call + 1);
            if (sscanf(line + end, "%63s %n", code, &more) != 1) stop("bad row", line);
            end += more;
        }
        row->code = code_of(code);
        snprintf(row->values, sizeof row->values, " %s", line + end);
        row_count++;
    }
    fclose(file);
}

static unsigned *calls_of(const char *function, const char *device) {
    for (int i = 0; i < counter_count; i++)
        if (!strcmp(counters[i].function, function) && !strcmp(counters[i].device, device)) return &counters[i].calls;
    if (counter_count == MOST_ROWS) stop("too many functions", function);
    Counter *counter = &counters[counter_count++];
    snprintf(counter->function, sizeof counter->function, "%s", function);
    snprintf(counter->device, sizeof counter->device, "%s", device);
    return &counter->calls;
}

/* The row that holds for this call, which is counted unless it repeats the one before; NULL without one. */
static const Row *row_of(const char *function, const char *device, int repeated) {
    load();
    unsigned *calls = calls_of(function, device);
    const Row *found = NULL;
    if (!repeated) ++*calls;
    for (int i = 0; i < row_count; i++)
        if (!strcmp(rows[i].function, function) && !strcmp(rows[i].device, device) && rows[i].from <= *calls)
            found = &rows[i];
    return found;
}

/* Find the value NAME= at or after `from`; NULL when there is none. */
static const char *value_of(const char *from, const char *name) {
    char key[32];
    snprintf(key, sizeof key, " %s=", name);
    const char *place = strstr(from, key);
    return place ? place + strlen(key) : NULL;
}

static uint64_t number_at(const char *text) { return strncmp(text, "ones", 4) ? strtoull(text, NULL, 0) : UINT64_MAX; }

static int number(const char *values, const char *name, uint64_t *number) {
    const char *text = value_of(values, name);
    if (!text) return NOT_SUPPORTED;
    *number = number_at(text);
    return SUCCESS;
}

static int answer(const char *function, const char *device, const char **values) {
    if (!running) return UNINITIALIZED;
    const Row *row = row_of(function, device, 0);
    if (!row) return NOT_SUPPORTED;
    uint64_t pause = 0;
    if (number(row->values, "sleep", &pause) == SUCCESS)
        nanosleep(&(struct timespec){(time_t)(pause / 1000), (long)(pause % 1000 * 1000000)}, NULL);
    *values = row->values;
    return row->code;
}

static uint64_t required(const char *values, const char *name) {
    const char *text = value_of(values, name);
    if (!text) stop("value missing", name);
    return number_at(text);
}

static int text_answer(const char *function, const char *device, char *text, unsigned length) {
    const char *values = "";
    int code = answer(function, device, &values);
    if (code) return code;
    const char *found = value_of(values, "text");
    if (!found) stop("value missing", function);
    return (unsigned)snprintf(text, length, "%s", found) < length ? SUCCESS : INSUFFICIENT_SIZE;
}

static Device *handle_of(const char *name) {
    for (int i = 0; i < device_count; i++)
        if (!strcmp(devices[i].name, name)) return &devices[i];
    if (device_count == 64) stop("too many devices", name);
    snprintf(devices[device_count].name, sizeof devices->name, "%s", name);
    return &devices[device_count++];
}

/* Functions by the shape of their arguments. */
#define NUMBER(NAME)                                                                                                   \
    int NAME(Device *device, unsigned *out) {                                                                          \
        const char *values = "";                                                                                       \
        int code = answer(#NAME, device->name, &values);                                                               \
        if (!code) *out = (unsigned)required(values, "value");                                                         \
        return code;                                                                                                   \
    }
#define LONG(NAME)                                                                                                     \
    int NAME(Device *device, uint64_t *out) {                                                                          \
        const char *values = "";                                                                                       \
        int code = answer(#NAME, device->name, &values);                                                               \
        if (!code) *out = required(values, "value");                                                                   \
        return code;                                                                                                   \
    }
#define PAIR(NAME, FIRST, SECOND)                                                                                      \
    int NAME(Device *device, unsigned *first, unsigned *second) {                                                      \
        const char *values = "";                                                                                       \
        int code = answer(#NAME, device->name, &values);                                                               \
        if (!code) *first = (unsigned)required(values, FIRST), *second = (unsigned)required(values, SECOND);           \
        return code;                                                                                                   \
    }
#define TEXT(NAME)                                                                                                     \
    int NAME(Device *device, char *text, unsigned length) { return text_answer(#NAME, device->name, text, length); }
#define SYSTEM_NUMBER(NAME)                                                                                            \
    int NAME(unsigned *out) {                                                                                          \
        const char *values = "";                                                                                       \
        int code = answer(#NAME, "-", &values);                                                                        \
        if (!code) *out = (unsigned)required(values, "value");                                                         \
        return code;                                                                                                   \
    }
#define PROCESSES(NAME)                                                                                                \
    int NAME(Device *device, unsigned *count, char *out) { return process_list(#NAME, device, count, out); }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    const Row *row = row_of("nvmlInitWithFlags", "-", 0);
    int code = row ? row->code : SUCCESS;
    running += code == SUCCESS;
    return code;
}

int nvmlShutdown(void) {
    if (!running) return UNINITIALIZED;
    running--;
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    for (size_t i = 0; i < sizeof CODES / sizeof *CODES; i++)
        if (CODES[i].code == code) return CODES[i].name;
    return "no such error";
}

/* The one that answers before NVML is started. */
int nvmlSystemGetNVMLVersion(char *text, unsigned length) {
    int before = running;
    running = 1;
    int code = text_answer("nvmlSystemGetNVMLVersion", "-", text, length);
    running = before;
    return code;
}

int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    return text_answer("nvmlSystemGetDriverVersion", "-", text, length);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out) {
    char name[16];
    snprintf(name, sizeof name, "%u", index);
    const char *values = "";
    int code = answer("nvmlDeviceGetHandleByIndex_v2", name, &values);
    if (!code) *out = handle_of(name);
    return code;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned place, Device **out) {
    char name[16];
    if ((unsigned)snprintf(name, sizeof name, "%.7s/%u", device->name, place) >= sizeof name) return INVALID_ARGUMENT;
    const char *values = "";
    int code = answer("nvmlDeviceGetMigDeviceHandleByIndex", name, &values);
    if (code == NOT_SUPPORTED) return NOT_FOUND;
    if (!code) *out = handle_of(name);
    return code;
}

SYSTEM_NUMBER(nvmlSystemGetCudaDriverVersion_v2)
SYSTEM_NUMBER(nvmlDeviceGetCount_v2)
TEXT(nvmlDeviceGetUUID)
TEXT(nvmlDeviceGetName)
TEXT(nvmlDeviceGetVbiosVersion)
NUMBER(nvmlDeviceGetMaxMigDeviceCount)
NUMBER(nvmlDeviceGetPersistenceMode)
NUMBER(nvmlDeviceGetEnforcedPowerLimit)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth)
NUMBER(nvmlDeviceGetPowerUsage)
NUMBER(nvmlDeviceGetPcieReplayCounter)
LONG(nvmlDeviceGetCurrentClocksEventReasons)
LONG(nvmlDeviceGetCurrentClocksThrottleReasons)
LONG(nvmlDeviceGetTotalEnergyConsumption)
PAIR(nvmlDeviceGetMigMode, "current", "pending")
PAIR(nvmlDeviceGetEccMode, "current", "pending")
PAIR(nvmlDeviceGetCudaComputeCapability, "major", "minor")

int nvmlDeviceGetRemappedRows(Device *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failure) {
    const char *values = "";
    int code = answer("nvmlDeviceGetRemappedRows", device->name, &values);
    if (code) return code;
    *corrected = (unsigned)required(values, "corrected");
    *uncorrected = (unsigned)required(values, "uncorrected");
    *pending = (unsigned)required(values, "pending");
    *failure = (unsigned)required(values, "failure");
    return code;
}

int nvmlDeviceGetClockInfo(Device *device, unsigned type, unsigned *out) {
    static const char *const TYPES[] = {"graphics", "sm", "mem", "video"};
    const char *values = "";
    int code = answer("nvmlDeviceGetClockInfo", device->name, &values);
    uint64_t clock = 0;
    if (!code && type > 3) code = INVALID_ARGUMENT;
    if (!code) code = number(values, TYPES[type], &clock);
    if (!code) *out = (unsigned)clock;
    return code;
}

int nvmlDeviceGetTotalEccErrors(Device *device, unsigned type, unsigned counter, uint64_t *out) {
    static const char *const TYPES[] = {"corrected", "uncorrected"};
    const char *values = "";
    char name[32];
    int code = answer("nvmlDeviceGetTotalEccErrors", device->name, &values);
    if (!code && (type > 1 || counter > 1)) code = INVALID_ARGUMENT;
    if (code) return code;
    snprintf(name, sizeof name, "%s%s", counter ? "lifetime_" : "", TYPES[type]);
    return number(values, name, out);
}

int nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *out) {
    const char *values = "";
    int code = answer("nvmlDeviceGetTemperature", device->name, &values);
    if (!code && sensor) code = INVALID_ARGUMENT;
    if (!code) *out = (unsigned)required(values, "value");
    return code;
}

typedef struct { unsigned version, sensor; int temperature; } Temperature;

int nvmlDeviceGetTemperatureV(Device *device, Temperature *out) {
    const char *values = "";
    if (out->version != (sizeof *out | 1u << 24)) return ARGUMENT_VERSION_MISMATCH;
    int code = answer("nvmlDeviceGetTemperatureV", device->name, &values);
    if (!code && out->sensor) code = INVALID_ARGUMENT;
    if (!code) out->temperature = (int)required(values, "value");
    return code;
}

typedef struct { unsigned gpu, memory; } Utilisation;

int nvmlDeviceGetUtilizationRates(Device *device, Utilisation *out) {
    const char *values = "";
    int code = answer("nvmlDeviceGetUtilizationRates", device->name, &values);
    if (code) return code;
    out->gpu = (unsigned)required(values, "gpu");
    out->memory = (unsigned)required(values, "memory");
    return code;
}

typedef struct { uint64_t total, free, used; } Memory;
typedef struct { unsigned version; uint64_t total, reserved, free, used; } MemoryV2;

int nvmlDeviceGetMemoryInfo(Device *device, Memory *out) {
    const char *values = "";
    int code = answer("nvmlDeviceGetMemoryInfo", device->name, &values);
    if (code) return code;
    out->total = required(values, "total");
    out->free = required(values, "free");
    out->used = required(values, "used");
    return code;
}

int nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *out) {
    const char *values = "";
    if (out->version != (sizeof *out | 2u << 24)) return ARGUMENT_VERSION_MISMATCH;
    int code = answer("nvmlDeviceGetMemoryInfo_v2", device->name, &values);
    if (code) return code;
    out->total = required(values, "total");
    out->reserved = required(values, "reserved");
    out->free = required(values, "free");
    out->used = required(values, "used");
    return code;
}

typedef struct {
    char legacy_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
} PciInfo;

int nvmlDeviceGetPciInfo_v3(Device *device, PciInfo *out) {
    memset(out, 0, sizeof *out);
    return text_answer("nvmlDeviceGetPciInfo_v3", device->name, out->id, sizeof out->id);
}

/* As the real one: told how many there are when there is no room, then filled. `size` is that of one entry: 24, 32 as in
   early drivers of branch 535, or 16. Each pid= begins an entry; gi and ci are all ones where they are not given. */
static int process_list(const char *function, Device *device, unsigned *count, char *out) {
    if (!running) return UNINITIALIZED;
    const Row *row = row_of(function, device->name, out != NULL);
    if (!row) return NOT_SUPPORTED;
    if (row->code) return row->code;
    unsigned there = 0, room = *count;
    for (const char *at = row->values; (at = value_of(at, "pid")); there++) {}
    *count = there;
    if (there == 0) return SUCCESS;
    if (!out || room < there) return INSUFFICIENT_SIZE;
    uint64_t size = 24;
    number(row->values, "size", &size);
    for (const char *at = row->values; (at = value_of(at, "pid")); out += size) {
        const char *next = strstr(at, " pid=");
        char entry[LONGEST_ROW];
        snprintf(entry, sizeof entry, " pid=%.*s", (int)(next ? next - at : (long)strlen(at)), at);
        uint64_t used = required(entry, "used"), gi = UINT32_MAX, ci = UINT32_MAX;
        number(entry, "gi", &gi);
        number(entry, "ci", &ci);
        unsigned small[2] = {(unsigned)gi, (unsigned)ci}, pid[2] = {(unsigned)required(entry, "pid"), 0};
        memset(out, 0, size);
        memcpy(out, pid, 8);
        memcpy(out + 8, &used, 8);
        if (size >= 24) memcpy(out + 16, small, 8);
    }
    return SUCCESS;
}

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
