#include "report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const COLLECTIVES[NCCL_FUNCTIONS] = {"broadcast", "reduce", "all_gather", "reduce_scatter",
                                                        "all_reduce"};
static const char *const OUTCOMES[] = {"", "applied", "unmatched", "unavailable"};

/* Write a JSON string. What is no printable ASCII becomes `?`: paths may hold bytes that are no UTF-8. */
static void put_string(FILE *file, const char *key, const char *text) {
  fprintf(file, "\"%s\":\"", key);
  for (; *text; text++) {
    if (*text == '"' || *text == '\\') fputc('\\', file);
    fputc(*text >= ' ' && *text <= '~' ? *text : '?', file);
  }
  fputs("\",", file);
}

/* The rank in the job as its launcher tells it: torchrun, Slurm, Open MPI, MPICH. The tuner API tells none. */
static long launch_rank(void) {
  static const char *const NAMES[] = {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"};
  for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
    const char *text = getenv(NAMES[i]);
    size_t length = text ? strspn(text, "0123456789") : 0;
    if (length == 0 || length > 9 || text[length]) continue;
    long rank = 0;
    for (size_t digit = 0; digit < length; digit++) rank = rank * 10 + (text[digit] - '0');
    return rank;
  }
  return -1;
}

/* Return why no table is in use; empty = one is. */
static const char *reason_not_in_use(const struct ncclt_communicator *communicator) {
  if (communicator->reason[0]) return communicator->reason;
  switch (atomic_load_explicit(&communicator->use, memory_order_relaxed)) {
    case NCCLT_UNUSED: return "the ranks have not agreed to use it";
    case NCCLT_FAILS: return "the decision of the ranks is not known";
    default: return "";
  }
}

static void put_delegate(FILE *file, const struct ncclt_communicator *communicator) {
  const struct ncclt_delegate *delegate = communicator->delegate;
  put_string(file, "delegate", delegate && delegate->path ? delegate->path : "");
  put_string(file, "delegate_name", delegate ? delegate->name : "");
  put_string(file, "delegate_not_in_use", communicator->delegate_reason);
  fprintf(file, "\"delegate_api\":%d,\"delegated\":%" PRIu64 ",\"delegate_failures\":%" PRIu64 ",",
          delegate ? delegate->api : 0, atomic_load_explicit(&communicator->delegated, memory_order_relaxed),
          delegate ? atomic_load_explicit(&delegate->failures, memory_order_relaxed) : 0);
}

static void put_header(FILE *file, const struct ncclt_communicator *communicator, const char *host, int finished) {
  const struct ncclt_table *table = &communicator->table;
  char nccl[32];
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  ncclt_version_text(communicator->nccl_version, nccl);
  fprintf(file, "{\"ncclt_plugin_report\":%d,", NCCLT_REPORT_FORMAT);
  put_string(file, "plugin", NCCLT_VERSION);
  fprintf(file, "\"tuner_api\":%d,", communicator->api);
  put_string(file, "nccl", nccl);
  put_string(file, "host", host);
  fprintf(file, "\"pid\":%ld,\"launch_rank\":%ld,\"communicator\":\"%016" PRIx64 "\",\"number\":%d,", communicator->process,
          launch_rank(), communicator->id, communicator->number);
  fprintf(file, "\"ranks\":%" PRIu64 ",\"nodes\":%" PRIu64 ",", communicator->ranks, communicator->nodes);
  put_string(file, "policy", communicator->policy ? communicator->policy : "");
  fprintf(file, "\"shared\":%s,", communicator->shared ? "true" : "false");
  put_string(file, "table", table->id);
  fprintf(file, "\"fnv1a\":\"%016" PRIx64 "\",\"rows\":%" PRIu32 ",\"rows_here\":%" PRIu32 ",", table->checksum, table->rows,
          table->rows_here);
  put_string(file, "not_in_use", reason_not_in_use(communicator));
  put_delegate(file, communicator);
  if (communicator->shared)
    fprintf(file, "\"generation\":%" PRIu64 ",",
            atomic_load_explicit(&communicator->checked, memory_order_relaxed));
  fprintf(file, "\"started_us\":%" PRIu64 ",\"written_us\":%" PRIu64 ",\"finished\":%s}\n", communicator->started_ns / 1000,
          (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000, finished ? "true" : "false");
}

static void put_decisions(FILE *file, const struct ncclt_decisions *decisions) {
  for (int i = 0; i < NCCLT_SLOTS; i++) {
    struct ncclt_decision decision;
    uint64_t calls = ncclt_decisions_read(&decisions->slot[i], &decision);
    if (calls == 0) continue;
    fprintf(file, "{\"collective\":\"%s\",\"size_bytes\":%" PRIu64 ",\"outcome\":\"%s\",",
            COLLECTIVES[decision.function], decision.bytes, OUTCOMES[decision.outcome]);
    if (decision.outcome != NCCLT_UNMATCHED)
      fprintf(file, "\"algorithm\":\"%s\",\"protocol\":\"%s\",\"channels\":%d,",
              ncclt_algorithm_name(decision.choice.algorithm), ncclt_protocol_name(decision.choice.protocol),
              decision.choice.channels);
    fprintf(file, "\"calls\":%" PRIu64 "}\n", calls);
  }
  for (int function = 0; function < NCCL_FUNCTIONS; function++)
    for (int size = 0; size < NCCLT_SIZE_CLASSES; size++) {
      uint64_t calls = atomic_load_explicit(&decisions->other_calls[function][size], memory_order_relaxed);
      if (calls)
        fprintf(file, "{\"collective\":\"%s\",\"size_class_bytes\":%" PRIu64 ",\"calls\":%" PRIu64 "}\n",
                COLLECTIVES[function], UINT64_C(1) << size, calls);
    }
}

/* A host's name becomes part of a file's name. */
static void read_host(char host[64]) {
  if (gethostname(host, 64)) host[0] = 0;
  host[63] = 0;
  for (char *at = host; *at; at++)
    if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-", *at)) *at = '_';
}

int ncclt_report_write(const struct ncclt_communicator *communicator, int finished) {
  char host[64], path[4096], hidden[4160];
  read_host(host);
  /* The time tells containers apart that share a host's name and process ids. */
  int length = snprintf(path, sizeof path, "%s/ncclt-plugin.%s.%ld.%d.%" PRIx64 ".jsonl", communicator->report_folder, host,
                        communicator->process, communicator->number, communicator->started_ns);
  if (length < 0 || (size_t)length >= sizeof path) return -1;
  snprintf(hidden, sizeof hidden, "%s.part", path);
  FILE *file = fopen(hidden, "wxe");
  if (!file) return -1;
  put_header(file, communicator, host, finished);
  put_decisions(file, communicator->decisions);
  int failed = ferror(file);
  failed |= fclose(file);
  if (!failed && rename(hidden, path) == 0) return 0;
  unlink(hidden);
  return -1;
}
