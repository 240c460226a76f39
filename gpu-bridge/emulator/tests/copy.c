/* A CUDA program in three forms: linked against the driver, opening it, or asking it for each address.
 * Copies bytes there and back from pageable and registered memory; prints the device's name; 0 when they agree. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long ptr;
#ifdef LINKED
int cuInit(unsigned);
int cuDeviceGetName(char *, int, int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(ptr *, size_t);
int cuMemFree_v2(ptr);
int cuMemcpyHtoD_v2(ptr, const void *, size_t);
int cuMemcpyDtoH_v2(void *, ptr, size_t);
int cuMemHostRegister_v2(void *, size_t, unsigned);
int cuMemHostUnregister(void *);
#define GET(name, suffix) name##suffix
#else
static void *library;
static int (*proc)(const char *, void **, int, unsigned long long, int *);
static int (*get(const char *name, const char *full))() {
    void *found = NULL;
    if (proc)
        proc(name, &found, 12080, 0, NULL);
    else
        found = dlsym(library, full);
    if (!found) {
        fprintf(stderr, "no %s\n", full);
        exit(3);
    }
    return (int (*)())found;
}
#define GET(name, suffix) get(#name, #name #suffix)
#endif
#define CHECK(call)                                              \
    do {                                                         \
        int code = (call);                                       \
        if (code) {                                              \
            fprintf(stderr, "%s: %d\n", #call, code);            \
            return 1;                                            \
        }                                                        \
    } while (0)

int main(void) {
#ifndef LINKED
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 4;
    }
#ifdef PROC
    proc = (int (*)(const char *, void **, int, unsigned long long, int *))dlsym(library, "cuGetProcAddress_v2");
#endif
#endif
    enum { BYTES = 3 * 1000 * 1000 + 7 };
    unsigned char *from = malloc(BYTES), *to = malloc(BYTES);
    char name[128];
    void *context;
    ptr device;
    for (size_t i = 0; i < BYTES; i++)
        from[i] = (unsigned char)(i * 2654435761u >> 13);
    CHECK(GET(cuInit, )(0u));
    CHECK(GET(cuDeviceGetName, )(name, 128, 0));
    CHECK(GET(cuDevicePrimaryCtxRetain, )(&context, 0));
    CHECK(GET(cuCtxSetCurrent, )(context));
    CHECK(GET(cuMemAlloc, _v2)(&device, (size_t)BYTES));
    for (int registered = 0; registered < 2; registered++) {
        memset(to, 0, BYTES);
        if (registered)
            CHECK(GET(cuMemHostRegister, _v2)(from, (size_t)BYTES, 0u));
        CHECK(GET(cuMemcpyHtoD, _v2)(device, from, (size_t)BYTES));
        CHECK(GET(cuMemcpyDtoH, _v2)(to, device, (size_t)BYTES));
        if (registered)
            CHECK(GET(cuMemHostUnregister, )(from));
        if (memcmp(from, to, BYTES)) {
            fprintf(stderr, "bytes differ\n");
            return 2;
        }
    }
    CHECK(GET(cuMemFree, _v2)(device));
    puts(name);
    return 0;
}
