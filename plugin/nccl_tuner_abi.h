/* What NCCL expects of a tuner plugin, tuner API v2 (NCCL 2.21.5) to v7 (2.32.6).
 *
 * Written for ncclt; no header of NCCL is needed to build the plugin. The size and order of the members are the binary
 * interface: tests/unit/test_nccl_versions.py compares them with the debug information of NCCL's own builds, v2 to v6.
 * v7 follows NCCL's source; no build of it has been read or tried yet. */
#ifndef NCCLT_NCCL_TUNER_ABI_H
#define NCCLT_NCCL_TUNER_ABI_H

#include <stddef.h>
#include <stdint.h>

enum { NCCL_SUCCESS = 0, NCCL_SYSTEM_ERROR = 2, NCCL_INVALID_USAGE = 5 }; /* ncclResult_t */

enum { NCCL_BROADCAST, NCCL_REDUCE, NCCL_ALL_GATHER, NCCL_REDUCE_SCATTER, NCCL_ALL_REDUCE, NCCL_FUNCTIONS };

enum {
  NCCL_TREE,
  NCCL_RING,
  NCCL_COLLNET_DIRECT,
  NCCL_COLLNET_CHAIN,
  NCCL_NVLS,
  NCCL_NVLS_TREE,
  NCCL_PAT, /* since 2.23 */
  NCCL_ALGORITHMS
};

enum { NCCL_LL, NCCL_LL128, NCCL_SIMPLE, NCCL_PROTOCOLS };

enum { NCCL_LOG_WARN = 2, NCCL_LOG_INFO = 3 };              /* ncclDebugLogLevel */
enum { NCCL_LOG_INIT = 0x01, NCCL_LOG_TUNING = 0x40 };      /* ncclDebugLogSubSys */
#define NCCL_LOG_ALL (~0ul)

typedef void (*nccl_logger)(int level, unsigned long subsystems, const char *file, int line, const char *format, ...);

/* API v6 has the same under other names. */
struct nccl_nvl_domain_v5 {
  int domains, min_ranks_per_domain, max_ranks_per_domain;
};

enum { NCCL_LATENCIES = 7 * 3 + 3 * 7 * 3, NCCL_BANDWIDTHS = 5, NCCL_CAPABILITIES_V5 = 4, NCCL_CAPABILITIES_V7 = 5 };

/* NCCL's cost model, which a plugin may alter: latencies, then five bandwidths by compute capability and number of nodes
 * or protocol. Ours never alters it, but the tuner behind it may. API v6 has the same under other names. */
struct nccl_constants_v5 {
  double latency[NCCL_LATENCIES];
  double bandwidth[NCCL_BANDWIDTHS][NCCL_CAPABILITIES_V5][3];
};

struct nccl_constants_v7 {
  double latency[NCCL_LATENCIES];
  double bandwidth[NCCL_BANDWIDTHS][NCCL_CAPABILITIES_V7][3];
};

/* The cost table is declared `float **` by NCCL and is really one contiguous block of algorithms x protocols floats. */
struct nccl_tuner_v2 {
  const char *name;
  int (*init)(size_t ranks, size_t nodes, nccl_logger log, void **context);
  int (*get_coll_info)(void *context, int function, size_t bytes, int collnet, int nvls, int pipe_ops, int *algorithm,
                       int *protocol, int *channels);
  int (*destroy)(void *context);
};

struct nccl_tuner_v3 {
  const char *name;
  int (*init)(size_t ranks, size_t nodes, nccl_logger log, void **context);
  int (*get_coll_info)(void *context, int function, size_t bytes, int pipe_ops, float **costs, int algorithms,
                       int protocols, int *channels);
  int (*destroy)(void *context);
};

struct nccl_tuner_v4 {
  const char *name;
  int (*init)(size_t ranks, size_t nodes, nccl_logger log, void **context);
  int (*get_coll_info)(void *context, int function, size_t bytes, int pipe_ops, float **costs, int algorithms,
                       int protocols, int registered, int *channels);
  int (*destroy)(void *context);
};

struct nccl_tuner_v5 {
  const char *name;
  int (*init)(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger log,
              struct nccl_nvl_domain_v5 *domain, struct nccl_constants_v5 *constants);
  int (*get_coll_info)(void *context, int function, size_t bytes, int pipe_ops, float **costs, int algorithms,
                       int protocols, int registered, int *channels);
  int (*finalize)(void *context);
};

struct nccl_tuner_v6 {
  const char *name;
  int (*init)(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger log,
              struct nccl_nvl_domain_v5 *domain, struct nccl_constants_v5 *constants);
  int (*get_coll_info)(void *context, int function, size_t bytes, int pipe_ops, float **costs, int algorithms,
                       int protocols, int registered, int *channels);
  int (*finalize)(void *context);
  int (*get_chunk_size)(void *context, int function, size_t bytes, int algorithm, int protocol, int channels,
                        size_t *chunk_bytes); /* may be NULL */
};

/* As v6, but for one more compute capability in the constants. */
struct nccl_tuner_v7 {
  const char *name;
  int (*init)(void **context, uint64_t communicator, size_t ranks, size_t nodes, nccl_logger log,
              struct nccl_nvl_domain_v5 *domain, struct nccl_constants_v7 *constants);
  int (*get_coll_info)(void *context, int function, size_t bytes, int pipe_ops, float **costs, int algorithms,
                       int protocols, int registered, int *channels);
  int (*finalize)(void *context);
  int (*get_chunk_size)(void *context, int function, size_t bytes, int algorithm, int protocol, int channels,
                        size_t *chunk_bytes); /* may be NULL */
};

#endif
