/* Counts what was decided, per collective, size and outcome: without locks, and without memory asked for in a call. */
#ifndef NCCLT_DECISIONS_H
#define NCCLT_DECISIONS_H

#include <stdatomic.h>
#include <stdint.h>

#include "table.h"

enum ncclt_outcome {
  NCCLT_APPLIED = 1, /* the table's choice was made the cheapest */
  NCCLT_UNMATCHED,   /* no row covers it: the NCCL default */
  NCCLT_UNAVAILABLE, /* NCCL does not offer the table's choice here: the NCCL default */
};

enum { NCCLT_SLOTS = 4096, NCCLT_PROBES = 32, NCCLT_SIZE_CLASSES = 64 };

struct ncclt_decision {
  int function;
  enum ncclt_outcome outcome;
  struct ncclt_choice choice; /* of the table; of no meaning where unmatched */
  uint64_t bytes;
};

struct ncclt_slot {
  _Atomic uint64_t key, calls; /* key 0 = free; once taken it stays */
};

struct ncclt_decisions {
  struct ncclt_slot slot[NCCLT_SLOTS];
  /* Decisions that found no free slot, by collective and power of two, so that nothing gets lost silently. */
  _Atomic uint64_t other_calls[NCCL_FUNCTIONS][NCCLT_SIZE_CLASSES];
};

struct ncclt_decisions *ncclt_decisions_new(void);

/* Count one decision. */
void ncclt_decisions_count(struct ncclt_decisions *decisions, const struct ncclt_decision *decision);

/* Unpack a slot; returns its calls, 0 where it is free. */
uint64_t ncclt_decisions_read(const struct ncclt_slot *slot, struct ncclt_decision *decision);

#endif
