#define _GNU_SOURCE /* syscall */
#include "trusted.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The C library's fstat is of glibc 2.33, and a plugin built there would not load in older containers. On these machines
 * the kernel's struct is the C library's. */
static int examine(int file, struct stat *facts) {
#if defined(__x86_64__) || defined(__aarch64__)
  return (int)syscall(SYS_fstat, file, facts);
#else
  return fstat(file, facts);
#endif
}

int ncclt_open_trusted(const char *path, char reason[NCCLT_REASON_SIZE]) {
  struct stat facts;
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* not to hang on a pipe that nobody writes to */
  if (file < 0) {
    snprintf(reason, NCCLT_REASON_SIZE, "it cannot be opened: %s", strerror(errno));
    return -1;
  }
  if (examine(file, &facts))
    snprintf(reason, NCCLT_REASON_SIZE, "it cannot be examined: %s", strerror(errno));
  else if (!S_ISREG(facts.st_mode))
    snprintf(reason, NCCLT_REASON_SIZE, "it is %s", S_ISDIR(facts.st_mode) ? "a folder" : "no regular file");
  else if (facts.st_uid != geteuid() && facts.st_uid != 0)
    snprintf(reason, NCCLT_REASON_SIZE, "it belongs to user %lu, neither to this user nor to root",
             (unsigned long)facts.st_uid);
  else if (facts.st_mode & (S_IWGRP | S_IWOTH))
    snprintf(reason, NCCLT_REASON_SIZE, "other users can write to it (chmod go-w)");
  else return file;
  close(file);
  return -1;
}
