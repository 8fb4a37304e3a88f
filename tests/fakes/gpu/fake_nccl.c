/* An NCCL without a GPU: real sums over host memory, one thread per rank, and a tuner plugin asked as NCCL 2.28
 * (API v5) or 2.30 (v6) asks it. It knows what bench/gpu relies on: a copy of the library has statics of its own, so a host's
 * hash is fixed by the copy's first communicator; two ranks of one host on one GPU are refused; NCCL_BUFFSIZE is read
 * once per copy; the number of channels that a tuner asks for is cut to the communicator's. The time of a call is a
 * made-up formula on the streams' clocks (see time_us), in which the default is wrong between 1 and 64 MiB.
 *
 * FAKE_NCCL_FAULT: `hang:BYTES` a call of that size never ends, `wrong:BYTES` one element comes out wrong on rank 0,
 * `tree:BYTES` likewise, but only over the tree, `crash:BYTES` the process dies, `error:BYTES` the call fails on every
 * rank. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_gpu.h"
#include "nccl_tuner_abi.h"

#ifndef FAKE_VERSION
#define FAKE_VERSION 22809
#endif

enum { MOST_RANKS = 16, COMM_CHANNELS = 8, OK = 0, SYSTEM = 2, INTERNAL = 3, ARGUMENT = 4, USAGE = 5 };

/* Where the ranks of one communicator meet; the id carries its address, as all ranks live in one process. */
struct meeting {
  int ranks, arrived;
  uint64_t hosts[MOST_RANKS];
  const char *send[MOST_RANKS];
  char *receive[MOST_RANKS];
  struct fake_stream *streams[MOST_RANKS];
  struct { int algorithm, protocol, channels; } choices[MOST_RANKS];
  pthread_mutex_t lock;
  pthread_cond_t turned;
  unsigned turn;
};

struct comm {
  struct meeting *meeting;
  int rank, ranks, nodes;
  long buffsize;
  void *tuner;
};

typedef struct { char internal[128]; } unique_id;

static uint64_t host_hash; /* of this copy: 0 = not read yet */
static long buffsize;
static FILE *log_file;
static int log_level = -1, log_tuning;
static const struct nccl_tuner_v5 *plugin_v5;
static const struct nccl_tuner_v6 *plugin_v6;
static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;

static void say(const char *text) {
  if (log_level < 1) return;
  char host[64] = "";
  gethostname(host, sizeof host - 1);
  fprintf(log_file, "%s:%d:%d [0] NCCL INFO %s\n", host, (int)getpid(), (int)gettid(), text);
  fflush(log_file);
}

static void logger(int level, unsigned long subsystems, const char *file, int line, const char *format, ...) {
  (void)level, (void)subsystems, (void)file, (void)line;
  char text[2048];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  say(text);
}

static uint64_t hashed(const char *text) {
  uint64_t value = 5381;
  while (*text) value = value * 33 ^ (unsigned char)*text++;
  return value ? value : 1;
}

/* What NCCL reads once per library. */
static void begin(void) {
  pthread_mutex_lock(&once);
  if (log_level < 0) {
    const char *debug = getenv("NCCL_DEBUG"), *path = getenv("NCCL_DEBUG_FILE"), *parts = getenv("NCCL_DEBUG_SUBSYS");
    log_level = debug && !strcmp(debug, "INFO");
    log_tuning = parts && strstr(parts, "TUNING");
    log_file = path && *path ? fopen(path, "w") : stdout;
    if (!log_file) log_file = stdout;
    char text[64];
    snprintf(text, sizeof text, "NCCL version %d.%d.%d+cuda12.9", FAKE_VERSION / 10000, FAKE_VERSION / 100 % 100,
             FAKE_VERSION % 100);
    say(text);
  }
  if (!host_hash) {
    const char *id = getenv("NCCL_HOSTID"), *bytes = getenv("NCCL_BUFFSIZE");
    host_hash = hashed(id && *id ? id : "the host's own name");
    buffsize = bytes && *bytes ? atol(bytes) : 4194304;
    const char *path = getenv("NCCL_TUNER_PLUGIN");
    void *library = path && *path && strcmp(path, "none") ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    char text[512];
    if (path && *path && !library) {
      snprintf(text, sizeof text, "TUNER/Plugin: Could not find: %s.", path);
      say(text);
    }
    if (library && FAKE_VERSION >= 23003) plugin_v6 = dlsym(library, "ncclTunerPlugin_v6");
    else if (library) plugin_v5 = dlsym(library, "ncclTunerPlugin_v5");
    if (plugin_v5 || plugin_v6) {
      snprintf(text, sizeof text, "TUNER/Plugin: Using %s (v%d)", plugin_v6 ? plugin_v6->name : plugin_v5->name,
               plugin_v6 ? 6 : 5);
      say(text);
    }
  }
  pthread_mutex_unlock(&once);
}

static void meet(struct meeting *meeting) {
  pthread_mutex_lock(&meeting->lock);
  unsigned turn = meeting->turn;
  if (++meeting->arrived == meeting->ranks) {
    meeting->arrived = 0;
    meeting->turn++;
    pthread_cond_broadcast(&meeting->turned);
  } else {
    while (turn == meeting->turn) pthread_cond_wait(&meeting->turned, &meeting->lock);
  }
  pthread_mutex_unlock(&meeting->lock);
}

int ncclGetVersion(int *version) { return *version = FAKE_VERSION, OK; }
const char *ncclGetErrorString(int code) { return code == USAGE ? "invalid usage" : code ? "an error" : "no error"; }
const char *ncclGetLastError(void *comm) { return (void)comm, "made up by the stand-in"; }

int ncclGetUniqueId(unique_id *id) {
  begin();
  struct meeting *made = calloc(1, sizeof *made);
  pthread_mutex_init(&made->lock, NULL);
  pthread_cond_init(&made->turned, NULL);
  memset(id, 0, sizeof *id);
  memcpy(id->internal, &made, sizeof made);
  return OK;
}

static void say_init(const struct comm *comm, const char *state) {
  char text[256];
  snprintf(text, sizeof text,
           "ncclCommInitRank comm %p rank %d nranks %d cudaDev 0 nvmlDev 0 busId 1000 commId 0x%lx - Init %s",
           (const void *)comm, comm->rank, comm->ranks, (unsigned long)comm->meeting, state);
  say(text);
}

int ncclCommInitRank(struct comm **made, int ranks, unique_id id, int rank) {
  begin();
  if (rank < 0 || rank >= ranks || ranks > MOST_RANKS) return ARGUMENT;
  struct comm *comm = calloc(1, sizeof *comm);
  memcpy(&comm->meeting, id.internal, sizeof comm->meeting);
  struct meeting *meeting = comm->meeting;
  comm->rank = rank, comm->ranks = meeting->ranks = ranks, comm->buffsize = buffsize;
  meeting->hosts[rank] = host_hash;
  say_init(comm, "START");
  meet(meeting);
  int alike = 0;
  for (int one = 0; one < ranks; one++) {
    int first = 1;
    for (int other = 0; other < one; other++) first = first && meeting->hosts[other] != meeting->hosts[one];
    comm->nodes += first;
    alike = alike || !first;
  }
  const char *allowed = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (alike && !(FAKE_VERSION >= 23003 && allowed && atoi(allowed))) {
    fprintf(log_file,
            "\n[2026-01-01 00:00:00] host:%d:1 [0] init.cc:903 NCCL WARN Duplicate GPU detected : rank %d and "
            "another rank both on CUDA device 1000\n", (int)getpid(), rank);
    fflush(log_file);
    meet(meeting);
    return USAGE;
  }
  char text[256];
  snprintf(text, sizeof text,
           "%d coll channels, 0 collnet channels, 0 nvls channels, %d p2p channels, 2 p2p channels per peer",
           COMM_CHANNELS, COMM_CHANNELS);
  say(text);
  uint64_t id_number = (uint64_t)(uintptr_t)meeting;
  size_t nodes = (size_t)comm->nodes;
  int code = OK;
  if (plugin_v5) code = plugin_v5->init(&comm->tuner, id_number, (size_t)ranks, nodes, logger, NULL, NULL);
  if (plugin_v6) code = plugin_v6->init(&comm->tuner, id_number, (size_t)ranks, nodes, logger, NULL, NULL);
  meet(meeting);
  *made = comm;
  say_init(comm, "COMPLETE");
  return code;
}

int ncclCommDestroy(struct comm *comm) {
  int code = OK;
  if (plugin_v5) code = plugin_v5->finalize(comm->tuner);
  if (plugin_v6) code = plugin_v6->finalize(comm->tuner);
  free(comm);
  return code;
}
int ncclCommAbort(struct comm *comm) { return (void)comm, OK; }
int ncclCommGetAsyncError(struct comm *comm, int *error) { return (void)comm, *error = OK, OK; }

/* What NCCL's model says: a tree over LL below 256 KiB, a ring over Simple above; LL128 and others are not offered. */
static void fill_costs(int function, size_t bytes, float *costs) {
  for (int i = 0; i < NCCL_ALGORITHMS * NCCL_PROTOCOLS; i++) costs[i] = -1;
  float size = (float)bytes / 1e4f;
  costs[NCCL_RING * 3 + NCCL_LL] = 12 + 2 * size;
  costs[NCCL_RING * 3 + NCCL_SIMPLE] = 40 + size;
  if (function != NCCL_ALL_REDUCE) return;
  costs[NCCL_TREE * 3 + NCCL_LL] = 10 + 2 * size;
  costs[NCCL_TREE * 3 + NCCL_SIMPLE] = 42 + size;
}

/* What a call really takes here, µs: between 1 and 64 MiB the tree beats the ring that NCCL would choose. */
static double time_us(int algorithm, int protocol, int channels, size_t bytes, long buffer) {
  double base = algorithm == NCCL_TREE ? 20 : 25, per_byte = protocol == NCCL_LL ? 8e-4 : 4e-4;
  if (algorithm == NCCL_TREE && protocol == NCCL_SIMPLE && bytes >= 1 << 20 && bytes <= 64 << 20) per_byte *= 0.7;
  if (protocol == NCCL_SIMPLE) base += 20;
  double spread = channels < 4 ? 4.0 / channels : 1;
  if (buffer > 4194304) per_byte *= 0.95;
  return base + per_byte * (double)bytes * spread;
}

static unsigned noise_state = 12345;

static double noisy(double time) { /* 0.5 % up or down, equal in every run */
  noise_state = noise_state * 1103515245u + 12345u;
  return time * (1 + ((int)(noise_state >> 16 & 1023) - 512) / 512.0 * 0.005);
}

/* float16 of the whole numbers from 0 to 2048, which are exact in it; older compilers have no type for it. */
static uint16_t half_of(double value) {
  if (value < 1) return 0;
  int exponent = 0;
  while (value >= 2) value /= 2, exponent++;
  return (uint16_t)((exponent + 15) << 10 | (int)((value - 1) * 1024));
}

static double of_half(uint16_t bits) {
  if (!bits) return 0;
  double value = 1 + (bits & 1023) / 1024.0;
  for (int exponent = (bits >> 10) - 15; exponent > 0; exponent--) value *= 2;
  return value;
}

static double value_of(const void *at, int dtype) {
  uint32_t bits;
  float wide;
  switch (dtype) {
    case 0: return *(const int8_t *)at;
    case 1: return *(const uint8_t *)at;
    case 2: return *(const int32_t *)at;
    case 3: return *(const uint32_t *)at;
    case 4: return (double)*(const int64_t *)at;
    case 5: return (double)*(const uint64_t *)at;
    case 6: return of_half(*(const uint16_t *)at);
    case 7: return *(const float *)at;
    case 8: return *(const double *)at;
    default: return bits = (uint32_t)*(const uint16_t *)at << 16, memcpy(&wide, &bits, 4), wide; /* bfloat16 */
  }
}

static void put(void *at, int dtype, double value) {
  float wide = (float)value;
  uint32_t bits;
  switch (dtype) {
    case 0: *(int8_t *)at = (int8_t)value; return;
    case 1: *(uint8_t *)at = (uint8_t)value; return;
    case 2: *(int32_t *)at = (int32_t)value; return;
    case 3: *(uint32_t *)at = (uint32_t)value; return;
    case 4: *(int64_t *)at = (int64_t)value; return;
    case 5: *(uint64_t *)at = (uint64_t)value; return;
    case 6: *(uint16_t *)at = half_of(value); return;
    case 7: *(float *)at = wide; return;
    case 8: *(double *)at = value; return;
    default: memcpy(&bits, &wide, 4), *(uint16_t *)at = (uint16_t)(bits >> 16);
  }
}

static const size_t SIZES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
static const char *const NAMES[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"};
static const char *const ALGORITHMS[] = {"TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
static const char *const PROTOCOLS[] = {"LL", "LL128", "SIMPLE"};

static size_t fault(const char *kind) {
  const char *told = getenv("FAKE_NCCL_FAULT");
  size_t length = strlen(kind);
  return told && !strncmp(told, kind, length) && told[length] == ':' ? strtoull(told + length + 1, NULL, 10) : 0;
}

static int choose(struct comm *comm, int function, size_t bytes, int *algorithm, int *protocol, int *channels) {
  float costs[NCCL_ALGORITHMS * NCCL_PROTOCOLS];
  fill_costs(function, bytes, costs);
  int asked = 0, code = OK, best = -1;
  const int rows = NCCL_ALGORITHMS, columns = NCCL_PROTOCOLS;
  float **table = (float **)(void *)costs;
  if (plugin_v5) code = plugin_v5->get_coll_info(comm->tuner, function, bytes, 1, table, rows, columns, 0, &asked);
  if (plugin_v6) code = plugin_v6->get_coll_info(comm->tuner, function, bytes, 1, table, rows, columns, 0, &asked);
  if (code) return code;
  for (int i = 0; i < NCCL_ALGORITHMS * NCCL_PROTOCOLS; i++)
    if (costs[i] >= 0 && (best < 0 || costs[i] < costs[best])) best = i;
  if (best < 0) return INTERNAL;
  *algorithm = best / NCCL_PROTOCOLS, *protocol = best % NCCL_PROTOCOLS;
  int most = asked && asked < COMM_CHANNELS ? asked : COMM_CHANNELS;
  size_t cells = (bytes + 32767) / 32768; /* at least 32 KiB for each channel */
  *channels = cells < (size_t)most ? (int)(cells ? cells : 1) : most;
  return OK;
}

/* Rank 0 computes for all: none of them may touch its buffers before everybody has met twice. */
static void compute(struct meeting *meeting, int function, size_t count, int dtype, int root) {
  size_t width = SIZES[dtype];
  int parted = function == NCCL_ALL_GATHER || function == NCCL_REDUCE_SCATTER;
  size_t total = parted ? count * (size_t)meeting->ranks : count;
  for (size_t i = 0; i < total; i++) {
    double sum = 0;
    if (function == NCCL_ALL_REDUCE || function == NCCL_REDUCE || function == NCCL_REDUCE_SCATTER)
      for (int rank = 0; rank < meeting->ranks; rank++) sum += value_of(meeting->send[rank] + i * width, dtype);
    if (function == NCCL_BROADCAST) sum = value_of(meeting->send[root] + i * width, dtype);
    if (function == NCCL_ALL_GATHER) sum = value_of(meeting->send[i / count] + i % count * width, dtype);
    if (function == NCCL_REDUCE_SCATTER) put(meeting->receive[i / count] + i % count * width, dtype, sum);
    else if (function == NCCL_REDUCE) put(meeting->receive[root] + i * width, dtype, sum);
    else
      for (int rank = 0; rank < meeting->ranks; rank++) put(meeting->receive[rank] + i * width, dtype, sum);
  }
}

static int collective(struct comm *comm, int function, const void *send, void *receive, size_t count, int dtype,
                      int root, struct fake_stream *stream) {
  if (dtype < 0 || dtype > 9) return ARGUMENT;
  struct meeting *meeting = comm->meeting;
  size_t own = count * SIZES[dtype];
  size_t bytes = function == NCCL_ALL_GATHER || function == NCCL_REDUCE_SCATTER ? own * (size_t)comm->ranks : own;
  if (fault("crash") == bytes) abort();
  if (fault("error") == bytes) return SYSTEM;
  int algorithm, protocol, channels, code = choose(comm, function, bytes, &algorithm, &protocol, &channels);
  if (code) return code;
  if (comm->rank == 0 && comm->ranks > 1 && log_tuning) {
    char text[256];
    snprintf(text, sizeof text, "%s: %zu Bytes -> Algo %s proto %s channel{Lo..Hi}={0..%d}", NAMES[function], own,
             ALGORITHMS[algorithm], PROTOCOLS[protocol], channels - 1);
    say(text);
  }
  meeting->send[comm->rank] = send, meeting->receive[comm->rank] = receive, meeting->streams[comm->rank] = stream;
  meeting->choices[comm->rank].algorithm = algorithm, meeting->choices[comm->rank].protocol = protocol;
  meeting->choices[comm->rank].channels = channels;
  if (fault("hang") == bytes) return stream->hung = 1, OK;
  meet(meeting);
  /* Ranks that disagree would hang: the stand-in says so at once. */
  if (memcmp(&meeting->choices[0], &meeting->choices[comm->rank], sizeof meeting->choices[0])) abort();
  if (comm->rank == 0) {
    compute(meeting, function, count, dtype, root);
    if (fault("wrong") == bytes || (fault("tree") == bytes && algorithm == NCCL_TREE)) put(receive, dtype, 99);
    double end = 0;
    for (int rank = 0; rank < comm->ranks; rank++)
      if (meeting->streams[rank]->now_us > end) end = meeting->streams[rank]->now_us;
    end += noisy(time_us(algorithm, protocol, channels, bytes, comm->buffsize));
    for (int rank = 0; rank < comm->ranks; rank++) meeting->streams[rank]->now_us = end;
  }
  meet(meeting);
  return OK;
}

int ncclAllReduce(const void *send, void *receive, size_t count, int dtype, int op, struct comm *comm, void *stream) {
  return op ? ARGUMENT : collective(comm, NCCL_ALL_REDUCE, send, receive, count, dtype, 0, stream);
}
int ncclReduceScatter(const void *send, void *receive, size_t count, int dtype, int op, struct comm *comm,
                      void *stream) {
  return op ? ARGUMENT : collective(comm, NCCL_REDUCE_SCATTER, send, receive, count, dtype, 0, stream);
}
int ncclAllGather(const void *send, void *receive, size_t count, int dtype, struct comm *comm, void *stream) {
  return collective(comm, NCCL_ALL_GATHER, send, receive, count, dtype, 0, stream);
}
int ncclBroadcast(const void *send, void *receive, size_t count, int dtype, int root, struct comm *comm, void *stream) {
  return collective(comm, NCCL_BROADCAST, send, receive, count, dtype, root, stream);
}
int ncclReduce(const void *send, void *receive, size_t count, int dtype, int op, int root, struct comm *comm,
               void *stream) {
  return op ? ARGUMENT : collective(comm, NCCL_REDUCE, send, receive, count, dtype, root, stream);
}
