/* What the plugin knows of one communicator. */
#ifndef NCCLT_COMMUNICATOR_H
#define NCCLT_COMMUNICATOR_H

#include <stdint.h>

#include "decisions.h"
#include "delegate.h"
#include "nccl_tuner_abi.h"
#include "shared.h"
#include "table.h"

struct ncclt_communicator {
  int api;              /* version of the tuner API that NCCL speaks */
  uint64_t id;          /* equal on all ranks; 0 before API v5 */
  uint64_t ranks, nodes;
  int nccl_version;     /* 22809 = 2.28.9; 0 where the process has no ncclGetVersion that can be seen */
  int number;           /* in this process, from 0 */
  long process;
  uint64_t started_ns;  /* since 1970 */
  const char *policy;   /* path of the table, NULL = none was named; a copy */
  char reason[NCCLT_REASON_SIZE]; /* why no table is in use; empty = one is */
  struct ncclt_table table;
  const struct ncclt_shared *shared; /* in place of the table, where a controller switches */
  _Atomic uint64_t checked;          /* generation of it that was found whole */
  struct ncclt_delegate *delegate;   /* the tuner for what no row decides; NULL = NCCL itself */
  char delegate_reason[NCCLT_DELEGATE_SAID_SIZE]; /* why there is none, where one was to be; else empty */
  struct ncclt_decisions *decisions; /* NULL where nobody asked for a report */
  _Atomic uint64_t delegated;        /* counted calls that the other tuner answered */
  char *report_folder;
  struct ncclt_communicator *previous, *next; /* the open communicators of this process */
};

/* Never fails: what cannot be done leaves NCCL its own choice. NULL only without memory. */
struct ncclt_communicator *ncclt_communicator_open(const struct ncclt_opening *opening);

/* Write the report, if one is wanted, and free everything. NULL is allowed. */
void ncclt_communicator_close(struct ncclt_communicator *communicator);

/* Find what the table says; 1 = `choice` is filled in. */
int ncclt_communicator_find(struct ncclt_communicator *communicator, int function, uint64_t bytes, int registered,
                            struct ncclt_choice *choice);

#endif
