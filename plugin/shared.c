#define _GNU_SOURCE /* seals */
#include "shared.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "trusted.h"

_Static_assert(sizeof(struct ncclt_shared_slot) == 8224, "the layout is shared with ncclt.nccl.tuner_plugin.shared_table");
_Static_assert(sizeof(struct ncclt_shared) == 16480, "the layout is shared with ncclt.nccl.tuner_plugin.shared_table");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "a 64-bit load must not lock");

/* A controller that switches faster than a reader reads breaks its duty; a call must end all the same. */
enum { MOST_LOOKS = 1000 };

const struct ncclt_shared *ncclt_shared_open(const char *path, char reason[NCCLT_REASON_SIZE]) {
  int file = ncclt_open_trusted(path, reason);
  if (file < 0) return NULL;
  const struct ncclt_shared *shared = NULL;
  int seals = fcntl(file, F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK)) {
    snprintf(reason, NCCLT_REASON_SIZE, "it could be cut short under a reader: it is no memory sealed against that");
  } else if (lseek(file, 0, SEEK_END) < (off_t)sizeof *shared) {
    snprintf(reason, NCCLT_REASON_SIZE, "it is too short for a shared table");
  } else {
    void *at = mmap(NULL, sizeof *shared, PROT_READ, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) {
      snprintf(reason, NCCLT_REASON_SIZE, "it cannot be mapped: %s", strerror(errno));
    } else if (memcmp(((const struct ncclt_shared *)at)->magic, "NCCLTSHM", 8) != 0 ||
               ((const struct ncclt_shared *)at)->format != NCCLT_SHARED_FORMAT ||
               ((const struct ncclt_shared *)at)->capacity != NCCLT_SHARED_ROWS) {
      snprintf(reason, NCCLT_REASON_SIZE, "it is no shared table of format %d", NCCLT_SHARED_FORMAT);
      munmap(at, sizeof *shared);
    } else {
      shared = at;
    }
  }
  close(file);
  return shared;
}

void ncclt_shared_close(const struct ncclt_shared *shared) {
  if (shared) munmap((void *)(uintptr_t)shared, sizeof *shared);
}

/* Acquire, so that the second look at the generation comes after every look at the rows. */
static uint64_t load(const _Atomic uint64_t *word) { return atomic_load_explicit(word, memory_order_acquire); }

static uint64_t mix(uint64_t hash, uint64_t word) {
  for (int shift = 0; shift < 64; shift += 8) hash = (hash ^ ((word >> shift) & 255)) * UINT64_C(0x100000001b3);
  return hash;
}

static int is_whole(const struct ncclt_shared_slot *slot, uint64_t generation) {
  uint64_t rows = load(&slot->rows), hash = UINT64_C(0xcbf29ce484222325);
  if (load(&slot->generation) != generation || rows > NCCLT_SHARED_ROWS) return 0;
  hash = mix(mix(hash, generation), rows);
  for (uint64_t i = 0; i < rows; i++) {
    const struct ncclt_shared_row *row = &slot->row[i];
    hash = mix(mix(mix(mix(hash, load(&row->first)), load(&row->last)), load(&row->shape)), load(&row->choice));
  }
  return hash == load(&slot->checksum);
}

/* The low byte of `shift` first in memory: the layout is by bytes, and the machine's order is little-endian. */
static unsigned byte_of(uint64_t word, int number) { return (unsigned)(word >> (8 * number)) & 255; }

static enum ncclt_shared_answer look(const struct ncclt_shared_slot *slot, int function, uint64_t bytes, uint64_t nodes,
                                     uint64_t ranks, struct ncclt_choice *choice) {
  uint64_t rows = load(&slot->rows);
  for (uint64_t i = 0; i < rows && i < NCCLT_SHARED_ROWS; i++) {
    const struct ncclt_shared_row *row = &slot->row[i];
    uint64_t what = load(&row->choice), shape = load(&row->shape);
    uint32_t for_nodes = (uint32_t)shape, for_ranks = (uint32_t)(shape >> 32);
    if (byte_of(what, 0) != (unsigned)function || load(&row->first) > bytes || load(&row->last) < bytes) continue;
    if ((for_nodes && for_nodes != nodes) || (for_ranks && for_ranks != ranks)) continue;
    if (byte_of(what, 1) >= NCCL_ALGORITHMS || byte_of(what, 2) >= NCCL_PROTOCOLS) return NCCLT_SHARED_DAMAGED;
    unsigned channels = byte_of(what, 3);
    choice->algorithm = (uint8_t)byte_of(what, 1);
    choice->protocol = (uint8_t)byte_of(what, 2);
    choice->channels = (uint8_t)(channels > NCCLT_MOST_CHANNELS ? NCCLT_MOST_CHANNELS : channels);
    return NCCLT_SHARED_FOUND;
  }
  return NCCLT_SHARED_NONE;
}

enum ncclt_shared_answer ncclt_shared_find(const struct ncclt_shared *shared, int function, uint64_t bytes,
                                           uint64_t nodes, uint64_t ranks, _Atomic uint64_t *checked,
                                           struct ncclt_choice *choice) {
  for (int i = 0; i < MOST_LOOKS; i++) {
    uint64_t generation = load(&shared->generation);
    if (generation == 0) return NCCLT_SHARED_NONE;
    const struct ncclt_shared_slot *slot = &shared->slot[generation % 2];
    if (load(checked) != generation) {
      if (!is_whole(slot, generation)) continue; /* still being written, as this processor sees it */
      atomic_store_explicit(checked, generation, memory_order_relaxed);
    }
    enum ncclt_shared_answer answer = look(slot, function, bytes, nodes, ranks, choice);
    if (load(&shared->generation) == generation) return answer;
  }
  return NCCLT_SHARED_DAMAGED;
}
