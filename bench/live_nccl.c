/* The NCCL of bench/live.py: one rank of each communicator per process, which asks the compiled plugin as NCCL 2.28 does
 * (tuner API v5), and compares every choice with those of all other ranks in memory that the processes share. Like a real
 * collective, a question waits for ranks that are too far behind: asleep, since there may be far more processes than cores.
 * Nothing is sent. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "nccl_tuner_abi.h"

enum {
  MOST_RANKS = 64,
  MOST_COMMUNICATORS = 4,
  RING = 4096,   /* questions that are remembered */
  WINDOW = 64,   /* questions that a rank may be ahead of the slowest */
  DIFFERENT = 99,
  NOT_CONNECTED = 98,
};

/* In the memory that all processes map. */
struct shared {
  _Atomic uint64_t questions, different, stop_at;
  _Atomic uint64_t reached[MOST_COMMUNICATORS][MOST_RANKS];
  _Atomic uint32_t steps[MOST_COMMUNICATORS][MOST_RANKS]; /* that a rank has ended, a futex */
  _Atomic uint64_t answer[MOST_COMMUNICATORS][RING]; /* number of the question + 1, and the choice in the low 16 bits */
};

struct rank {
  struct shared *shared;
  const struct nccl_tuner_v5 *tuner;
  void *context;
  int communicator, rank, ranks, connected, has_memory, hides_ll128;
  uint64_t asked, slowest;
};

struct question {
  int function;
  uint64_t bytes;
};

static void silent(int level, unsigned long subsystems, const char *file, int line, const char *format, ...) {
  (void)level, (void)subsystems, (void)file, (void)line, (void)format;
}

int ncclGetVersion(int *version) { return *version = 22809, 0; }

size_t live_shared_size(void) { return sizeof(struct shared); }

void live_begin(struct shared *shared) {
  memset(shared, 0, sizeof *shared);
  atomic_store(&shared->stop_at, UINT64_MAX);
}

uint64_t live_questions(struct shared *shared) { return atomic_load(&shared->questions); }
uint64_t live_different(struct shared *shared) { return atomic_load(&shared->different); }
uint64_t live_stop_at(struct shared *shared) { return atomic_load(&shared->stop_at); }
void live_stop(struct shared *shared, uint64_t step) { atomic_store(&shared->stop_at, step); }

/* Open one rank. `connect` 0 = all algorithms are connected at init, as with NCCL_RUNTIME_CONNECT=0. */
struct rank *live_open(struct shared *shared, const char *plugin, int communicator, uint64_t id, int rank, int ranks,
                       int connect, int has_memory, int hides_ll128) {
  struct rank *made = calloc(1, sizeof *made);
  void *library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
  if (!made || !library) return NULL;
  made->shared = shared, made->communicator = communicator, made->rank = rank, made->ranks = ranks;
  made->has_memory = has_memory, made->hides_ll128 = hides_ll128;
  made->connected = connect ? 0 : (1 << NCCL_ALGORITHMS) - 1;
  made->tuner = dlsym(library, "ncclTunerPlugin_v5");
  if (!made->tuner || made->tuner->init(&made->context, id, (size_t)ranks, 1, silent, NULL, NULL)) return NULL;
  return made;
}

/* Wait for ranks that are too far behind, as a collective would: until the slowest one has ended its step. */
static void wait_for_slowest(struct rank *rank) {
  _Atomic uint64_t *reached = rank->shared->reached[rank->communicator];
  _Atomic uint32_t *steps = rank->shared->steps[rank->communicator], *slowest = NULL;
  while (rank->asked >= rank->slowest + WINDOW) {
    uint64_t least = UINT64_MAX;
    uint32_t seen = 0;
    for (int one = 0; one < rank->ranks; one++) {
      uint32_t ended = atomic_load(&steps[one]); /* before what it has reached, or its wake could be missed */
      uint64_t at = atomic_load(&reached[one]);
      if (at < least) least = at, seen = ended, slowest = &steps[one];
    }
    rank->slowest = least == UINT64_MAX ? UINT64_MAX - WINDOW : least;
    if (rank->asked >= rank->slowest + WINDOW) syscall(SYS_futex, slowest, FUTEX_WAIT, seen, NULL, NULL, 0);
  }
}

/* Wake the ranks that wait for this one. */
static void end_step(struct rank *rank) {
  _Atomic uint32_t *steps = &rank->shared->steps[rank->communicator][rank->rank];
  atomic_fetch_add(steps, 1);
  syscall(SYS_futex, steps, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Ask one question; `launches` 0 = an estimate of this rank alone. */
static int ask(struct rank *rank, const struct question *question, int launches) {
  float costs[NCCL_ALGORITHMS * NCCL_PROTOCOLS];
  int channels = 0, best = -1;
  for (int i = 0; i < NCCL_ALGORITHMS * NCCL_PROTOCOLS; i++) costs[i] = -1;
  for (int protocol = 0; protocol < NCCL_PROTOCOLS; protocol++) {
    costs[NCCL_RING * NCCL_PROTOCOLS + protocol] = 10 + (float)protocol;
    costs[NCCL_TREE * NCCL_PROTOCOLS + protocol] = 20 + (float)protocol;
  }
  if (rank->hides_ll128) costs[NCCL_RING * NCCL_PROTOCOLS + NCCL_LL128] = -1;
  if (launches) wait_for_slowest(rank);
  int code = rank->tuner->get_coll_info(rank->context, question->function, question->bytes, 1, (float **)(void *)costs,
                                        NCCL_ALGORITHMS, NCCL_PROTOCOLS, 0, &channels);
  if (code || !launches) return code;
  for (int i = 0; i < NCCL_ALGORITHMS * NCCL_PROTOCOLS; i++)
    if (costs[i] >= 0 && (best < 0 || costs[i] < costs[best])) best = i;
  int algorithm = 1 << best / NCCL_PROTOCOLS;
  if (!(rank->connected & algorithm) && !rank->has_memory && algorithm != 1 << NCCL_RING) return NOT_CONNECTED;
  rank->connected |= algorithm;
  uint64_t own = (rank->asked + 1) << 16 | (uint64_t)best << 8 | (uint64_t)channels;
  _Atomic uint64_t *place = &rank->shared->answer[rank->communicator][rank->asked % RING];
  uint64_t found = atomic_load(place);
  while (found >> 16 < own >> 16 && !atomic_compare_exchange_weak(place, &found, own)) {
  }
  if (found >> 16 == own >> 16 && found != own) {
    atomic_fetch_add(&rank->shared->different, 1);
    return DIFFERENT;
  }
  rank->asked++;
  atomic_store(&rank->shared->reached[rank->communicator][rank->rank], rank->asked);
  atomic_fetch_add_explicit(&rank->shared->questions, 1, memory_order_relaxed);
  return 0;
}

int live_step(struct rank *rank, const struct question *questions, int count, int launches) {
  int code = 0;
  for (int i = 0; i < count && !code; i++) code = ask(rank, &questions[i], launches);
  end_step(rank);
  return code;
}

/* End this rank without a barrier. */
void live_close(struct rank *rank) {
  atomic_store(&rank->shared->reached[rank->communicator][rank->rank], UINT64_MAX);
  end_step(rank);
  rank->tuner->finalize(rank->context);
  free(rank);
}
