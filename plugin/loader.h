/* The dynamic loader's functions, so that the plugin also loads on systems older than the one that built it. */
#ifndef NCCLT_LOADER_H
#define NCCLT_LOADER_H

#include <dlfcn.h>

/* From glibc 2.34 on the linker would bind these to versions that older systems lack; the old ones are still there.
 * Weak, because before 2.34 they are in a library of their own, which every process with NCCL has. */
#if defined(__GLIBC__) && defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 34) && defined(__x86_64__)
__asm__(".symver dlopen, dlopen@GLIBC_2.2.5\n\t.symver dlsym, dlsym@GLIBC_2.2.5");
#elif __GLIBC_PREREQ(2, 34) && defined(__aarch64__)
__asm__(".symver dlopen, dlopen@GLIBC_2.17\n\t.symver dlsym, dlsym@GLIBC_2.17");
#endif
#endif
extern void *dlopen(const char *path, int mode) __attribute__((weak));
extern void *dlsym(void *library, const char *name) __attribute__((weak));

#endif
