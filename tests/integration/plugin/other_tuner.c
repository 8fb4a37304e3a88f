/* A tuner as a vendor may ship it, of one API: -DAPI=N. It checks what it is told, and fails where it is asked to.
 *
 * A size decides what it does: size % 8 is 3 = it writes rubbish and returns an error, 5 = it changes nothing, 6 = it
 * wants what is not offered, else it wants ring and simple with 5 channels (6 with registered buffers). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_tuner_abi.h"

enum { WANTED_CHANNELS = 5, NEGLECTED = 3, SILENT = 5, IMPOSSIBLE = 6 };

static int state; /* what the context points to */

static int number(const char *name) {
  const char *text = getenv(name);
  return text ? atoi(text) : 0;
}

static int begin(void **context, nccl_logger log, size_t ranks, size_t nodes) {
  if (!log || !context || ranks != 16 || nodes != 2) return 5;
  *context = &state;
  log(NCCL_LOG_INFO, NCCL_LOG_TUNING, __FILE__, __LINE__, "TUNER/ncclt: %s %d", "the other tuner of API", API);
  return number("OTHER_BREAKS");
}

static int end(void *context) { return context == &state ? 0 : abort(), 1; }

static int wants(size_t bytes, int registered, int *algorithm, int *protocol, int *channels) {
  if (bytes % 8 == SILENT) return 0;
  *algorithm = bytes % 8 == IMPOSSIBLE ? NCCL_COLLNET_CHAIN : NCCL_RING;
  *protocol = NCCL_SIMPLE;
  *channels = WANTED_CHANNELS + !!registered;
  return bytes % 8 == NEGLECTED ? 2 : 0;
}

#if API == 2
static int choose(void *context, int function, size_t bytes, int collnet, int nvls, int pipe_ops, int *algorithm,
                  int *protocol, int *channels) {
  if (context != &state || function < 0 || collnet || nvls != 1 || pipe_ops != 1) abort();
  if (*algorithm != -1 || *protocol != -1 || *channels != 0) abort();
  return wants(bytes, 0, algorithm, protocol, channels);
}
#else
static int decide(void *context, size_t bytes, int pipe_ops, float **costs, int algorithms, int protocols,
                  int registered, int *channels) {
  float *table = (float *)(void *)costs;
  int algorithm = -1, protocol = -1;
  if (context != &state || pipe_ops != 1 || !channels || *channels) abort();
  int code = wants(bytes, registered, &algorithm, &protocol, channels);
  if (code)
    for (int i = 0; i < algorithms * protocols; i++) table[i] = -7;
  else if (algorithm >= 0 && table[algorithm * protocols + protocol] >= 0)
    table[algorithm * protocols + protocol] = 0.5f;
  else if (algorithm >= 0) *channels = 0;
  return code;
}
#endif
#if API == 3
static int choose(void *context, int function, size_t bytes, int pipe_ops, float **costs, int algorithms, int protocols,
                  int *channels) {
  (void)function;
  return decide(context, bytes, pipe_ops, costs, algorithms, protocols, 0, channels);
}
#elif API >= 4
static int choose(void *context, int function, size_t bytes, int pipe_ops, float **costs, int algorithms, int protocols,
                  int registered, int *channels) {
  (void)function;
  return decide(context, bytes, pipe_ops, costs, algorithms, protocols, registered, channels);
}
#endif

#if API < 5
static int init(size_t ranks, size_t nodes, nccl_logger log, void **context) {
  return begin(context, log, ranks, nodes);
}
#else
#if API == 7
typedef struct nccl_constants_v7 constants_here;
#else
typedef struct nccl_constants_v5 constants_here;
#endif

/* Alters a latency and the newest capability's bandwidth, before it fails as well. */
static int init(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger log,
                struct nccl_nvl_domain_v5 *domain, constants_here *constants) {
  int told = number("OTHER_IS_TOLD"), newest = API == 7 ? NCCL_CAPABILITIES_V7 - 1 : NCCL_CAPABILITIES_V5 - 1;
  if (domain->domains != 2 || domain->min_ranks_per_domain != 8 || communicator != (told ? 7u : 0u)) return 6;
  if (fabs(constants->bandwidth[4][newest][2] - told) > 0) return 7;
  constants->latency[0] += 1;
  constants->bandwidth[4][newest][2] += 2;
  return begin(context, log, ranks, nodes);
}
#endif

#if API >= 6
static int chunk(void *context, int function, size_t bytes, int algorithm, int protocol, int channels, size_t *chunk) {
  if (context != &state || function != NCCL_ALL_REDUCE || algorithm != NCCL_RING || protocol != NCCL_LL || channels != 3)
    abort();
  *chunk = bytes % 8 == SILENT ? 0 : *chunk * 2;
  return bytes % 8 == NEGLECTED;
}
#define CHUNK , chunk
#else
#define CHUNK
#endif

#ifdef INCOMPLETE
#define CHOICE NULL
#else
#define CHOICE choose
#endif

#ifndef NAME
#define NAME "other"
#endif

#define JOIN(left, right) left##right
#define WITH(left, right) JOIN(left, right)
const struct WITH(nccl_tuner_v, API) WITH(ncclTunerPlugin_v, API) = {NAME, init, CHOICE, end CHUNK};
