/* A table in shared memory, which a controller switches between two collectives: trials without a new communicator.
 *
 * The memory that NCCLT_POLICY_SHM names, in the byte order of the machine (ncclt.nccl.tuner_plugin.shared_table writes it). It is
 * a memfd, named as /proc/self/fd/NUMBER or /proc/PID/fd/NUMBER and sealed against shrinking: a file that is truncated
 * while it is mapped ends its reader with SIGBUS, and with it the training.
 *
 *   offset  size
 *        0     8  generation: 0 = nothing published yet; slot generation % 2 holds the table
 *        8     8  magic "NCCLTSHM"
 *       16     4  format, 1
 *       20     4  rows that fit into a slot, 256
 *       24     8  reserved, 0
 *       32  8224  slot 0
 *     8256  8224  slot 1
 *
 *   slot: 8 bytes generation of this table, 8 bytes number of rows, 8 bytes checksum (FNV-1a over generation, number and
 *   rows), 8 bytes reserved, then 256 rows of 32 bytes:
 *   8 bytes first size, 8 bytes last size (inclusive), 4 bytes nodes and 4 bytes ranks (0 = any), then one byte each:
 *   collective, algorithm, protocol (NCCL's numbers), channels (0 = left to NCCL), 4 bytes reserved, 0.
 *
 * The controller writes the slot that is not in use, then the generation. A reader that finds the same generation
 * before and after its look has seen one whole table. That all ranks look after the same switch is the controller's
 * duty: it switches every node, waits for all, and only then lets the next collective begin. */
#ifndef NCCLT_SHARED_H
#define NCCLT_SHARED_H

#include <stdatomic.h>
#include <stdint.h>

#include "table.h"

enum { NCCLT_SHARED_FORMAT = 1, NCCLT_SHARED_ROWS = 256 };

struct ncclt_shared_row {
  _Atomic uint64_t first, last, shape, choice;
};

struct ncclt_shared_slot {
  _Atomic uint64_t generation, rows, checksum, reserved;
  struct ncclt_shared_row row[NCCLT_SHARED_ROWS];
};

struct ncclt_shared {
  _Atomic uint64_t generation;
  char magic[8];
  uint32_t format, capacity;
  uint64_t reserved;
  struct ncclt_shared_slot slot[2];
};

/* Map the memory for reading, if it can never become shorter; NULL with a sentence in `reason`. */
const struct ncclt_shared *ncclt_shared_open(const char *path, char reason[NCCLT_REASON_SIZE]);

void ncclt_shared_close(const struct ncclt_shared *shared);

enum ncclt_shared_answer { NCCLT_SHARED_NONE, NCCLT_SHARED_FOUND, NCCLT_SHARED_DAMAGED };

/* Look a size up in the published table. Neither locks nor allocates. `checked` remembers which generation was found
 * whole, so that its checksum is computed once. */
enum ncclt_shared_answer ncclt_shared_find(const struct ncclt_shared *shared, int function, uint64_t bytes,
                                           uint64_t nodes, uint64_t ranks, _Atomic uint64_t *checked,
                                           struct ncclt_choice *choice);

#endif
