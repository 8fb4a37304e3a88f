/* The decision of a job's ranks: whether the table is used.
 *
 * NCCLT_AGREEMENT=hook: the plugin waits, and NCCL's default applies, until the hook at PyTorch's init_process_group
 * (ncclt.deliver.agree) has compared all ranks over the job's store. Unset or `none`: the table is used at once. */
#ifndef NCCLT_AGREEMENT_H
#define NCCLT_AGREEMENT_H

#include <stddef.h>

enum ncclt_agreed {
  NCCLT_UNDECIDED, /* nobody has asked the ranks */
  NCCLT_USE_TABLE,
  NCCLT_KEEP_DEFAULT,
  NCCLT_IN_DOUBT, /* the others may have decided either way: every later question fails */
};

enum { NCCLT_NO_AGREEMENT, NCCLT_BY_HOOK, NCCLT_UNKNOWN_AGREEMENT };

/* Return what NCCLT_AGREEMENT says. */
int ncclt_agreement(void);

enum ncclt_agreed ncclt_current_decision(void);

/* For the hook, found by dlsym. `describe` writes lines `name=value` about what this rank has loaded: plugin, image
 * (checksum of the plugin's code in memory), nccl, table, problem (why the table cannot be used; empty = it can). Returns
 * its length, -1 where `size` is too small. `decide` takes one of enum ncclt_agreed; it counts for communicators that
 * NCCL has not asked about yet. */
int ncclt_describe(char *text, size_t size);
void ncclt_decide(int decision);

#endif
