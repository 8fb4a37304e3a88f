/* The table that the environment names. */
#ifndef NCCLT_NAMED_TABLE_H
#define NCCLT_NAMED_TABLE_H

#include "table.h"

enum ncclt_source {
  NCCLT_NO_TABLE,
  NCCLT_TABLE_SHARED, /* NCCLT_POLICY_SHM */
  NCCLT_TABLE_TEXT,   /* NCCLT_TABLE, the table itself */
  NCCLT_TABLE_FILE,   /* NCCLT_POLICY, else NCCL_TUNER_CONFIG_FILE */
};

struct ncclt_named_table {
  enum ncclt_source source;
  const char *variable, *value; /* NULL without a table; the value belongs to the environment */
};

/* Find the first variable that is set, in the order above. */
struct ncclt_named_table ncclt_find_named_table(void);

/* Load a table that is not shared, for communicators of `ranks` on `nodes`, and compare its NCCL with `nccl_version`
 * (0 = not known). Returns 0, or -1 with a sentence in `reason`; the table then needs no free. */
int ncclt_load_table(struct ncclt_table *table, const struct ncclt_named_table *named, uint64_t nodes, uint64_t ranks,
                     int nccl_version, char reason[NCCLT_REASON_SIZE]);

#endif
