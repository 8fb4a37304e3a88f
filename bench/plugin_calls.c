/* The program behind bench/plugin.py: what one decision costs. Usage: plugin_calls RULES CALLS DELEGATE; needs
 * NCCLT_POLICY. With -DDELEGATE it compiles to DELEGATE, another tuner, which makes one entry the cheapest.
 *
 * Cases: `empty` = a plugin that decides nothing, `linear` = a scan over the same rows, first match first, as NVIDIA's
 * example plugin looks (written here, with its test of every column), `ncclt` and `ncclt-counting` = ours, `delegate` =
 * the other tuner called directly, `ncclt-delegating` = the same calls through ours, which has rows of that collective but
 * none for these sizes, `ncclt-delegating-all` = of a collective that has no rows at all, `ncclt-live` = of a communicator
 * whose plan can change, without rows. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl_tuner_abi.h"

#ifdef DELEGATE
static int begin(void **context, uint64_t id, size_t ranks, size_t nodes, nccl_logger log,
                 struct nccl_nvl_domain_v5 *domain, struct nccl_constants_v5 *constants) {
  (void)context, (void)id, (void)ranks, (void)nodes, (void)log, (void)domain, (void)constants;
  return 0;
}

static int decide(void *context, int function, size_t bytes, int pipe_ops, float **costs, int algorithms, int protocols,
                  int registered, int *channels) {
  (void)context, (void)function, (void)pipe_ops, (void)algorithms, (void)registered;
  float *cost = (float *)(void *)costs + NCCL_RING * protocols + (bytes > 65536 ? NCCL_SIMPLE : NCCL_LL);
  if (*cost >= 0) *cost = 0;
  *channels = 8;
  return 0;
}

static int end(void *context) {
  (void)context;
  return 0;
}

__attribute__((visibility("default"))) const struct nccl_tuner_v6 ncclTunerPlugin_v6 = {"bench", begin, decide, end,
                                                                                        NULL};
#else

extern struct nccl_tuner_v6 ncclTunerPlugin_v6;

enum { MOST_RULES = 4096, SIZES = 512, ORDER = 8192, ROUNDS = 41, RANKS = 16, NODES = 2 };

typedef int decide(void *, int, size_t, int, float **, int, int, int, int *);

struct scanned {
  int function, algorithm, protocol, channels, nodes, ranks, pipe_ops, registered;
  size_t first, last;
};

static struct scanned rows[MOST_RULES];
static int row_count;

static int decide_nothing(void *context, int function, size_t bytes, int pipe_ops, float **costs, int algorithms,
                          int protocols, int registered, int *channels) {
  (void)context, (void)function, (void)bytes, (void)pipe_ops, (void)costs, (void)algorithms, (void)protocols;
  (void)registered, (void)channels;
  return 0;
}

static int decide_linear(void *context, int function, size_t bytes, int pipe_ops, float **costs, int algorithms,
                         int protocols, int registered, int *channels) {
  (void)context;
  float *table = (float *)(void *)costs;
  for (int i = 0; i < row_count; i++) {
    const struct scanned *row = &rows[i];
    if (row->function != function || bytes < row->first || bytes > row->last) continue;
    if ((row->nodes != -1 && row->nodes != NODES) || (row->ranks != -1 && row->ranks != RANKS)) continue;
    if ((row->pipe_ops != -1 && row->pipe_ops != pipe_ops) || (row->registered != -1 && row->registered != registered))
      continue;
    if (row->algorithm >= algorithms || row->protocol >= protocols) continue;
    float *cost = &table[row->algorithm * protocols + row->protocol];
    if (*cost == -1.0f) continue;
    *cost = 0;
    if (row->channels != -1) *channels = row->channels;
    return 0;
  }
  return 0;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static size_t sizes[SIZES];
static unsigned short order[ORDER];

static double ns_per_decision(decide *volatile function, void *context, int collective, long calls) {
  double best = 1e9;
  volatile long sink = 0;
  for (int round = 0; round < ROUNDS; round++) { /* the quickest round: others are disturbed by the machine */
    float costs[21];
    for (int i = 0; i < 21; i++) costs[i] = 1;
    double started = seconds();
    for (long i = 0; i < calls; i++) {
      int channels = 0;
      costs[i % 21] = 1;
      function(context, collective, sizes[order[i % ORDER]], 1, (float **)(void *)costs, 7, 3, 0, &channels);
      sink += channels;
    }
    double taken = (seconds() - started) * 1e9 / (double)calls;
    if (taken < best) best = taken;
  }
  return best;
}

int main(int count, char **arguments) {
  if (count != 4) return 2;
  row_count = atoi(arguments[1]);
  long calls = atol(arguments[2]);
  const char *path = getenv("NCCLT_POLICY");
  FILE *file = path && row_count > 0 && row_count <= MOST_RULES && calls > 0 ? fopen(path, "w") : NULL;
  if (!file) return 2;
  for (int i = 0; i < row_count; i++) { /* every range is 1000 bytes long */
    rows[i] = (struct scanned){NCCL_ALL_REDUCE, NCCL_RING, i % 3, 1 + i % 32, NODES, RANKS, -1, -1, (size_t)i * 1000,
                               (size_t)i * 1000 + 999};
    static const char *const NAMES[] = {"ll", "ll128", "simple"};
    fprintf(file, "allreduce,%zu,%zu,ring,%s,%d,%d,%d\n", rows[i].first, rows[i].last, NAMES[i % 3], 1 + i % 32, NODES,
            RANKS);
  }
  for (int i = 0; i < row_count; i++) /* of broadcast, with gaps in which all sizes lie */
    fprintf(file, "broadcast,%zu,%zu,ring,ll,1,%d,%d\n", (size_t)i * 1000 + 500, (size_t)i * 1000 + 500, NODES, RANKS);
  if (fclose(file)) return 2;
  srand(1);
  for (int i = 0; i < SIZES; i++) sizes[i] = (size_t)rand() % ((size_t)row_count * 1000) / 500 * 500 + 1;
  for (int i = 0; i < ORDER; i++) order[i] = (unsigned short)(rand() % SIZES);

  void *plain = NULL, *counting = NULL, *delegating = NULL, *live = NULL;
  void *library = dlopen(arguments[3], RTLD_NOW | RTLD_LOCAL);
  const struct nccl_tuner_v6 *delegate = library ? dlsym(library, "ncclTunerPlugin_v6") : NULL;
  if (!delegate) return 2;
  setenv("NCCLT_DELEGATE", arguments[3], 1);
  ncclTunerPlugin_v6.init(&delegating, 3, RANKS, NODES, NULL, NULL, NULL);
  setenv("NCCLT_DELEGATE", "none", 1);
  char folder[] = "."; /* the script's own folder: the report is written where it runs */
  ncclTunerPlugin_v6.init(&plain, 1, RANKS, NODES, NULL, NULL, NULL);
  char *policy = strdup(path);
  setenv("NCCLT_LIVE", "1", 1);
  unsetenv("NCCLT_POLICY");
  ncclTunerPlugin_v6.init(&live, 4, RANKS, NODES, NULL, NULL, NULL);
  unsetenv("NCCLT_LIVE");
  setenv("NCCLT_POLICY", policy, 1);
  free(policy);
  setenv("NCCLT_PLUGIN_REPORT", folder, 1);
  ncclTunerPlugin_v6.init(&counting, 2, RANKS, NODES, NULL, NULL, NULL);
  printf("empty %.2f\n", ns_per_decision(decide_nothing, NULL, NCCL_ALL_REDUCE, calls));
  printf("linear %.2f\n", ns_per_decision(decide_linear, NULL, NCCL_ALL_REDUCE, calls));
  printf("ncclt %.2f\n", ns_per_decision(ncclTunerPlugin_v6.get_coll_info, plain, NCCL_ALL_REDUCE, calls));
  printf("ncclt-counting %.2f\n", ns_per_decision(ncclTunerPlugin_v6.get_coll_info, counting, NCCL_ALL_REDUCE, calls));
  /* Sizes between the rows: looked up among as many as the others, and found in none. */
  printf("delegate %.2f\n", ns_per_decision(delegate->get_coll_info, NULL, NCCL_BROADCAST, calls));
  printf("ncclt-delegating %.2f\n",
         ns_per_decision(ncclTunerPlugin_v6.get_coll_info, delegating, NCCL_BROADCAST, calls));
  printf("ncclt-delegating-all %.2f\n",
         ns_per_decision(ncclTunerPlugin_v6.get_coll_info, delegating, NCCL_REDUCE, calls));
  printf("ncclt-live %.2f\n", ns_per_decision(ncclTunerPlugin_v6.get_coll_info, live, NCCL_ALL_REDUCE, calls));
  ncclTunerPlugin_v6.finalize(plain);
  ncclTunerPlugin_v6.finalize(live);
  ncclTunerPlugin_v6.finalize(delegating);
  ncclTunerPlugin_v6.finalize(counting);
  return 0;
}
#endif
