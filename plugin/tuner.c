/* The symbols that NCCL looks for, newest first, and what a call does.
 *
 * Rules that hold for every NCCL (docs/internals/tuner-plugin.md, "What it writes"): the chosen entry of the cost table
 * becomes 1e-6 and only if it was >= 0; no other entry is written, and never a negative value, which would win from NCCL
 * 2.31 on; channels stay as they came unless the row names some. An error is returned only where this rank would
 * otherwise choose differently from the others: NCCL's init fails with it, or the collective. */
#include <stdint.h>

#include "communicator.h"

#define EXPORTED __attribute__((visibility("default")))

/* Declared first: their inits write the member for chunks. */
extern struct nccl_tuner_v6 ncclTunerPlugin_v6 EXPORTED;
extern struct nccl_tuner_v7 ncclTunerPlugin_v7 EXPORTED;

/* NCCL's code, whichever library it is in. */
#define CALLER __builtin_return_address(0)

static const float CHEAPEST_US = 1e-6f;

/* MAXCHANNELS before NCCL 2.25, which speaks API v4 at most. */
enum { CHANNELS_BEFORE_V4 = 32 };

static void count(struct ncclt_communicator *communicator, int function, uint64_t bytes, enum ncclt_outcome outcome,
                  struct ncclt_choice choice) {
  if (!communicator->decisions) return;
  struct ncclt_decision decision = {.function = function, .outcome = outcome, .choice = choice, .bytes = bytes};
  ncclt_decisions_count(communicator->decisions, &decision);
}

/* CollNet's channels are not limited by NCCL's scheduler: a number above its own would be out of range. */
static void set_channels(const struct ncclt_communicator *communicator, struct ncclt_choice *choice, int *channels) {
  if (choice->algorithm == NCCL_COLLNET_DIRECT || choice->algorithm == NCCL_COLLNET_CHAIN) choice->channels = 0;
  if (communicator->api < 4 && choice->channels > CHANNELS_BEFORE_V4) choice->channels = CHANNELS_BEFORE_V4;
  if (choice->channels && channels) *channels = choice->channels;
}

/* Let the displaced tuner answer what no row decides. */
static void delegate(struct ncclt_communicator *communicator, const struct ncclt_call *call) {
  int answered = ncclt_delegate_ask(communicator->delegate, call);
  if (answered && call->pipe_ops && communicator->decisions)
    atomic_fetch_add_explicit(&communicator->delegated, 1, memory_order_relaxed);
}

/* Without a pipelined operation it is an estimate: NCCL 2.31 and later make up to two before they ask about a call, where
 * they weigh symmetric kernels against the others (seen on an H100). An answer of LL lets NCCL run a symmetric kernel in
 * place of the row's, and the question about the call never comes: such a row leaves estimates to NCCL. */
static int is_left_to_nccl(const struct ncclt_communicator *communicator, const struct ncclt_call *call,
                           struct ncclt_choice choice) {
  int estimates = !communicator->nccl_version || communicator->nccl_version >= 23100;
  return estimates && !call->pipe_ops && choice.protocol == NCCL_LL;
}

static int choose(void *context, const struct ncclt_call *call) {
  struct ncclt_communicator *communicator = context;
  struct ncclt_choice choice = {0, 0, 0};
  if (!communicator) return NCCL_SUCCESS;
  enum ncclt_outcome outcome = NCCLT_UNMATCHED;
  int known = call->function >= 0 && call->function < NCCL_FUNCTIONS;
  int found = known ? ncclt_communicator_find(communicator, call, &choice) : 0;
  if (found < 0) return NCCL_INVALID_USAGE;
  if (found && !is_left_to_nccl(communicator, call, choice)) {
    outcome = NCCLT_UNAVAILABLE;
    if (call->costs && choice.algorithm < call->algorithms && choice.protocol < call->protocols) {
      float *cost = &call->costs[(long)choice.algorithm * call->protocols + choice.protocol];
      if (*cost >= 0) {
        *cost = CHEAPEST_US;
        set_channels(communicator, &choice, call->channels);
        outcome = NCCLT_APPLIED;
      }
    }
  }
  if (outcome != NCCLT_APPLIED && communicator->delegate) delegate(communicator, call);
  if (known && call->pipe_ops) /* estimates are not counted */
    count(communicator, call->function, call->bytes, outcome, choice);
  return NCCL_SUCCESS;
}

static int begin(void **context, const struct ncclt_opening *opening) {
  struct ncclt_communicator *opened = NULL;
  int code = context ? ncclt_communicator_open(opening, &opened) : NCCL_SUCCESS;
  if (context) *context = opened;
  return code;
}

static int close_communicator(void *context) {
  ncclt_communicator_close(context);
  return NCCL_SUCCESS;
}

static int choose_v4(void *context, int function, size_t bytes, int pipe_ops, float **costs, int algorithms,
                     int protocols, int registered, int *channels) {
  struct ncclt_call call = {function, bytes, pipe_ops, (float *)costs, algorithms, protocols, registered, channels};
  return choose(context, &call);
}

static int chunk_size(void *context, int function, size_t bytes, int algorithm, int protocol, int channels,
                      size_t *chunk_bytes) {
  struct ncclt_communicator *communicator = context;
  if (communicator && communicator->delegate)
    ncclt_delegate_chunk(communicator->delegate, function, bytes, algorithm, protocol, channels, chunk_bytes);
  return NCCL_SUCCESS;
}

typedef int chunk_size_function(void *, int, size_t, int, int, int, size_t *);

/* NCCL rounds what comes from getChunkSize, so there is one only where the displaced tuner has one: NCCL's own chunks
 * were measured, and a wrong one divides by zero in NCCL. It reads the member at every call. */
static int begin_with_chunks(void **context, const struct ncclt_opening *opening, chunk_size_function **member) {
  int code = begin(context, opening);
  const struct ncclt_communicator *communicator = context ? *context : NULL;
  if (communicator && communicator->delegate && ncclt_delegate_has_chunks(communicator->delegate))
    __atomic_store_n(member, chunk_size, __ATOMIC_RELAXED);
  return code;
}

static int init_of_v7(void **context, uint64_t id, size_t ranks, size_t nodes, nccl_logger log,
                      struct nccl_nvl_domain_v5 *domain, struct nccl_constants_v7 *constants) {
  struct ncclt_opening opening = {7, id, ranks, nodes, log, domain, constants, CALLER};
  return begin_with_chunks(context, &opening, &ncclTunerPlugin_v7.get_chunk_size);
}

struct nccl_tuner_v7 ncclTunerPlugin_v7 = {"ncclt", init_of_v7, choose_v4, close_communicator, NULL};

static int init_of_v6(void **context, uint64_t id, size_t ranks, size_t nodes, nccl_logger log,
                      struct nccl_nvl_domain_v5 *domain, struct nccl_constants_v5 *constants) {
  struct ncclt_opening opening = {6, id, ranks, nodes, log, domain, constants, CALLER};
  return begin_with_chunks(context, &opening, &ncclTunerPlugin_v6.get_chunk_size);
}

struct nccl_tuner_v6 ncclTunerPlugin_v6 = {"ncclt", init_of_v6, choose_v4, close_communicator, NULL};

static int init_of_v5(void **context, uint64_t id, size_t ranks, size_t nodes, nccl_logger log,
                      struct nccl_nvl_domain_v5 *domain, struct nccl_constants_v5 *constants) {
  struct ncclt_opening opening = {5, id, ranks, nodes, log, domain, constants, CALLER};
  return begin(context, &opening);
}

EXPORTED const struct nccl_tuner_v5 ncclTunerPlugin_v5 = {"ncclt", init_of_v5, choose_v4, close_communicator};

static int init_of_v4(size_t ranks, size_t nodes, nccl_logger log, void **context) {
  struct ncclt_opening opening = {4, 0, ranks, nodes, log, NULL, NULL, CALLER};
  return begin(context, &opening);
}

EXPORTED const struct nccl_tuner_v4 ncclTunerPlugin_v4 = {"ncclt", init_of_v4, choose_v4, close_communicator};

static int init_of_v3(size_t ranks, size_t nodes, nccl_logger log, void **context) {
  struct ncclt_opening opening = {3, 0, ranks, nodes, log, NULL, NULL, CALLER};
  return begin(context, &opening);
}

static int choose_v3(void *context, int function, size_t bytes, int pipe_ops, float **costs, int algorithms,
                     int protocols, int *channels) {
  struct ncclt_call call = {function, bytes, pipe_ops, (float *)costs, algorithms, protocols, 0, channels};
  return choose(context, &call);
}

EXPORTED const struct nccl_tuner_v3 ncclTunerPlugin_v3 = {"ncclt", init_of_v3, choose_v3, close_communicator};

static int init_of_v2(size_t ranks, size_t nodes, nccl_logger log, void **context) {
  struct ncclt_opening opening = {2, 0, ranks, nodes, log, NULL, NULL, CALLER};
  return begin(context, &opening);
}

/* API v2 (NCCL 2.21) has no cost table, so it cannot tell what NCCL disabled: only what is implemented, supported here
 * and safe everywhere is asked for. LL128 is not: whether the links keep its order is known to NCCL alone. */
static int is_safe_in_v2(const struct ncclt_communicator *communicator, int function, struct ncclt_choice choice,
                         int collnet, int nvls) {
  int reduces_all = function == NCCL_ALL_REDUCE;
  int gathers = function == NCCL_ALL_GATHER || function == NCCL_REDUCE_SCATTER;
  if (choice.protocol == NCCL_LL128) return 0;
  switch (choice.algorithm) {
    case NCCL_RING: return 1;
    case NCCL_TREE: return reduces_all;
    case NCCL_COLLNET_DIRECT: return collnet == 1 && choice.protocol == NCCL_SIMPLE && (reduces_all || gathers);
    case NCCL_COLLNET_CHAIN: return collnet == 1 && choice.protocol == NCCL_SIMPLE && reduces_all;
    case NCCL_NVLS:
      return nvls == 1 && choice.protocol == NCCL_SIMPLE && (reduces_all || gathers) &&
             (communicator->nodes == 1 || collnet == 1);
    case NCCL_NVLS_TREE: return nvls == 1 && choice.protocol == NCCL_SIMPLE && reduces_all && communicator->nodes > 1;
    default: return 0; /* PAT came with 2.23 */
  }
}

static void delegate_v2(struct ncclt_communicator *communicator, const struct ncclt_call *call, int collnet, int nvls,
                        int *algorithm, int *protocol) {
  float costs[NCCL_ALGORITHMS * NCCL_PROTOCOLS];
  struct ncclt_call offered = *call;
  offered.costs = costs;
  for (int one = 0; one < NCCL_ALGORITHMS; one++)
    for (int other = 0; other < NCCL_PROTOCOLS; other++) {
      struct ncclt_choice choice = {(uint8_t)one, (uint8_t)other, 0};
      int safe = is_safe_in_v2(communicator, call->function, choice, collnet, nvls);
      costs[one * NCCL_PROTOCOLS + other] = safe ? NCCLT_UNKNOWN_US : -1.0f;
    }
  int answered = ncclt_delegate_ask_v2(communicator->delegate, &offered, collnet, nvls, algorithm, protocol);
  if (answered && communicator->decisions)
    atomic_fetch_add_explicit(&communicator->delegated, 1, memory_order_relaxed);
}

static int choose_v2(void *context, int function, size_t bytes, int collnet, int nvls, int pipe_ops, int *algorithm,
                     int *protocol, int *channels) {
  struct ncclt_communicator *communicator = context;
  struct ncclt_choice choice = {0, 0, 0};
  if (!communicator || function < 0 || function >= NCCL_FUNCTIONS) return NCCL_SUCCESS;
  struct ncclt_call call = {function, bytes, pipe_ops, NULL, NCCL_ALGORITHMS, NCCL_PROTOCOLS, 0, channels};
  enum ncclt_outcome outcome = NCCLT_UNMATCHED;
  int found = ncclt_communicator_find(communicator, &call, &choice);
  if (found < 0) return NCCL_INVALID_USAGE;
  if (found) {
    outcome = NCCLT_UNAVAILABLE;
    if (algorithm && protocol && is_safe_in_v2(communicator, function, choice, collnet, nvls)) {
      *algorithm = choice.algorithm;
      *protocol = choice.protocol;
      set_channels(communicator, &choice, channels);
      outcome = NCCLT_APPLIED;
    }
  }
  if (outcome != NCCLT_APPLIED && communicator->delegate && algorithm && protocol)
    delegate_v2(communicator, &call, collnet, nvls, algorithm, protocol);
  count(communicator, function, bytes, outcome, choice);
  return NCCL_SUCCESS;
}

EXPORTED const struct nccl_tuner_v2 ncclTunerPlugin_v2 = {"ncclt", init_of_v2, choose_v2, close_communicator};
