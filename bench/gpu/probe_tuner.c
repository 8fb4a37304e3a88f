/* A tuner plugin for experiments (agreement.py): logs every question, refuses to start, or answers by a plan.
 *
 *     PROBE_LOG=FOLDER       one file per communicator: COMMUNICATOR-RANK.txt with a line per question
 *     PROBE_FAIL=CODE        init warns and returns this ncclResult_t
 *     PROBE_PLAN=N:A:P:C,... from counted question N on: algorithm A, protocol P (NCCL's numbers), C channels, 0 = NCCL's
 *
 * A question counts if it has pipelined operations: without them it is an estimate. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_tuner_abi.h"

enum { PLANS = 64 };

struct probe {
  FILE *log;
  long questions;
  struct plan { long first; int algorithm, protocol, channels; } plans[PLANS];
  int planned;
};

static char mark[64] = "-"; /* written between two phases, when no question is under way */

__attribute__((visibility("default"))) void probe_mark(const char *text) { snprintf(mark, sizeof mark, "%s", text); }

static int open_probe(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger log) {
  const char *fail = getenv("PROBE_FAIL"), *folder = getenv("PROBE_LOG"), *plan = getenv("PROBE_PLAN");
  const char *rank = getenv("PROBE_RANK");
  if (fail && *fail) {
    log(NCCL_LOG_WARN, ~0UL, __FILE__, __LINE__, "TUNER/probe: this rank cannot use its table");
    return atoi(fail);
  }
  struct probe *probe = calloc(1, sizeof *probe);
  if (!probe) return 2;
  while (plan && *plan && probe->planned < PLANS) {
    struct plan *one = &probe->plans[probe->planned];
    if (sscanf(plan, "%ld:%d:%d:%d", &one->first, &one->algorithm, &one->protocol, &one->channels) != 4) break;
    probe->planned++;
    plan = strchr(plan, ',');
    if (plan) plan++;
  }
  if (folder && *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%016lx-%s.txt", folder, (unsigned long)communicator, rank ? rank : "0");
    probe->log = fopen(path, "a");
    if (probe->log) {
      setvbuf(probe->log, NULL, _IOLBF, 4096);
      fprintf(probe->log, "# ranks %zu nodes %zu\n", ranks, nodes);
    }
  }
  *context = probe;
  return NCCL_SUCCESS;
}

static int ask_probe(void *context, int function, size_t bytes, int pipe_ops, float **costs, int algorithms,
                     int protocols, int registered, int *channels) {
  struct probe *probe = context;
  float *table = (float *)costs;
  unsigned long offered = 0;
  for (int i = 0; i < algorithms * protocols; i++) offered |= (unsigned long)(table[i] >= 0) << i;
  const struct plan *now = NULL;
  for (int i = 0; i < probe->planned; i++)
    if (probe->plans[i].first <= probe->questions) now = &probe->plans[i];
  int applied = 0;
  if (now && now->algorithm < algorithms && now->protocol < protocols) {
    float *cost = &table[now->algorithm * protocols + now->protocol];
    if (*cost >= 0) {
      *cost = 1e-6f;
      if (now->channels) *channels = now->channels;
      applied = 1;
    }
  }
  if (pipe_ops) probe->questions++;
  if (probe->log)
    fprintf(probe->log, "%s %d %zu %d %d %lx %d\n", mark, function, bytes, pipe_ops, registered, offered, applied);
  return NCCL_SUCCESS;
}

static int close_probe(void *context) {
  struct probe *probe = context;
  if (probe && probe->log) fclose(probe->log);
  free(probe);
  return NCCL_SUCCESS;
}

static int init_probe(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger log,
                      struct nccl_nvl_domain_v5 *domain, struct nccl_constants_v5 *constants) {
  (void)domain, (void)constants;
  return open_probe(context, communicator, ranks, nodes, log);
}

__attribute__((visibility("default"))) const struct nccl_tuner_v5 ncclTunerPlugin_v5 = {"probe", init_probe, ask_probe,
                                                                                       close_probe};
__attribute__((visibility("default"))) const struct nccl_tuner_v6 ncclTunerPlugin_v6 = {"probe", init_probe, ask_probe,
                                                                                       close_probe, NULL};
