/* Opens and closes communicators, and asks their tables. */
#ifndef NCCLT_COMMUNICATOR_H
#define NCCLT_COMMUNICATOR_H

#include "live.h"
#include "state.h"

/* Open one and return NCCL_SUCCESS. Where a table was promised and this rank cannot use it, although others may, say why
 * at level WARN and return an error: ranks that choose differently hang or corrupt data. `opened` NULL = not opened. */
int ncclt_communicator_open(const struct ncclt_opening *opening, struct ncclt_communicator **opened);

/* Write the report, if one is wanted, and free everything. NULL is allowed. */
void ncclt_communicator_close(struct ncclt_communicator *communicator);

/* Decide on `use` at the first question. */
enum ncclt_use ncclt_communicator_settle(struct ncclt_communicator *communicator);

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
