/* Asks devices the same questions again and again at fixed times, and keeps the answers until they are taken.

   It knows no library: functions, handles and the places of what is to be kept are given to it by nativeloop.py, whose
   structures are these. One thread is in moegpu_sample, one at a time in moegpu_take; `phase` and `stop` are set by any.
   Times are those of CLOCK_MONOTONIC, as are those of Python's time.monotonic. */

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "answers of 32 bits are kept in the lower half of 64"
#endif

enum { VALUES = 12, LONGEST_ANSWER = 64 };
static const int64_t NANOSECONDS = 1000000000;

typedef struct {
    int (*plain)(void *device, void *answer);
    int (*argued)(void *device, uint32_t argument, void *answer); /* where `plain` is NULL */
    void *device;
    uint32_t argument, group, place; /* `place`: which device of a reading */
    int32_t quiet;                   /* the code that means "not given here", 0: none does */
    uint32_t value, skip, size;      /* bytes of `answer` that are kept, and as which of the values */
    uint32_t unused;
    unsigned char answer[LONGEST_ANSWER]; /* what the function wants to find there is there already */
} Question;

typedef struct {
    double every, last; /* seconds */
    uint32_t with_phase, due;
} Group;

typedef struct {
    double time; /* seconds */
    uint32_t phase, place;
    uint64_t given; /* bit n: value n was given */
    uint64_t values[VALUES];
} Record;

typedef struct {
    Question *questions;
    Group *groups;
    Record *records; /* `capacity` readings of `devices` records each, used in a circle */
    uint32_t question_count, group_count, devices, capacity;
    int64_t interval, due; /* nanoseconds */
    uint32_t begun, hurried, phase_before;
    uint32_t phase, stop; /* set from outside */
    uint32_t fault;       /* the question that was not answered plainly */
    int32_t code;         /* and what it was answered */
    uint32_t unused;
    uint64_t written, taken, missed; /* readings; `missed` found no room and were not made */
} Loop;

_Static_assert(sizeof(Question) == 120 && sizeof(Group) == 24 && sizeof(Record) == 120 && sizeof(Loop) == 112,
               "as in nativeloop.py");

static int64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * NANOSECONDS + at.tv_nsec;
}

/* Readings are due at fixed times. A late one does not move those after it; of several that it covered one follows at
   once, so that nothing is unseen for much longer than it took, and never a burst. */
static void wait_for_next(Loop *loop) {
    loop->due += loop->interval;
    int64_t left = loop->due - now();
    if (left <= 0) {
        loop->due += -left / loop->interval * loop->interval;
        loop->hurried = !loop->hurried;
        if (loop->hurried) return;
        loop->due += loop->interval;
    }
    loop->hurried = 0;
    struct timespec until = {loop->due / NANOSECONDS, loop->due % NANOSECONDS};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {}
}

static int ask(Question *question, Record *record) {
    int code = question->plain ? question->plain(question->device, question->answer)
                               : question->argued(question->device, question->argument, question->answer);
    if (code == 0) {
        memcpy(&record->values[question->value], question->answer + question->skip, question->size);
        record->given |= UINT64_C(1) << question->value;
    }
    return code == question->quiet ? 0 : code;
}

/* Make one reading; not 0, and nothing kept, when a question was not answered plainly. */
static int read_devices(Loop *loop) {
    if (loop->written - __atomic_load_n(&loop->taken, __ATOMIC_ACQUIRE) >= loop->capacity) {
        loop->missed++;
        return 0;
    }
    Record *records = &loop->records[loop->written % loop->capacity * loop->devices];
    uint32_t phase = __atomic_load_n(&loop->phase, __ATOMIC_RELAXED);
    double time = (double)now() / (double)NANOSECONDS;
    memset(records, 0, loop->devices * sizeof *records);
    for (uint32_t i = 0; i < loop->devices; i++) records[i].time = time, records[i].phase = phase, records[i].place = i;
    for (Group *group = loop->groups; group < loop->groups + loop->group_count; group++) {
        group->due = time - group->last >= group->every || (group->with_phase && phase != loop->phase_before);
        if (group->due) group->last = time;
    }
    loop->phase_before = phase;
    for (uint32_t i = 0; i < loop->question_count; i++) {
        Question *question = &loop->questions[i];
        if (!loop->groups[question->group].due) continue;
        loop->fault = i;
        loop->code = ask(question, &records[question->place]);
        if (loop->code) return loop->code;
    }
    __atomic_store_n(&loop->written, loop->written + 1, __ATOMIC_RELEASE);
    return 0;
}

/* Read until told to stop: 0. Or until a question is not answered plainly: 1; the next call goes on after that. */
int moegpu_sample(Loop *loop) {
    while (!__atomic_load_n(&loop->stop, __ATOMIC_RELAXED)) {
        if (loop->begun) {
            wait_for_next(loop);
            if (__atomic_load_n(&loop->stop, __ATOMIC_RELAXED)) break;
        } else {
            loop->due = now();
            loop->begun = 1;
        }
        if (read_devices(loop)) return 1;
    }
    return 0;
}

/* Move up to `most` readings, the oldest first, out of the circle. Returns how many. */
uint64_t moegpu_take(Loop *loop, Record *out, uint64_t most) {
    uint64_t count = __atomic_load_n(&loop->written, __ATOMIC_ACQUIRE) - loop->taken;
    if (count > most) count = most;
    for (uint64_t i = 0; i < count; i++)
        memcpy(&out[i * loop->devices], &loop->records[(loop->taken + i) % loop->capacity * loop->devices],
               loop->devices * sizeof *out);
    __atomic_store_n(&loop->taken, loop->taken + count, __ATOMIC_RELEASE);
    return count;
}
