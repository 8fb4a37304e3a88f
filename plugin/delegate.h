/* The tuner that ours displaces: another plugin, which answers where our table has no row.
 *
 * NCCL loads one tuner plugin. Where a network plugin brings one (EFA, GPUDirect-TCPX), or a libnccl-tuner.so lies in the
 * loader's path, NCCL would have used that one: it is part of the default that was measured. It may speak any API from
 * v2 to v7, whichever NCCL speaks. A call that it fails at is left to the NCCL default. */
#ifndef NCCLT_DELEGATE_H
#define NCCLT_DELEGATE_H

#include <stdatomic.h>
#include <stdint.h>

#include "nccl_tuner_abi.h"

/* Names the tuner as NCCL_TUNER_PLUGIN does; `none` = no other tuner is asked. Unset: the one that NCCL would find. */
#define NCCLT_DELEGATE_VARIABLE "NCCLT_DELEGATE"

enum { NCCLT_OLDEST_API = 2, NCCLT_NEWEST_API = 7, NCCLT_DELEGATE_NAME_SIZE = 65, NCCLT_DELEGATE_SAID_SIZE = 400 };

/* What NCCL says of a communicator when it opens one. */
struct ncclt_opening {
  int api;                                 /* version of the tuner API that NCCL speaks */
  uint64_t id, ranks, nodes;               /* the id is equal on all ranks; 0 before API v5 */
  nccl_logger log;                         /* NULL is allowed */
  const struct nccl_nvl_domain_v5 *domain; /* NULL before API v5 */
  void *constants;                         /* of the API's version; NULL before v5 */
  const void *caller;                      /* an address in the NCCL that opens it */
};

/* One question of NCCL. */
struct ncclt_call {
  int function;
  uint64_t bytes;
  int pipe_ops;
  float *costs; /* algorithms x protocols, row by row; entries below 0 are not offered */
  int algorithms, protocols, registered;
  int *channels; /* NULL is allowed */
};

struct ncclt_delegate {
  int api;
  char name[NCCLT_DELEGATE_NAME_SIZE];
  char *path;
  const void *tuner; /* struct nccl_tuner_vN of `api` */
  void *context;
  nccl_logger log;
  struct nccl_nvl_domain_v5 domain; /* its own copies, which last as long as it does */
  struct nccl_constants_v5 constants_v5;
  struct nccl_constants_v7 constants_v7;
  _Atomic uint64_t failures;
};

/* Open the displaced tuner for one communicator. `opened` NULL = there is none, or it cannot be used; `said` then holds
 * why, empty where nobody named one and none was found. Constants that it altered are handed to NCCL. Returns
 * NCCL_SUCCESS, or the error that NCCL would have got from it: a rank that went on without it would choose differently. */
int ncclt_delegate_open(const struct ncclt_opening *opening, struct ncclt_delegate **opened,
                        char said[NCCLT_DELEGATE_SAID_SIZE]);

/* Close it and free its memory. Its library stays mapped. NULL is allowed. */
void ncclt_delegate_close(struct ncclt_delegate *delegate);

/* Let it answer: it writes costs and channels as it likes. Returns 1, or 0 where it fails: nothing is changed then. */
int ncclt_delegate_ask(struct ncclt_delegate *delegate, const struct ncclt_call *call);

/* A cost that is not known, above all that a tuner writes. */
#define NCCLT_UNKNOWN_US 1e9f

/* The same where NCCL speaks API v2, which has no costs: those of `offered` are NCCLT_UNKNOWN_US where an entry may be
 * chosen and -1 where not; they are written to. */
int ncclt_delegate_ask_v2(struct ncclt_delegate *delegate, const struct ncclt_call *offered, int collnet, int nvls,
                          int *algorithm, int *protocol);

/* Return whether it has a say in chunks. */
int ncclt_delegate_has_chunks(const struct ncclt_delegate *delegate);

/* Let it change the chunks; one that NCCL would divide by zero with is not accepted. */
void ncclt_delegate_chunk(struct ncclt_delegate *delegate, int function, size_t bytes, int algorithm, int protocol,
                          int channels, size_t *chunk_bytes);

#endif
