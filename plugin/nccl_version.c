#define _GNU_SOURCE /* dladdr */
#include "nccl_version.h"

#include "loader.h"
#include "nccl_tuner_abi.h"

#if defined(__GLIBC__) && defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 34) && defined(__x86_64__)
__asm__(".symver dladdr, dladdr@GLIBC_2.2.5");
#elif __GLIBC_PREREQ(2, 34) && defined(__aarch64__)
__asm__(".symver dladdr, dladdr@GLIBC_2.17");
#endif
#endif
extern int dladdr(const void *address, Dl_info *info) __attribute__((weak));

typedef int version_function(int *version);

/* NULL where it is hidden. */
extern version_function ncclGetVersion __attribute__((weak));

static int ask(version_function *function) {
  int version = 0;
  return function && function(&version) == NCCL_SUCCESS && version > 0 ? version : 0;
}

static int version_of_library(const char *name) {
  void *library = name && dlopen && dlsym ? dlopen(name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
  version_function *found = NULL;
  if (library) *(void **)&found = dlsym(library, "ncclGetVersion");
  return ask(found);
}

int ncclt_nccl_version(const void *caller) {
  Dl_info object;
  int version = caller && dladdr && dladdr(caller, &object) ? version_of_library(object.dli_fname) : 0;
  if (!version) version = ask(ncclGetVersion);
  return version ? version : version_of_library("libnccl.so.2");
}
