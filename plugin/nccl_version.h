/* Which NCCL this process has. */
#ifndef NCCLT_NCCL_VERSION_H
#define NCCLT_NCCL_VERSION_H

/* Return what ncclGetVersion tells, 22809 = 2.28.9; 0 = no NCCL can be seen. In order: the library with the address
 * `caller` (NULL = not known), since a process may have loaded several; a symbol that everybody sees; libnccl.so.2, also
 * where it was loaded RTLD_LOCAL, as PyTorch loads it. */
int ncclt_nccl_version(const void *caller);

#endif
