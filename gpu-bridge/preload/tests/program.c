/* A CUDA program in three forms: linked against the driver, opening it, or asking it for each address.
 *
 *   program sequences SEED COUNT   random calls, right and wrong ones; a line for each sequence: a hash of all that the
 *                                  calls answered and of all bytes that they copied
 *   program rate BYTES COPIES      bytes per second of pageable copies, in and out
 *
 * The last line has the counters of the library under it, where one is. Which form it is changes no answer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef uint64_t u64;
typedef int (*host_function)(void *);

#define FUNCTIONS(F)                                             \
    F(cuInit, , (unsigned))                                      \
    F(cuDevicePrimaryCtxRetain, , (u64 *, int))                  \
    F(cuCtxSetCurrent, , (u64))                                  \
    F(cuCtxPushCurrent, _v2, (u64))                              \
    F(cuCtxPopCurrent, _v2, (u64 *))                             \
    F(cuCtxSynchronize, , (void))                                \
    F(cuMemAlloc, _v2, (u64 *, size_t))                          \
    F(cuMemFree, _v2, (u64))                                     \
    F(cuMemsetD8, _v2, (u64, unsigned char, size_t))             \
    F(cuMemHostAlloc, , (u64 *, size_t, unsigned))               \
    F(cuMemAllocHost, _v2, (u64 *, size_t))                      \
    F(cuMemFreeHost, , (u64))                                    \
    F(cuMemHostRegister, _v2, (u64, size_t, unsigned))           \
    F(cuMemHostUnregister, , (u64))                              \
    F(cuMemHostGetFlags, , (unsigned *, u64))                    \
    F(cuMemHostGetDevicePointer, _v2, (u64 *, u64, unsigned))    \
    F(cuPointerGetAttribute, , (void *, int, u64))               \
    F(cuMemcpyHtoD, _v2, (u64, u64, size_t))                     \
    F(cuMemcpyDtoH, _v2, (u64, u64, size_t))                     \
    F(cuMemcpyHtoDAsync, _v2, (u64, u64, size_t, u64))           \
    F(cuMemcpyDtoHAsync, _v2, (u64, u64, size_t, u64))           \
    F(cuStreamCreate, , (u64 *, unsigned))                       \
    F(cuStreamDestroy, _v2, (u64))                               \
    F(cuStreamSynchronize, , (u64))                              \
    F(cuStreamQuery, , (u64))                                    \
    F(cuStreamWaitEvent, , (u64, u64, unsigned))                 \
    F(cuEventCreate, , (u64 *, unsigned))                        \
    F(cuEventDestroy, _v2, (u64))                                \
    F(cuEventRecord, , (u64, u64))                               \
    F(cuEventQuery, , (u64))                                     \
    F(cuEventSynchronize, , (u64))

#define DECLARE(name, suffix, arguments) int name##suffix arguments;
#define POINTER(name, suffix, arguments) static int(*p_##name) arguments;
FUNCTIONS(POINTER)
#ifdef LINKED
FUNCTIONS(DECLARE)
#define FIND(name, suffix, arguments) p_##name = name##suffix;
#else
static void *library;
static int (*proc)(const char *, void **, int, u64, int *);
static void *find(const char *name, const char *full) {
    void *found = NULL;
    if (proc)
        proc(name, &found, 12080, 0, NULL);
    else
        found = dlsym(library, full);
    if (!found) {
        fprintf(stderr, "no %s\n", full);
        exit(3);
    }
    return found;
}
#define FIND(name, suffix, arguments) p_##name = (int(*) arguments)find(#name, #name #suffix);
#endif

static void functions(void) {
#ifndef LINKED
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(4);
    }
#ifdef PROC
    proc = (int (*)(const char *, void **, int, u64, int *))dlsym(library, "cuGetProcAddress_v2");
    void *again = NULL;
    /* As runtimes do: the function is asked for itself. */
    if (proc("cuGetProcAddress", &again, 12080, 0, NULL) == 0 && again)
        proc = (int (*)(const char *, void **, int, u64, int *))again;
#endif
#endif
    FUNCTIONS(FIND)
}

static u64 state;
static u64 random64(void) {
    u64 z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static u64 below(u64 n) { return random64() % n; }

static u64 hash;
static int verbose;
static void note(u64 value) { hash = (hash ^ value) * 0x100000001b3u + 1; }
static int answer(const char *what, int code) {
    note((u64)(unsigned)code);
    if (verbose)
        fprintf(stderr, "  %s: %d\n", what, code);
    return code;
}
#define CALL(name, ...) answer(#name, p_##name(__VA_ARGS__))
static void bytes(const unsigned char *at, size_t count) {
    u64 sum = 0;
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        u64 word;
        memcpy(&word, at + i, 8);
        sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 29;
    }
    for (; i < count; i++)
        sum = sum * 31 + at[i];
    note(sum);
    if (verbose)
        fprintf(stderr, "  bytes %zu: %llx\n", count, (unsigned long long)sum);
}

enum { MIB = 1 << 20, PAGEABLE = 3 * MIB, SLOTS = 3 };
struct range {
    u64 at;
    size_t size;
};
static struct range device[SLOTS], pinned[SLOTS], registered[SLOTS];
static u64 streams[SLOTS], events[SLOTS], context;
static unsigned char *pageable[2];

static size_t some_size(void) {
    switch (below(8)) {
    case 0: return 1 + below(300);
    case 1: return 4096 * (1 + below(16));
    case 2: return MIB + below(MIB);
    case 3: return 2 * MIB;
    default: return 1 + below(100000);
    }
}
/* Bytes of a copy between ranges of these sizes; now and then none, or more than the device's has. */
static size_t copy_size(size_t host, size_t there) {
    size_t most = host < there ? host : there;
    switch (below(16)) {
    case 0: return 0;
    case 1: return host > there ? there + 1 : most;
    case 2: case 3: case 4: return most;
    default: return 1 + below(most);
    }
}
static struct range *pick(struct range *from) {
    for (int i = 0, at = below(SLOTS); i < SLOTS; i++)
        if (from[(at + i) % SLOTS].size)
            return &from[(at + i) % SLOTS];
    return NULL;
}
static struct range *room(struct range *in) {
    for (int i = 0; i < SLOTS; i++)
        if (!in[i].size)
            return &in[i];
    return NULL;
}
static void scribble(unsigned char *at, size_t count) {
    u64 seed = random64();
    for (size_t i = 0; i < count; i += 64)
        at[i] = (unsigned char)((seed ^ i) * 0x9e3779b97f4a7c15u >> 56);
}
/* Host memory of any kind. */
static struct range host(int *is_pinned) {
    struct range *p = below(2) ? pick(pinned) : NULL;
    *is_pinned = p != NULL;
    if (p)
        return *p;
    size_t offset = below(4096);
    return (struct range){(u64)(uintptr_t)pageable[below(2)] + offset, PAGEABLE - offset};
}
/* An address of any kind, and what is shown of it: nothing that differs from run to run. */
static u64 any_address(u64 *base) {
    struct range *r = NULL;
    switch (below(5)) {
    case 0: r = pick(device); break;
    case 1: case 2: r = pick(pinned); break;
    case 3: r = pick(registered); break;
    }
    if (!r) {
        *base = (u64)(uintptr_t)pageable[0];
        return *base + below(PAGEABLE);
    }
    *base = r->at;
    return r->at + (below(2) ? 0 : below(r->size));
}
static u64 some_stream(void) {
    u64 s = streams[below(SLOTS)];
    return below(8) ? s : below(2) ? 1 : 0xdead;
}
static int not_ready(int code) { return code == 600 ? 0 : code; }

static void free_pinned(struct range *p) {
    u64 at = p->at;
    CALL(cuMemFreeHost, at);
    /* At once: later the address may be another's. */
    if (below(4) == 0) {
        unsigned flags = 0;
        u64 there = 0;
        switch (below(4)) {
        case 0: CALL(cuMemFreeHost, at); break;
        case 1: CALL(cuMemHostUnregister, at); break;
        case 2: CALL(cuMemHostGetFlags, &flags, at); break;
        default: CALL(cuMemHostGetDevicePointer, &there, at, 0); break;
        }
    }
    p->size = 0;
}

static void host_memory(void) {
    struct range *p, *d;
    u64 base, at, value = 0;
    unsigned flags = 0;
    switch (below(9)) {
    case 0:
    case 1:
        if ((p = room(pinned))) {
            static const unsigned all[] = {0, 0, 0, 1, 2, 3, 4, 7, 8};
            size_t size = below(12) ? some_size() : 0;
            unsigned with = all[below(9)];
            int code = below(3) ? CALL(cuMemHostAlloc, below(20) ? &p->at : NULL, size, with)
                                : CALL(cuMemAllocHost, below(20) ? &p->at : NULL, size);
            if (code == 0) {
                p->size = size;
                note(p->at % 4096);
                memset((void *)(uintptr_t)p->at, 0, size);
            }
        }
        break;
    case 2:
        if ((p = pick(pinned)) && below(3) == 0)
            free_pinned(p);
        else
            CALL(cuMemFreeHost, p && below(2) ? p->at + 1 + below(p->size) : (u64)(uintptr_t)pageable[1]);
        break;
    case 3:
        if ((p = room(registered))) {
            size_t offset = 4096 * below(PAGEABLE / 4096), size = 4096 * (1 + below(64));
            static const unsigned all[] = {0, 0, 1, 2, 3, 16};
            if (offset + size > PAGEABLE)
                size = PAGEABLE - offset;
            at = (u64)(uintptr_t)pageable[below(2)] + offset;
            if ((d = pick(pinned)) && below(4) == 0) {
                CALL(cuMemHostRegister, d->at, d->size, 0);
            } else if (CALL(cuMemHostRegister, at, below(12) ? size : 0, all[below(6)]) == 0) {
                *p = (struct range){at, size};
            }
        }
        break;
    case 4:
        if ((p = pick(registered)) && below(3)) {
            if (CALL(cuMemHostUnregister, p->at + (below(4) ? 0 : 8)) == 0)
                p->size = 0;
        } else if ((p = pick(pinned))) {
            CALL(cuMemHostUnregister, p->at + below(2));
        } else {
            CALL(cuMemHostUnregister, (u64)(uintptr_t)pageable[0] + 16);
        }
        break;
    case 5:
        at = any_address(&base);
        if (CALL(cuMemHostGetFlags, below(16) ? &flags : NULL, at) == 0)
            note(flags);
        break;
    case 6:
        at = any_address(&base);
        if (CALL(cuMemHostGetDevicePointer, below(16) ? &value : NULL, at, below(8) ? 0 : 1) == 0)
            note(value - base);
        break;
    default: {
        static const int all[] = {1, 2, 3, 4, 7, 8, 9, 11, 12, 99};
        int attribute = all[below(10)];
        at = any_address(&base);
        if (CALL(cuPointerGetAttribute, &value, attribute, at) == 0)
            note(attribute == 3 || attribute == 4 || attribute == 11 ? value - base : attribute == 7 ? 0 : value);
        break;
    }
    }
}

static void device_memory(void) {
    struct range *d;
    if (below(2) && (d = room(device))) {
        size_t size = below(16) ? some_size() : below(2) ? 0 : (size_t)1 << 60;
        if (CALL(cuMemAlloc, &d->at, size) == 0) {
            d->size = size;
            CALL(cuMemsetD8, d->at, (unsigned char)below(256), size);
        }
    } else if ((d = pick(device))) {
        if (below(3)) {
            CALL(cuMemsetD8, d->at, (unsigned char)below(256), below(8) ? below(d->size) : d->size + 513);
        } else if (CALL(cuMemFree, d->at + (below(4) ? 0 : 512)) == 0) {
            d->size = 0;
        }
    } else {
        CALL(cuMemFree, below(2) ? 0 : (u64)(uintptr_t)pageable[0]);
    }
}

/* One or two copies and what orders them; then all is waited for and looked at. */
static void copies(void) {
    struct range *d = pick(device);
    int from_pinned, to_pinned;
    struct range from = host(&from_pinned), to = host(&to_pinned);
    if (!d)
        return;
    size_t offset = below(4) ? 0 : below(d->size), there = d->size - offset;
    size_t in = copy_size(from.size, there), out = copy_size(to.size, there);
    u64 at = d->at + offset, s = some_stream();
    if (below(24) == 0)
        at = (u64)(uintptr_t)pageable[0];
    if (below(24) == 0)
        from.at = to.at = 0;
    if (from.at)
        scribble((unsigned char *)(uintptr_t)from.at, from.size < in ? from.size : in);
    int code, which = below(6);
    switch (which) {
    case 0:
        code = CALL(cuMemcpyHtoD, at, from.at, in);
        break;
    case 1:
        code = CALL(cuMemcpyDtoH, to.at, at, out);
        break;
    case 2: /* the same stream */
        CALL(cuMemcpyHtoDAsync, at, from.at, in, s);
        if (!from_pinned && from.at) /* captured: the program may write it again */
            memset((void *)(uintptr_t)from.at, 0x55, from.size < in ? from.size : in);
        code = CALL(cuMemcpyDtoHAsync, to.at, at, out, s);
        break;
    case 3: /* the default stream waits for blocking ones, and they for it */
        CALL(cuMemcpyHtoDAsync, at, from.at, in, streams[0]);
        code = CALL(cuMemcpyDtoH, to.at, at, out);
        break;
    case 4: /* another stream waits for an event */
        CALL(cuMemcpyHtoDAsync, at, from.at, in, streams[1]);
        CALL(cuEventRecord, events[0], streams[1]);
        CALL(cuStreamWaitEvent, streams[2], events[0], 0);
        code = CALL(cuMemcpyDtoHAsync, to.at, at, out, streams[2]);
        break;
    default:
        CALL(cuMemcpyHtoDAsync, at, from.at, in, s);
        answer("cuStreamQuery", not_ready(p_cuStreamQuery(s)));
        code = CALL(cuStreamSynchronize, s);
        break;
    }
    CALL(cuCtxSynchronize);
    if (code == 0 && which != 0 && which != 5 && to.at)
        bytes((unsigned char *)(uintptr_t)to.at, out);
    if (code == 0 && (which == 0 || which == 5) && in <= PAGEABLE) {
        /* Where it came to: read by another way than it was written. */
        if (CALL(cuMemcpyDtoH, (u64)(uintptr_t)pageable[1], at, in) == 0)
            bytes(pageable[1], in);
    }
}

static void streams_and_events(void) {
    u64 s = some_stream(), e = below(8) ? events[below(SLOTS)] : 0xdead, made = 0;
    switch (below(6)) {
    case 0: CALL(cuEventRecord, e, s); break;
    case 1: CALL(cuEventSynchronize, e); break;
    case 2: answer("cuEventQuery", not_ready(p_cuEventQuery(e))); break;
    case 3: CALL(cuStreamWaitEvent, s, e, below(4)); break;
    case 4:
        if (CALL(cuStreamCreate, &made, below(4)) == 0)
            CALL(cuStreamDestroy, made);
        break;
    default: CALL(cuStreamSynchronize, s); break;
    }
}

static void step(void) {
    u64 kind = below(16);
    if (kind < 5)
        host_memory();
    else if (kind < 8)
        device_memory();
    else if (kind < 14)
        copies();
    else
        streams_and_events();
}

static void sequence(u64 seed) {
    state = seed;
    hash = 0xcbf29ce484222325u;
    for (int i = 0; i < SLOTS; i++) {
        /* The first is ordered with the default stream. */
        CALL(cuStreamCreate, &streams[i], i != 0);
        CALL(cuEventCreate, &events[i], 0);
    }
    for (u64 i = 0, n = 4 + below(12); i < n; i++) {
        int without = below(24) == 0;
        u64 gone = 0;
        if (without)
            CALL(cuCtxPopCurrent, &gone);
        step();
        if (without)
            CALL(cuCtxPushCurrent, context);
    }
    CALL(cuCtxSynchronize);
    for (int i = 0; i < SLOTS; i++) {
        if (pinned[i].size)
            free_pinned(&pinned[i]);
        if (registered[i].size) {
            CALL(cuMemHostUnregister, registered[i].at);
            registered[i].size = 0;
        }
        if (device[i].size) {
            CALL(cuMemFree, device[i].at);
            device[i].size = 0;
        }
        CALL(cuEventDestroy, events[i]);
        CALL(cuStreamDestroy, streams[i]);
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void rate(size_t size, int count) {
    unsigned char *from = malloc(size), *to = malloc(size);
    u64 there;
    double times[2] = {0, 0};
    for (size_t i = 0; i < size; i++)
        from[i] = (unsigned char)(i * 2654435761u >> 13);
    memset(to, 0, size);
    if (CALL(cuMemAlloc, &there, size))
        exit(1);
    for (int i = -2; i < count; i++) {
        double began = now();
        if (CALL(cuMemcpyHtoD, there, (u64)(uintptr_t)from, size))
            exit(1);
        double between = now();
        if (CALL(cuMemcpyDtoH, (u64)(uintptr_t)to, there, size))
            exit(1);
        if (i >= 0) {
            times[0] += between - began;
            times[1] += now() - between;
        }
    }
    if (memcmp(from, to, size)) {
        fprintf(stderr, "bytes differ\n");
        exit(2);
    }
    printf("h2d %.0f\nd2h %.0f\n", count * (double)size / times[0], count * (double)size / times[1]);
}

static void counters(void) {
    size_t (*read)(u64 *, size_t) = (size_t (*)(u64 *, size_t))dlsym(RTLD_DEFAULT, "tensortier_preload_counts");
    u64 values[64];
    size_t count = read ? read(values, 64) : 0;
    printf("counters");
    for (size_t i = 0; i < count && i < 64; i++)
        printf(" %llu", (unsigned long long)values[i]);
    printf("\n");
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 5;
    u64 a = strtoull(argv[2], NULL, 10), b = strtoull(argv[3], NULL, 10);
    functions();
    if (CALL(cuInit, 0) || CALL(cuDevicePrimaryCtxRetain, &context, 0) || CALL(cuCtxSetCurrent, context))
        return 1;
    if (strcmp(argv[1], "rate") == 0) {
        rate(a, (int)b);
    } else {
        for (int i = 0; i < 2; i++)
            pageable[i] = mmap(NULL, PAGEABLE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        verbose = getenv("VERBOSE") != NULL;
        for (u64 i = 0; i < b; i++) {
            memset(pageable[0], 1, 64);
            memset(pageable[1], 2, 64);
            sequence(a + i);
            printf("%llu %016llx\n", (unsigned long long)(a + i), (unsigned long long)hash);
        }
    }
    counters();
    return 0;
}
