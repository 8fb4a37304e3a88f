#include "named_table.h"

#include <stdio.h>
#include <stdlib.h>

struct ncclt_named_table ncclt_find_named_table(void) {
  static const struct {
    const char *variable;
    enum ncclt_source source;
  } PLACES[] = {{"NCCLT_POLICY_SHM", NCCLT_TABLE_SHARED},
                {"NCCLT_TABLE", NCCLT_TABLE_TEXT},
                {"NCCLT_POLICY", NCCLT_TABLE_FILE},
                {"NCCL_TUNER_CONFIG_FILE", NCCLT_TABLE_FILE}};
  for (size_t i = 0; i < sizeof PLACES / sizeof *PLACES; i++) {
    const char *value = getenv(PLACES[i].variable);
    if (value && *value) return (struct ncclt_named_table){PLACES[i].source, PLACES[i].variable, value};
  }
  return (struct ncclt_named_table){NCCLT_NO_TABLE, NULL, NULL};
}

static int load(struct ncclt_table *table, const struct ncclt_named_table *named, uint64_t nodes, uint64_t ranks,
                char *reason) {
  if (named->source == NCCLT_TABLE_TEXT) return ncclt_table_decode(table, named->value, nodes, ranks, reason);
  if (named->source == NCCLT_TABLE_FILE) {
    const char *checksum = getenv("NCCLT_POLICY_CHECKSUM");
    return ncclt_table_read(table, named->value, checksum && *checksum ? checksum : NULL, nodes, ranks, reason);
  }
  snprintf(reason, NCCLT_REASON_SIZE, "no table is named");
  return -1;
}

int ncclt_load_table(struct ncclt_table *table, const struct ncclt_named_table *named, uint64_t nodes, uint64_t ranks,
                     int nccl_version, char reason[NCCLT_REASON_SIZE]) {
  if (load(table, named, nodes, ranks, reason)) return -1;
  if (!table->nccl_version || !nccl_version || table->nccl_version == nccl_version) return 0;
  char wanted[32], here[32];
  ncclt_version_text(table->nccl_version, wanted);
  ncclt_version_text(nccl_version, here);
  snprintf(reason, NCCLT_REASON_SIZE, "it was measured with NCCL %s, this is %s", wanted, here);
  ncclt_table_free(table);
  return -1;
}
