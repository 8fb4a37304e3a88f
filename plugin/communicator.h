/* What the plugin knows of one communicator. */
#ifndef NCCLT_COMMUNICATOR_H
#define NCCLT_COMMUNICATOR_H

#include <stdint.h>

#include "decisions.h"
#include "delegate.h"
#include "live.h"
#include "nccl_tuner_abi.h"
#include "shared.h"
#include "table.h"

/* Whether the table answers; settled when NCCL asks first, so that no communicator changes its choices. Only in a live one
 * they change, at a question on which all ranks agree. */
enum ncclt_use { NCCLT_UNSETTLED, NCCLT_USED, NCCLT_UNUSED, NCCLT_FAILS, NCCLT_LIVE };

struct ncclt_communicator {
  int api;              /* version of the tuner API that NCCL speaks */
  uint64_t id;          /* equal on all ranks; 0 before API v5 */
  uint64_t ranks, nodes;
  int nccl_version;     /* 22809 = 2.28.9; 0 where the process has no ncclGetVersion that can be seen */
  int number;           /* in this process, from 0 */
  long process;
  uint64_t started_ns;  /* since 1970 */
  char *policy;         /* path of the table, or the variable that holds it; NULL = none was named */
  nccl_logger log;      /* NULL is allowed */
  char reason[NCCLT_REASON_SIZE]; /* why its table cannot be used; empty = it can */
  int agreement;        /* what NCCLT_AGREEMENT said when it opened */
  _Atomic int use;      /* enum ncclt_use */
  struct ncclt_table table;
  const struct ncclt_shared *shared; /* in place of the table, where a controller switches */
  _Atomic uint64_t checked;          /* generation of it that was found whole */
  struct ncclt_live *live;           /* in place of the table, where plans change; NULL = they do not */
  char live_reason[NCCLT_REASON_SIZE]; /* why not, where NCCLT_LIVE wants it; else empty */
  struct ncclt_delegate *delegate;   /* the tuner for what no row decides; NULL = NCCL itself */
  char delegate_reason[NCCLT_DELEGATE_SAID_SIZE]; /* why there is none, where one was to be; else empty */
  struct ncclt_decisions *decisions; /* NULL where nobody asked for a report */
  _Atomic uint64_t delegated;        /* counted calls that the other tuner answered */
  char *report_folder;
  struct ncclt_communicator *previous, *next; /* the open communicators of this process */
};

/* Open one and return NCCL_SUCCESS. Where a table was promised and this rank cannot use it, although others may, say why
 * at level WARN and return an error: ranks that choose differently hang or corrupt data. `opened` NULL = not opened. */
int ncclt_communicator_open(const struct ncclt_opening *opening, struct ncclt_communicator **opened);

/* Write the report, if one is wanted, and free everything. NULL is allowed. */
void ncclt_communicator_close(struct ncclt_communicator *communicator);

/* Write a line at level WARN to NCCL's log. */
void ncclt_warn(nccl_logger log, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Decide on `use` at the first question. */
enum ncclt_use ncclt_communicator_settle(struct ncclt_communicator *communicator);

/* Return why no table is in use; empty = one is. */
const char *ncclt_communicator_reason(const struct ncclt_communicator *communicator);

/* Find what the table says: 1 = `choice` is filled in, 0 = nothing, -1 = this question must fail. */
static inline int ncclt_communicator_find(struct ncclt_communicator *communicator, const struct ncclt_call *call,
                                          struct ncclt_choice *choice) {
  int use = atomic_load_explicit(&communicator->use, memory_order_relaxed);
  if (use == NCCLT_UNSETTLED) use = ncclt_communicator_settle(communicator);
  if (use == NCCLT_LIVE) return ncclt_live_find(communicator, call, choice);
  if (use != NCCLT_USED) return use == NCCLT_FAILS ? -1 : 0;
  if (communicator->shared)
    return ncclt_shared_find(communicator->shared, call->function, call->bytes, communicator->nodes,
                             communicator->ranks, &communicator->checked, choice) == NCCLT_SHARED_FOUND;
  const struct ncclt_choice *found = ncclt_lane_find(&communicator->table.lanes[call->function], call->bytes);
  if (!found) return 0;
  *choice = *found;
  return 1;
}

#endif
