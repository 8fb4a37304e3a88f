#include "live.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "named_table.h"
#include "process.h"

#define EXPORTED __attribute__((visibility("default")))

enum { NO_ROW = 255, CHOICES = NCCL_ALGORITHMS * NCCL_PROTOCOLS };

enum state { UNDECIDED, COMMITTED, ABORTED, FAILED };
static const char *const STATES[] = {"undecided", "committed", "aborted", "failed"};

/* The choice for each known size of a communicator. */
struct plan {
  struct ncclt_choice choice[NCCLT_LIVE_SIZES]; /* algorithm NO_ROW = the NCCL default */
};

/* Which plan answers which question. Only `state` changes after it was published. */
struct change {
  uint64_t proposal, begins;
  double wait_s;
  _Atomic int state;
  struct plan before, after;
  struct change *retired; /* the next one in the list of those that an answer may still look at */
};

struct size {
  _Atomic uint64_t key;    /* collective + 1, and the size above it; 0 = free */
  _Atomic uint32_t offered; /* a bit per choice that NCCL offered at every question */
};

struct ncclt_live {
  /* Sequentially consistent: `arm` publishes a change and then looks at the count, a question counts and then looks at
   * the change, so that one of them sees the other. Likewise `in_flight`, and the change that is freed. */
  _Atomic uint64_t count, in_flight;
  _Atomic(struct change *) latest;
  _Atomic uint64_t hash, mark;
  _Atomic int captured, registered;
  _Atomic uint32_t used; /* a bit per algorithm */
  struct size size[NCCLT_LIVE_SIZES];
  struct change *retired;
};

static _Atomic uintptr_t estimator; /* the thread that estimates, 0 = none; variables of a thread need one more library */
static _Atomic int capturing;

static int is_estimating(void) {
  uintptr_t thread = atomic_load_explicit(&estimator, memory_order_relaxed);
  return thread && thread == (uintptr_t)pthread_self();
}

static struct change *new_change(uint64_t proposal, double wait_s) {
  struct change *change = calloc(1, sizeof *change);
  if (!change) return NULL;
  change->proposal = proposal;
  change->wait_s = wait_s;
  memset(&change->before, NO_ROW, sizeof change->before);
  memset(&change->after, NO_ROW, sizeof change->after);
  return change;
}

struct ncclt_live *ncclt_live_open(const struct ncclt_communicator *communicator, int *wanted,
                                   char reason[NCCLT_REASON_SIZE]) {
  const char *value = getenv("NCCLT_LIVE");
  struct ncclt_named_table named = ncclt_find_named_table();
  struct ncclt_live *live = NULL;
  *wanted = value && strcmp(value, "1") == 0;
  if (!*wanted) return NULL;
  if (named.source != NCCLT_NO_TABLE) {
    snprintf(reason, NCCLT_REASON_SIZE, "%s names a table", named.variable);
  } else if (communicator->api < 5) {
    snprintf(reason, NCCLT_REASON_SIZE, "NCCL speaks tuner API v%d, which does not name communicators: 2.28.3 does",
             communicator->api);
  } else if (communicator->delegate) {
    snprintf(reason, NCCLT_REASON_SIZE, "the tuner %s answers", communicator->delegate->name);
  } else if ((live = calloc(1, sizeof *live)) == NULL || (live->latest = new_change(0, 0)) == NULL) {
    free(live);
    live = NULL;
    snprintf(reason, NCCLT_REASON_SIZE, "no memory is left");
  } else {
    atomic_store(&atomic_load(&live->latest)->state, COMMITTED);
  }
  return live;
}

static void free_retired(struct ncclt_live *live) {
  while (live->retired) {
    struct change *next = live->retired->retired;
    free(live->retired);
    live->retired = next;
  }
}

void ncclt_live_close(struct ncclt_live *live) {
  if (!live) return;
  free_retired(live);
  free(atomic_load(&live->latest));
  free(live);
}

static uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
  return hash ^ hash >> 32;
}

/* Return the choices that NCCL offers, and the cheapest of them, its default. */
static uint32_t read_offered(const struct ncclt_call *call, int *cheapest) {
  uint32_t offered = 0;
  *cheapest = -1;
  for (int algorithm = 0; call->costs && algorithm < call->algorithms && algorithm < NCCL_ALGORITHMS; algorithm++)
    for (int protocol = 0; protocol < call->protocols && protocol < NCCL_PROTOCOLS; protocol++) {
      int one = algorithm * NCCL_PROTOCOLS + protocol;
      float cost = call->costs[(long)algorithm * call->protocols + protocol];
      if (!(cost >= 0)) continue;
      offered |= UINT32_C(1) << one;
      if (*cheapest < 0 || cost < call->costs[(long)(*cheapest / NCCL_PROTOCOLS) * call->protocols +
                                              *cheapest % NCCL_PROTOCOLS])
        *cheapest = one;
    }
  return offered;
}

/* Return the place of a size, -1 where it has none. `add`: give it one, as long as there is room. */
static int find_size(struct ncclt_live *live, int function, uint64_t bytes, uint32_t offered, int add) {
  if (bytes >> 60) return -1;
  uint64_t key = bytes << 3 | (uint64_t)(function + 1);
  uint64_t at = (key * UINT64_C(0x9e3779b97f4a7c15)) >> 54; /* Fibonacci hashing (Knuth, TAOCP 3, 6.4) */
  for (int probe = 0; probe < NCCLT_PROBES; probe++) {
    int place = (int)((at + (uint64_t)probe) % NCCLT_LIVE_SIZES);
    struct size *size = &live->size[place];
    uint64_t found = atomic_load_explicit(&size->key, memory_order_acquire);
    if (found == 0 && !add) return -1;
    if (found == 0) {
      uint32_t none = 0;
      atomic_compare_exchange_strong(&size->offered, &none, (UINT32_C(1) << CHOICES) - 1);
      if (atomic_compare_exchange_strong(&size->key, &found, key)) found = key;
    }
    if (found != key) continue;
    if (add && (atomic_load_explicit(&size->offered, memory_order_relaxed) & ~offered))
      atomic_fetch_and(&size->offered, offered);
    return place;
  }
  return -1;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Wait until the ranks' decision is known; afterwards it is, or this question has failed and so will all later ones. */
static int await_decision(const struct ncclt_communicator *communicator, struct change *change) {
  const struct timespec pause = {0, 200000};
  double ends_s = seconds() + change->wait_s;
  int state;
  while ((state = atomic_load_explicit(&change->state, memory_order_acquire)) == UNDECIDED && seconds() < ends_s)
    nanosleep(&pause, NULL);
  if (state != UNDECIDED) return state;
  if (!atomic_compare_exchange_strong(&change->state, &state, FAILED)) return state;
  ncclt_warn(communicator->log,
             "the decision of all ranks about a new plan did not arrive within %g s. This call fails, because ranks that "
             "choose differently hang or corrupt data",
             change->wait_s);
  return FAILED;
}

/* Return the plan for a question, NULL where it must fail. */
static const struct plan *find_plan(const struct ncclt_communicator *communicator, struct change *change,
                                    uint64_t question) {
  if (question < change->begins) return &change->before;
  int state = atomic_load_explicit(&change->state, memory_order_acquire);
  if (state == UNDECIDED) {
    if (is_estimating()) return &change->before;
    state = await_decision(communicator, change);
  }
  if (state == COMMITTED) return &change->after;
  return state == ABORTED ? &change->before : NULL;
}

static void hash_question(struct ncclt_live *live, uint64_t question, const struct ncclt_call *call, uint32_t offered,
                          const struct ncclt_choice *choice) {
  uint64_t chosen = choice ? 1 | (uint64_t)choice->algorithm << 8 | (uint64_t)choice->protocol << 16 |
                                 (uint64_t)choice->channels << 24
                           : 0;
  uint64_t hash = atomic_load_explicit(&live->hash, memory_order_relaxed);
  hash = mix(mix(mix(hash, call->bytes), (uint64_t)call->function | (uint64_t)offered << 8), chosen);
  atomic_store_explicit(&live->hash, hash, memory_order_relaxed);
  if ((question + 1) % NCCLT_LIVE_MARK == 0) atomic_store_explicit(&live->mark, hash, memory_order_relaxed);
}

int ncclt_live_find(struct ncclt_communicator *communicator, const struct ncclt_call *call,
                    struct ncclt_choice *choice) {
  struct ncclt_live *live = communicator->live;
  int counted = call->pipe_ops > 0 && !is_estimating(), found = -1, cheapest;
  atomic_fetch_add(&live->in_flight, 1);
  uint64_t question = counted ? atomic_fetch_add(&live->count, 1) : atomic_load(&live->count);
  const struct plan *plan = find_plan(communicator, atomic_load(&live->latest), question);
  if (plan) {
    uint32_t offered = read_offered(call, &cheapest);
    int place = find_size(live, call->function, call->bytes, offered, counted);
    const struct ncclt_choice *row = place < 0 ? NULL : &plan->choice[place];
    found = row && row->algorithm != NO_ROW && offered >> (row->algorithm * NCCL_PROTOCOLS + row->protocol) & 1;
    if (found) *choice = *row;
    if (counted) {
      int algorithm = found ? row->algorithm : cheapest / NCCL_PROTOCOLS;
      if (cheapest >= 0 && !(atomic_load_explicit(&live->used, memory_order_relaxed) >> algorithm & 1))
        atomic_fetch_or(&live->used, UINT32_C(1) << algorithm);
      hash_question(live, question, call, offered, found ? row : NULL);
      if (atomic_load_explicit(&capturing, memory_order_relaxed)) atomic_store(&live->captured, 1);
      if (call->registered) atomic_store_explicit(&live->registered, 1, memory_order_relaxed);
    }
  }
  atomic_fetch_sub(&live->in_flight, 1);
  return found;
}

/* Compile a table for the known sizes of a communicator, and return the checksum of its rows, in whatever order. */
static uint64_t compile(struct ncclt_live *live, const struct ncclt_table *table, int connected_only,
                        struct plan *plan) {
  uint64_t checksum = 0;
  uint32_t used = atomic_load(&live->used);
  for (int place = 0; place < NCCLT_LIVE_SIZES; place++) {
    uint64_t key = atomic_load_explicit(&live->size[place].key, memory_order_acquire);
    uint32_t offered = atomic_load(&live->size[place].offered);
    if (key == 0) continue;
    const struct ncclt_choice *row = ncclt_lane_find(&table->lanes[(key & 7) - 1], key >> 3);
    if (!row || !(offered >> (row->algorithm * NCCL_PROTOCOLS + row->protocol) & 1)) continue;
    if (connected_only && !(used >> row->algorithm & 1)) continue;
    plan->choice[place] = *row;
    checksum += mix(mix(key, 0), (uint64_t)row->algorithm << 16 | (uint64_t)row->protocol << 8 | row->channels);
  }
  return checksum;
}

/* Arm a switch in one communicator, with the process locked. */
static int arm(struct ncclt_communicator *communicator, struct change *change, const char *text, int connected_only,
               struct ncclt_live_armed *armed, char *reason) {
  struct ncclt_live *live = communicator->live;
  struct change *latest = atomic_load(&live->latest);
  int state = atomic_load(&latest->state);
  struct ncclt_table table = {.rows = 0};
  struct ncclt_named_table named = {NCCLT_TABLE_TEXT, "the plan", text};
  if (state == UNDECIDED || state == FAILED) {
    snprintf(reason, NCCLT_REASON_SIZE, "the last switch is %s", STATES[state]);
    return -1;
  }
  if (state == COMMITTED && latest->proposal && atomic_load(&live->count) == latest->begins) {
    snprintf(reason, NCCLT_REASON_SIZE, "no question came since the last switch");
    return -1;
  }
  if (*text && ncclt_load_table(&table, &named, communicator->nodes, communicator->ranks, communicator->nccl_version,
                                reason))
    return -1;
  change->before = state == COMMITTED ? latest->after : latest->before;
  armed->checksum = compile(live, &table, connected_only, &change->after);
  ncclt_table_free(&table);
  int is_asked = atomic_load(&live->in_flight) != 0;
  armed->begins = change->begins = atomic_load(&live->count);
  armed->hash = atomic_load(&live->hash);
  if (!is_asked) {
    atomic_store(&live->latest, change);
    latest->retired = live->retired;
    live->retired = latest;
    if (atomic_load(&live->in_flight) == 0) free_retired(live);
    if (atomic_load(&live->count) == change->begins) return 0;
    /* No rank commits what this one has not acknowledged. */
    atomic_store_explicit(&change->state, ABORTED, memory_order_release);
  }
  snprintf(reason, NCCLT_REASON_SIZE, "another thread asks in communicator %016" PRIx64, communicator->id);
  return -1;
}

EXPORTED int ncclt_live_arm(uint64_t proposal, uint64_t id, const char *table, int connected_only, double wait_s,
                            struct ncclt_live_armed *armed, char reason[NCCLT_REASON_SIZE]) {
  int failed = -1;
  struct change *change = new_change(proposal, wait_s);
  snprintf(reason, NCCLT_REASON_SIZE, "communicator %016" PRIx64 " is not open", id);
  if (!change) {
    snprintf(reason, NCCLT_REASON_SIZE, "no memory is left");
    return -1;
  }
  ncclt_process_lock();
  struct ncclt_communicator *found = NULL;
  for (struct ncclt_communicator *one = ncclt_process_open(); one; one = one->next)
    if (one->live && one->id == id) found = one;
  if (found) failed = arm(found, change, table, connected_only, armed, reason);
  if (!found || atomic_load(&found->live->latest) != change) free(change);
  ncclt_process_unlock();
  return failed;
}

EXPORTED void ncclt_live_decide(uint64_t proposal, int commit) {
  ncclt_process_lock();
  for (struct ncclt_communicator *one = ncclt_process_open(); one; one = one->next) {
    struct change *change = one->live ? atomic_load(&one->live->latest) : NULL;
    int undecided = UNDECIDED;
    if (change && change->proposal == proposal)
      atomic_compare_exchange_strong(&change->state, &undecided, commit ? COMMITTED : ABORTED);
  }
  ncclt_process_unlock();
}

/* Write one line, and return its length. */
static int describe(const struct ncclt_communicator *communicator, char *text, size_t size) {
  struct ncclt_live *live = communicator->live;
  if (!live)
    return snprintf(text, size, "id=%016" PRIx64 " ranks=%" PRIu64 " problem=%s\n", communicator->id,
                    communicator->ranks, communicator->live_reason[0] ? communicator->live_reason : "NCCLT_LIVE is not 1");
  const struct change *latest = atomic_load(&live->latest);
  int busy = atomic_load(&live->in_flight) != 0;
  uint64_t count = atomic_load(&live->count), mark = atomic_load(&live->mark), hash = atomic_load(&live->hash);
  busy |= atomic_load(&live->count) != count || atomic_load(&live->in_flight) != 0;
  return snprintf(text, size,
                  "id=%016" PRIx64 " ranks=%" PRIu64 " nodes=%" PRIu64 " count=%" PRIu64 " mark=%016" PRIx64
                  " hash=%016" PRIx64 " captured=%d registered=%d busy=%d begins=%" PRIu64 " state=%s\n",
                  communicator->id, communicator->ranks, communicator->nodes, count, mark, hash,
                  atomic_load(&live->captured), atomic_load(&live->registered), busy, latest->begins, STATES[atomic_load(&latest->state)]);
}

EXPORTED int ncclt_live_describe(char *text, size_t size) {
  size_t length = 0;
  int is_short = size == 0;
  if (size) text[0] = 0;
  ncclt_process_lock();
  for (struct ncclt_communicator *one = ncclt_process_open(); one && !is_short; one = one->next) {
    int written = describe(one, text + length, size - length);
    is_short = written < 0 || (size_t)written >= size - length;
    length += is_short ? 0 : (size_t)written;
  }
  ncclt_process_unlock();
  return is_short ? -1 : (int)length;
}

EXPORTED void ncclt_live_estimate(int on) { atomic_store(&estimator, on ? (uintptr_t)pthread_self() : 0); }

EXPORTED void ncclt_live_capture(int on) { atomic_fetch_add(&capturing, on ? 1 : -1); }
