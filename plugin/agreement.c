#define _GNU_SOURCE /* dl_iterate_phdr */
#include "agreement.h"

#include <inttypes.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "named_table.h"
#include "nccl_version.h"

#define EXPORTED __attribute__((visibility("default")))

static _Atomic int decision;

int ncclt_agreement(void) {
  const char *value = getenv("NCCLT_AGREEMENT");
  if (!value || !*value || strcmp(value, "none") == 0) return NCCLT_NO_AGREEMENT;
  return strcmp(value, "hook") == 0 ? NCCLT_BY_HOOK : NCCLT_UNKNOWN_AGREEMENT;
}

enum ncclt_agreed ncclt_current_decision(void) {
  return (enum ncclt_agreed)atomic_load_explicit(&decision, memory_order_acquire);
}

/* Hash every part of our own object that is never written to: what runs, whatever lies in the file by now. */
static int hash_image(struct dl_phdr_info *object, size_t size, void *hash) {
  uintptr_t here = (uintptr_t)&hash_image;
  int found = 0;
  (void)size;
  for (int pass = 0; pass < 2; pass++)
    for (int i = 0; i < object->dlpi_phnum; i++) {
      const ElfW(Phdr) *part = &object->dlpi_phdr[i];
      uintptr_t at = object->dlpi_addr + part->p_vaddr;
      if (part->p_type != PT_LOAD) continue;
      if (pass == 0) found |= here >= at && here < at + part->p_memsz;
      else if (found && !(part->p_flags & PF_W))
        *(uint64_t *)hash = ncclt_fnv1a(*(uint64_t *)hash, (const char *)at, part->p_filesz);
    }
  return found;
}

EXPORTED int ncclt_describe(char *text, size_t size) {
  char problem[NCCLT_REASON_SIZE] = "", version[32], checksum[24] = "";
  struct ncclt_named_table named = ncclt_find_named_table();
  struct ncclt_table table;
  uint64_t image = NCCLT_FNV1A_BASIS;
  int nccl = ncclt_nccl_version(NULL);
  dl_iterate_phdr(hash_image, &image);
  ncclt_version_text(nccl, version);
  if (named.source == NCCLT_TABLE_SHARED) {
    snprintf(checksum, sizeof checksum, "shared");
  } else if (ncclt_load_table(&table, &named, 0, 0, nccl, problem) == 0) {
    snprintf(checksum, sizeof checksum, "%016" PRIx64, table.checksum);
    ncclt_table_free(&table);
  }
  for (char *at = problem; *at; at++) /* paths may hold anything, and a line feed would begin another field */
    if (*at < ' ' || *at > '~') *at = '?';
  int length = snprintf(text, size, "plugin=%s\nimage=%016" PRIx64 "\nnccl=%s\ntable=%s\nproblem=%s\n", NCCLT_VERSION,
                        image, version, checksum, problem);
  return length < 0 || (size_t)length >= size ? -1 : length;
}

EXPORTED void ncclt_decide(int decided) { atomic_store_explicit(&decision, decided, memory_order_release); }
