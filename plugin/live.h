/* Plans that change while a job runs (NCCLT_LIVE=1; experimental, not seen on a GPU).
 *
 * The plugin counts NCCL's questions in each communicator. A switch says: from the next question on, another plan answers.
 * The hook (ncclt.deliver.agree.injected.live) arms the same switch on every rank at the end of the same optimizer step, and
 * each rank learns from one register whether it holds. The next question waits for that decision, and fails if it does not
 * come: it is never answered by a guess. docs/adr/0026 has the proof. */
#ifndef NCCLT_LIVE_H
#define NCCLT_LIVE_H

#include <stddef.h>
#include <stdint.h>

#include "state.h"

enum {
  NCCLT_LIVE_SIZES = 1024, /* (collective, size) pairs that a plan can have rows for */
  NCCLT_LIVE_MARK = 64,   /* ranks that are not at the same question compare their hashes at multiples of it */
};

/* Return the state of a new communicator, NULL with a reason where its plan cannot change. `wanted` = NCCLT_LIVE is set. */
struct ncclt_live *ncclt_live_open(const struct ncclt_communicator *communicator, int *wanted,
                                   char reason[NCCLT_REASON_SIZE]);
void ncclt_live_close(struct ncclt_live *live);

/* Count a question, and find the plan's choice: 1 = `choice` is filled in and offered, 0 = the NCCL default, -1 = this
 * question must fail. */
int ncclt_live_find(struct ncclt_communicator *communicator, const struct ncclt_call *call,
                    struct ncclt_choice *choice);

/* What all ranks must have armed alike: the question from which on the plan counts, the hash of all before it, and the
 * checksum of the plan's rows. */
struct ncclt_live_armed {
  uint64_t begins, hash, checksum;
};

/* For the hook, found by dlsym.
 *
 * `describe` writes a line of words `name=value` per open communicator: id, ranks, nodes, count, mark (hash of all
 * questions up to the last multiple of 64), hash (of all), captured (a question came while a CUDA graph was captured),
 * registered (one came with registered buffers), busy (a question is being answered; the hashes then mean nothing), begins and state (of the last switch: undecided,
 * committed, aborted or failed), problem (why its plan cannot change; the rest of the line). Returns the length, -1 where
 * `size` is too small.
 *
 * `arm` prepares a switch of one communicator to a compact table (empty = the NCCL default). Rows count for the sizes and
 * choices that NCCL has offered in it, with `connected_only` for algorithms that it has used. Returns 0, or -1 with a
 * sentence in `reason`; the plan in force then stays, whatever is decided.
 *
 * `decide` commits (1) or aborts (0) a proposal in all communicators that have it armed. */
int ncclt_live_describe(char *text, size_t size);
int ncclt_live_arm(uint64_t proposal, uint64_t id, const char *table, int connected_only, double wait_s,
                   struct ncclt_live_armed *armed, char reason[NCCLT_REASON_SIZE]);
void ncclt_live_decide(uint64_t proposal, int commit);

/* Between 1 and 0, questions of this thread are estimates of this rank alone: neither counted nor hashed. One thread at a
 * time; the hook holds a lock. */
void ncclt_live_estimate(int on);

/* Between 1 and 0, questions of this process go into a CUDA graph. */
void ncclt_live_capture(int on);

#endif
