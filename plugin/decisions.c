#include "decisions.h"

#include <stdlib.h>

/* A key: 46 bits size, then function 3, outcome 2, algorithm 3, protocol 2, channels 7. Never 0, as the outcome is not. */
enum { SIZE_BITS = 46 };

static uint64_t key_of(const struct ncclt_decision *decision) {
  uint64_t rest = (uint64_t)decision->function | (uint64_t)decision->outcome << 3;
  if (decision->outcome != NCCLT_UNMATCHED)
    rest |= (uint64_t)decision->choice.algorithm << 5 | (uint64_t)decision->choice.protocol << 8 |
            (uint64_t)decision->choice.channels << 10;
  return decision->bytes | rest << SIZE_BITS;
}

uint64_t ncclt_decisions_read(const struct ncclt_slot *slot, struct ncclt_decision *decision) {
  uint64_t key = atomic_load_explicit(&slot->key, memory_order_relaxed), rest = key >> SIZE_BITS;
  if (key == 0) return 0;
  decision->bytes = key & ((UINT64_C(1) << SIZE_BITS) - 1);
  decision->function = (int)(rest & 7);
  decision->outcome = (enum ncclt_outcome)(rest >> 3 & 3);
  decision->choice.algorithm = (uint8_t)(rest >> 5 & 7);
  decision->choice.protocol = (uint8_t)(rest >> 8 & 3);
  decision->choice.channels = (uint8_t)(rest >> 10 & 127);
  return atomic_load_explicit(&slot->calls, memory_order_relaxed);
}

struct ncclt_decisions *ncclt_decisions_new(void) { return calloc(1, sizeof(struct ncclt_decisions)); }

static int size_class(uint64_t bytes) { return bytes ? 63 - __builtin_clzll(bytes) : 0; }

void ncclt_decisions_count(struct ncclt_decisions *decisions, const struct ncclt_decision *decision) {
  if (decision->bytes >> SIZE_BITS == 0) {
    uint64_t key = key_of(decision);
    uint64_t at = (key * UINT64_C(0x9e3779b97f4a7c15)) >> 52; /* Fibonacci hashing (Knuth, TAOCP 3, 6.4) */
    for (int probe = 0; probe < NCCLT_PROBES; probe++) {
      struct ncclt_slot *slot = &decisions->slot[(at + (uint64_t)probe) % NCCLT_SLOTS];
      uint64_t found = atomic_load_explicit(&slot->key, memory_order_relaxed);
      if (found == 0 && atomic_compare_exchange_strong_explicit(&slot->key, &found, key, memory_order_relaxed,
                                                                memory_order_relaxed))
        found = key;
      if (found == key) {
        atomic_fetch_add_explicit(&slot->calls, 1, memory_order_relaxed);
        return;
      }
    }
  }
  atomic_fetch_add_explicit(&decisions->other_calls[decision->function][size_class(decision->bytes)], 1,
                            memory_order_relaxed);
}
