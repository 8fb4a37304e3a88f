/* The policy table, compiled for one communicator. It comes as text for people (`ncclt env --format tuner-csv`) or, in an
 * environment variable, as compact text (ncclt.nccl.tuner_plugin.compact_table):
 *
 *   1:ID:NCCL:RANKS.NODES:SECTION_SECTION:FNV
 *   SECTION = ranks.nodes (0 = any), a letter for the collective, then rows, joined by +
 *   row     = [[start-]end], a letter for the algorithm, one for the protocol, [channels]
 *
 * Sizes and channels are in base 36 (0-9a-z), letters are upper case. A row without start begins behind the row before
 * it (the first at 0), one without end has none, and without channels they are left to NCCL. */
#ifndef NCCLT_TABLE_H
#define NCCLT_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "nccl_tuner_abi.h"
#include "warn.h"

#ifndef NCCLT_VERSION
#define NCCLT_VERSION "unknown" /* of ncclt; its build says */
#endif

enum {
  NCCLT_TABLE_FORMAT = 1,
  NCCLT_MOST_ROWS = 4096,
  NCCLT_MOST_ROW_CHARACTERS = 254,        /* what the line buffer of NVIDIA's example plugin holds */
  NCCLT_MOST_TABLE_BYTES = 1024 * 1024,
  NCCLT_MOST_COMPACT_BYTES = 32 * 1024,   /* launchers copy the environment for every task */
  NCCLT_MOST_CHANNELS = 64,               /* MAXCHANNELS since NCCL 2.25 */
};

/* What a row asks for; channels 0 = left to NCCL. */
struct ncclt_choice {
  uint8_t algorithm, protocol, channels;
};

/* The disjoint ranges of sizes of one collective, in order: from first[i] to last[i] bytes, both inclusive. */
struct ncclt_lane {
  uint32_t ranges;
  uint64_t *first, *last;
  struct ncclt_choice *choice;
};

struct ncclt_table {
  char id[65];            /* of the recommendation; empty where the table does not say */
  int nccl_version;       /* as ncclGetVersion tells it, 22809 = 2.28.9; 0 = the table does not say */
  uint64_t checksum;      /* FNV-1a of all rows as people read them: the same in both texts */
  uint32_t rows, rows_here; /* in the table, and for a communicator of this shape */
  struct ncclt_lane lanes[NCCL_FUNCTIONS]; /* none depends on registered buffers: that differs between ranks */
};

/* Parse a table and compile it for communicators of `ranks` on `nodes`. The first row that covers a size is the one
 * that counts, as in NVIDIA's example plugin. One wrong row refuses the whole table: half a policy was never measured.
 * Returns 0, or -1 with a sentence in `reason`; the table then holds no rows and needs no free. */
int ncclt_table_parse(struct ncclt_table *table, const char *text, size_t length, uint64_t nodes, uint64_t ranks,
                      char reason[NCCLT_REASON_SIZE]);

/* Decode the compact text and compile it; as above. */
int ncclt_table_decode(struct ncclt_table *table, const char *text, uint64_t nodes, uint64_t ranks,
                       char reason[NCCLT_REASON_SIZE]);

/* Read a file and parse it; as above. `checksum` is what its rows must have, as 16 hexadecimal digits; NULL = any. */
int ncclt_table_read(struct ncclt_table *table, const char *path, const char *checksum, uint64_t nodes, uint64_t ranks,
                     char reason[NCCLT_REASON_SIZE]);

void ncclt_table_free(struct ncclt_table *table);

/* Return the choice for a size, NULL where no row covers it. Neither locks nor allocates. */
static inline const struct ncclt_choice *ncclt_lane_find(const struct ncclt_lane *lane, uint64_t bytes) {
  uint32_t low = 0, left = lane->ranges;
  if (left == 0 || bytes < lane->first[0]) return NULL;
  while (left > 1) { /* invariant: first[low] <= bytes */
    uint32_t half = left / 2;
    low = lane->first[low + half] <= bytes ? low + half : low;
    left -= half;
  }
  return bytes <= lane->last[low] ? &lane->choice[low] : NULL;
}

/* FNV-1a of 64 bits, by Fowler, Noll and Vo (RFC 9923): finds what was cut off or edited, no more. */
#define NCCLT_FNV1A_BASIS UINT64_C(0xcbf29ce484222325)
static inline uint64_t ncclt_fnv1a(uint64_t hash, const char *text, size_t length) {
  for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
  return hash;
}

/* Write a version number as people do, 22809 as 2.28.9; empty for 0. */
void ncclt_version_text(int version, char text[32]);

/* Names as the table spells them; NULL beyond the known ones. */
const char *ncclt_algorithm_name(int algorithm);
const char *ncclt_protocol_name(int protocol);

#endif
