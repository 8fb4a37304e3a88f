#include "delegate.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader.h"

enum {
  MOST_ENTRIES = 128,  /* of a cost table; NCCL has 21 */
  NCCL_TABLE_BYTES = NCCL_ALGORITHMS * NCCL_PROTOCOLS * sizeof(float),
  MOST_PATH = 1024,
  LEAST_SHARE = 16,    /* a chunk below this part of NCCL's own may be rounded to 0, by which NCCL divides */
};

static const float CHEAPEST_US = 1e-6f;

__attribute__((format(printf, 5, 6))) static void say_nothing(int level, unsigned long subsystems, const char *file,
                                                              int line, const char *format, ...) {
  (void)level, (void)subsystems, (void)file, (void)line, (void)format;
}

/* Every struct of a tuner begins with its name. */
static const char *name_of(const void *tuner) {
  const char *name = *(const char *const *)tuner;
  return name ? name : "without a name";
}

/* The version that NCCL would ask for, then the next older ones, then newer ones, which NCCL itself could not load. */
static const void *find_tuner(void *library, int spoken, int *api) {
  for (int step = 0; step <= NCCLT_NEWEST_API - NCCLT_OLDEST_API; step++) {
    int older = spoken - step, version = older >= NCCLT_OLDEST_API ? older : NCCLT_OLDEST_API + step;
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclTunerPlugin_v%d", version);
    const void *tuner = dlsym(library, symbol);
    if (tuner) {
      *api = version;
      return tuner;
    }
  }
  return NULL;
}

/* What was found, and what is wrong with it. */
struct found {
  const void *tuner;
  int api;
  char path[MOST_PATH];
};

/* Look for a tuner in one library; 1 = there is one. Only a library that is loaded already is looked at if `loaded`. */
static int look(struct found *found, int spoken, int loaded, const char *before, const char *name, const char *after) {
  char path[MOST_PATH];
  int length = snprintf(path, sizeof path, "%s%s%s", before, name, after);
  if (length <= 0 || (size_t)length >= sizeof path) return 0;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | (loaded ? RTLD_NOLOAD : 0));
  const void *tuner = library ? find_tuner(library, spoken, &found->api) : NULL;
  if (!tuner) return 0;
  found->tuner = tuner;
  memcpy(found->path, path, (size_t)length + 1);
  return 1;
}

static int is_ours(const struct found *found) { return strcmp(name_of(found->tuner), "ncclt") == 0; }

/* NCCL_NET_PLUGIN holds a name, a path, or since 2.26 several with commas. Without it NCCL takes libnccl-net.so. */
static int look_in_network_plugins(struct found *found, int spoken) {
  const char *names = getenv("NCCL_NET_PLUGIN");
  if (!names || !*names) return look(found, spoken, 1, "", "libnccl-net.so", "") && !is_ours(found);
  while (*names) {
    size_t length = strcspn(names, ",");
    char name[MOST_PATH];
    if (length && length < sizeof name) {
      memcpy(name, names, length);
      name[length] = 0;
      if (look(found, spoken, 1, "", name, "") && !is_ours(found)) return 1;
      if (look(found, spoken, 1, "libnccl-net-", name, ".so") && !is_ours(found)) return 1;
    }
    names += length + (names[length] == ',');
  }
  return 0;
}

/* Find the tuner in the places and order of NCCL (plugin_open.cc); 0 = there is none, and `said` tells if one was named. */
static int find(struct found *found, int spoken, char *said) {
  const char *named = getenv(NCCLT_DELEGATE_VARIABLE);
  if (!dlopen || !dlsym) return 0;
  if (!named || !*named)
    return (look(found, spoken, 0, "", "libnccl-tuner.so", "") && !is_ours(found)) ||
           look_in_network_plugins(found, spoken);
  if (strcmp(named, "none") == 0) return 0;
  if (!look(found, spoken, 0, "", named, "") &&
      (strchr(named, '/') || !look(found, spoken, 0, "libnccl-tuner-", named, ".so"))) {
    snprintf(said, NCCLT_DELEGATE_SAID_SIZE, "%s=%.200s is no tuner plugin that can be loaded", NCCLT_DELEGATE_VARIABLE,
             named);
    return 0;
  }
  if (!is_ours(found)) return 1;
  snprintf(said, NCCLT_DELEGATE_SAID_SIZE, "%s=%.200s is the plugin of ncclt itself", NCCLT_DELEGATE_VARIABLE, named);
  return 0;
}

static int lacks_members(const struct found *found) {
  if (found->api == 2) {
    const struct nccl_tuner_v2 *tuner = found->tuner;
    return !tuner->init || !tuner->get_coll_info;
  }
  /* From v3 on both are at the same places. */
  const struct nccl_tuner_v3 *tuner = found->tuner;
  return !tuner->init || !tuner->get_coll_info;
}

/* Copy the constants between versions. What the newest capability is said to reach, a missing one is said to reach. */
static void widen(struct nccl_constants_v7 *to, const struct nccl_constants_v5 *from) {
  memcpy(to->latency, from->latency, sizeof to->latency);
  for (int table = 0; table < NCCL_BANDWIDTHS; table++)
    for (int row = 0; row < NCCL_CAPABILITIES_V7; row++)
      memcpy(to->bandwidth[table][row],
             from->bandwidth[table][row < NCCL_CAPABILITIES_V5 ? row : NCCL_CAPABILITIES_V5 - 1],
             sizeof to->bandwidth[table][row]);
}

/* Leaves the fifth capability of `to` as it is. */
static void narrow_into(struct nccl_constants_v7 *to, const struct nccl_constants_v5 *from) {
  memcpy(to->latency, from->latency, sizeof to->latency);
  for (int table = 0; table < NCCL_BANDWIDTHS; table++)
    memcpy(to->bandwidth[table], from->bandwidth[table], sizeof from->bandwidth[table]);
}

static void narrow(struct nccl_constants_v5 *to, const struct nccl_constants_v7 *from) {
  memcpy(to->latency, from->latency, sizeof to->latency);
  for (int table = 0; table < NCCL_BANDWIDTHS; table++)
    memcpy(to->bandwidth[table], from->bandwidth[table], sizeof to->bandwidth[table]);
}

/* Give it copies of what NCCL says, zeros where NCCL's API has no constants: a tuner that fails must leave no trace. */
static void take_constants(struct ncclt_delegate *delegate, const struct ncclt_opening *opening) {
  if (!opening->constants) return;
  if (opening->api >= 7) {
    delegate->constants_v7 = *(const struct nccl_constants_v7 *)opening->constants;
    narrow(&delegate->constants_v5, &delegate->constants_v7);
  } else {
    delegate->constants_v5 = *(const struct nccl_constants_v5 *)opening->constants;
    widen(&delegate->constants_v7, &delegate->constants_v5);
  }
}

static void hand_constants(const struct ncclt_delegate *delegate, const struct ncclt_opening *opening) {
  if (!opening->constants || delegate->api < 5) return;
  if (opening->api >= 7 && delegate->api >= 7)
    *(struct nccl_constants_v7 *)opening->constants = delegate->constants_v7;
  else if (opening->api >= 7) narrow_into(opening->constants, &delegate->constants_v5);
  else if (delegate->api >= 7) narrow(opening->constants, &delegate->constants_v7);
  else *(struct nccl_constants_v5 *)opening->constants = delegate->constants_v5;
}

/* Call its init; returns what that returns. Before API v5 NCCL says nothing of NVLink domains: a node is taken for one. */
static int begin(struct ncclt_delegate *delegate, const struct ncclt_opening *opening) {
  int per_node = opening->nodes && opening->ranks / opening->nodes ? (int)(opening->ranks / opening->nodes) : 1;
  delegate->domain = opening->domain ? *opening->domain
                                     : (struct nccl_nvl_domain_v5){(int)opening->nodes, per_node, per_node};
  take_constants(delegate, opening);
  if (delegate->api < 5) { /* v2 to v4 have the same init at the same place */
    const struct nccl_tuner_v4 *tuner = delegate->tuner;
    return tuner->init(opening->ranks, opening->nodes, delegate->log, &delegate->context);
  }
  if (delegate->api < 7) {
    const struct nccl_tuner_v5 *tuner = delegate->tuner;
    return tuner->init(&delegate->context, opening->id, opening->ranks, opening->nodes, delegate->log,
                       &delegate->domain, &delegate->constants_v5);
  }
  const struct nccl_tuner_v7 *tuner = delegate->tuner;
  return tuner->init(&delegate->context, opening->id, opening->ranks, opening->nodes, delegate->log, &delegate->domain,
                     &delegate->constants_v7);
}

/* Open what was found; returns an error that NCCL would have seen without us. */
static int open_found(const struct found *found, const struct ncclt_opening *opening, struct ncclt_delegate **opened,
                      char *said) {
  if (lacks_members(found)) {
    snprintf(said, NCCLT_DELEGATE_SAID_SIZE, "the tuner of %.200s lacks functions of API v%d", found->path, found->api);
    return NCCL_SUCCESS;
  }
  struct ncclt_delegate *delegate = calloc(1, sizeof *delegate);
  if (!delegate) {
    snprintf(said, NCCLT_DELEGATE_SAID_SIZE, "no memory is left for the tuner of %.200s", found->path);
    return NCCL_SYSTEM_ERROR;
  }
  delegate->api = found->api;
  delegate->tuner = found->tuner;
  delegate->path = strdup(found->path);
  delegate->log = opening->log ? opening->log : say_nothing;
  snprintf(delegate->name, sizeof delegate->name, "%s", name_of(found->tuner));
  int code = begin(delegate, opening);
  if (code == NCCL_SUCCESS) {
    hand_constants(delegate, opening);
    *opened = delegate;
    return NCCL_SUCCESS;
  }
  snprintf(said, NCCLT_DELEGATE_SAID_SIZE, "the tuner %s of %.200s could not begin: error %d", delegate->name,
           found->path, code);
  free(delegate->path); /* NCCL does not close a tuner that did not begin either */
  free(delegate);
  return found->api <= opening->api ? code : NCCL_SUCCESS; /* a newer API is one that NCCL itself would not have used */
}

/* A thread that opens another tuner; it lies on that thread's stack. */
struct opener {
  pthread_t thread;
  struct opener *next;
};

static struct {
  pthread_mutex_t lock;
  struct opener *first;
} openers = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void lock_openers(void) { pthread_mutex_lock(&openers.lock); }

static void unlock_openers(void) { pthread_mutex_unlock(&openers.lock); }

/* Only the thread that forked exists in a child, and whatever number a later thread gets, it opens nothing yet. */
static void forget_openers(void) {
  openers.first = NULL;
  unlock_openers();
}

/* Forks wait for the lock, so that a child finds it free. */
__attribute__((constructor)) static void prepare_openers_for_forks(void) {
  pthread_atfork(lock_openers, unlock_openers, forget_openers);
}

/* Returns 0 where this thread is opening one already, and there is nothing to leave then. */
static int enter_opener(struct opener *opener) {
  int is_new = 1;
  opener->thread = pthread_self();
  lock_openers();
  for (const struct opener *other = openers.first; other; other = other->next)
    if (pthread_equal(other->thread, opener->thread)) is_new = 0;
  if (is_new) {
    opener->next = openers.first;
    openers.first = opener;
  }
  unlock_openers();
  return is_new;
}

static void leave_opener(const struct opener *opener) {
  lock_openers();
  for (struct opener **place = &openers.first; *place; place = &(*place)->next)
    if (*place == opener) {
      *place = opener->next;
      break;
    }
  unlock_openers();
}

int ncclt_delegate_open(const struct ncclt_opening *opening, struct ncclt_delegate **opened,
                        char said[NCCLT_DELEGATE_SAID_SIZE]) {
  struct found found = {0};
  struct opener here;
  int code = NCCL_SUCCESS;
  *opened = NULL;
  said[0] = 0;
  /* A tuner behind ours may itself open ours, and so on: the same thread would come here again. */
  if (!enter_opener(&here)) return code;
  if (find(&found, opening->api, said)) code = open_found(&found, opening, opened, said);
  leave_opener(&here);
  return code;
}

void ncclt_delegate_close(struct ncclt_delegate *delegate) {
  if (!delegate) return;
  /* v2 to v7 have it at the same place: `destroy` until v4, `finalize` since. */
  const struct nccl_tuner_v4 *tuner = delegate->tuner;
  if (tuner->destroy) tuner->destroy(delegate->context);
  free(delegate->path);
  free(delegate);
}

/* Said once: NCCL asks at every call. */
static void note_failure(struct ncclt_delegate *delegate, int code) {
  if (atomic_fetch_add_explicit(&delegate->failures, 1, memory_order_relaxed)) return;
  delegate->log(NCCL_LOG_INFO, NCCL_LOG_TUNING, __FILE__, __LINE__,
                "TUNER/ncclt: the tuner %s failed with error %d; keeping the NCCL default for such calls", delegate->name,
                code);
}

/* A tuner of API v2 names its choice; it is told what seems to be supported from what is offered. */
static int ask_old(struct ncclt_delegate *delegate, const struct ncclt_call *call, int *channels) {
  const struct nccl_tuner_v2 *tuner = delegate->tuner;
  int algorithm = -1, protocol = -1, collnet = 0, nvls = 0;
  for (int one = 0; one < call->algorithms; one++)
    for (int other = 0; other < call->protocols; other++) {
      if (!(call->costs[one * call->protocols + other] >= 0)) continue;
      collnet |= one == NCCL_COLLNET_DIRECT || one == NCCL_COLLNET_CHAIN;
      nvls |= one == NCCL_NVLS || one == NCCL_NVLS_TREE;
    }
  int wanted = *channels;
  int code = tuner->get_coll_info(delegate->context, call->function, call->bytes, collnet, nvls, call->pipe_ops,
                                  &algorithm, &protocol, &wanted);
  if (code) return code;
  int named = algorithm >= 0 && algorithm < call->algorithms && protocol >= 0 && protocol < call->protocols;
  float *cost = named ? &call->costs[algorithm * call->protocols + protocol] : NULL;
  if (cost && *cost >= 0) *cost = CHEAPEST_US;
  if (!named || (cost && *cost >= 0)) *channels = wanted;
  return NCCL_SUCCESS;
}

int ncclt_delegate_ask(struct ncclt_delegate *delegate, const struct ncclt_call *call) {
  float before[MOST_ENTRIES];
  if (!call->costs || call->algorithms <= 0 || call->protocols <= 0 ||
      call->algorithms > MOST_ENTRIES / call->protocols)
    return 0;
  size_t bytes = (size_t)call->algorithms * (size_t)call->protocols * sizeof *before;
  if (bytes == NCCL_TABLE_BYTES) memcpy(before, call->costs, NCCL_TABLE_BYTES); /* a few moves in place of a call */
  else memcpy(before, call->costs, bytes);
  int channels = call->channels ? *call->channels : 0, code;
  float **costs = (float **)(void *)call->costs;
  if (delegate->api >= 4) { /* v4 to v7 have it at the same place */
    const struct nccl_tuner_v4 *tuner = delegate->tuner;
    code = tuner->get_coll_info(delegate->context, call->function, call->bytes, call->pipe_ops, costs, call->algorithms,
                                call->protocols, call->registered, &channels);
  } else if (delegate->api == 3) {
    const struct nccl_tuner_v3 *tuner = delegate->tuner;
    code = tuner->get_coll_info(delegate->context, call->function, call->bytes, call->pipe_ops, costs, call->algorithms,
                                call->protocols, &channels);
  } else {
    code = ask_old(delegate, call, &channels);
  }
  if (code == NCCL_SUCCESS) {
    if (call->channels) *call->channels = channels;
    return 1;
  }
  memcpy(call->costs, before, bytes);
  note_failure(delegate, code);
  return 0;
}

int ncclt_delegate_ask_v2(struct ncclt_delegate *delegate, const struct ncclt_call *offered, int collnet, int nvls,
                          int *algorithm, int *protocol) {
  if (delegate->api == 2) {
    const struct nccl_tuner_v2 *tuner = delegate->tuner;
    int chosen = *algorithm, by = *protocol, channels = offered->channels ? *offered->channels : 0;
    int code = tuner->get_coll_info(delegate->context, offered->function, offered->bytes, collnet, nvls,
                                    offered->pipe_ops, &chosen, &by, &channels);
    if (code) {
      note_failure(delegate, code);
      return 0;
    }
    *algorithm = chosen, *protocol = by;
    if (offered->channels) *offered->channels = channels;
    return 1;
  }
  int count = offered->algorithms * offered->protocols, best = -1;
  float before[MOST_ENTRIES];
  if (count > MOST_ENTRIES) return 0;
  memcpy(before, offered->costs, (size_t)count * sizeof *before);
  if (!ncclt_delegate_ask(delegate, offered)) return 0;
  /* The cheapest of what was offered, if the tuner made it so. */
  for (int at = 0; at < count; at++) {
    int made = before[at] >= 0 && offered->costs[at] >= 0 && offered->costs[at] < before[at];
    if (made && (best < 0 || offered->costs[at] < offered->costs[best])) best = at;
  }
  if (best >= 0) *algorithm = best / offered->protocols, *protocol = best % offered->protocols;
  return 1;
}

int ncclt_delegate_has_chunks(const struct ncclt_delegate *delegate) {
  return delegate->api >= 6 && ((const struct nccl_tuner_v6 *)delegate->tuner)->get_chunk_size != NULL;
}

void ncclt_delegate_chunk(struct ncclt_delegate *delegate, int function, size_t bytes, int algorithm, int protocol,
                          int channels, size_t *chunk_bytes) {
  if (!chunk_bytes || !ncclt_delegate_has_chunks(delegate)) return;
  size_t chosen = *chunk_bytes;
  int code = ((const struct nccl_tuner_v6 *)delegate->tuner)
                 ->get_chunk_size(delegate->context, function, bytes, algorithm, protocol, channels, &chosen);
  if (code) note_failure(delegate, code);
  else if (chosen >= *chunk_bytes / LEAST_SHARE && chosen > 0) *chunk_bytes = chosen;
}
