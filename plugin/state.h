/* What the plugin knows of one communicator: data alone, which every other part may read. */
#ifndef NCCLT_STATE_H
#define NCCLT_STATE_H

#include <stdint.h>

#include "decisions.h"
#include "delegate.h"
#include "nccl_tuner_abi.h"
#include "shared.h"
#include "table.h"
#include "warn.h"

/* Questions, switches and sizes of one communicator (live.c). */
struct ncclt_live;

/* Whether the table answers; settled when NCCL asks first, so that no communicator changes its choices. Only in a live one
 * they change, at a question on which all ranks agree. */
enum ncclt_use { NCCLT_UNSETTLED, NCCLT_USED, NCCLT_UNUSED, NCCLT_FAILS, NCCLT_LIVE };

struct ncclt_communicator {
  int api;              /* version of the tuner API that NCCL speaks */
  uint64_t id;          /* equal on all ranks; 0 before API v5 */
  uint64_t ranks, nodes;
  int nccl_version;     /* 22809 = 2.28.9; 0 where the process has no ncclGetVersion that can be seen */
  int number;           /* in this process, from 0 */
  long process;
  uint64_t started_ns;  /* since 1970 */
  char *policy;         /* path of the table, or the variable that holds it; NULL = none was named */
  nccl_logger log;      /* NULL is allowed */
  char reason[NCCLT_REASON_SIZE]; /* why its table cannot be used; empty = it can */
  int agreement;        /* what NCCLT_AGREEMENT said when it opened */
  _Atomic int use;      /* enum ncclt_use */
  struct ncclt_table table;
  const struct ncclt_shared *shared; /* in place of the table, where a controller switches */
  _Atomic uint64_t checked;          /* generation of it that was found whole */
  struct ncclt_live *live;           /* in place of the table, where plans change; NULL = they do not */
  char live_reason[NCCLT_REASON_SIZE]; /* why not, where NCCLT_LIVE wants it; else empty */
  struct ncclt_delegate *delegate;   /* the tuner for what no row decides; NULL = NCCL itself */
  char delegate_reason[NCCLT_DELEGATE_SAID_SIZE]; /* why there is none, where one was to be; else empty */
  struct ncclt_decisions *decisions; /* NULL where nobody asked for a report */
  _Atomic uint64_t delegated;        /* counted calls that the other tuner answered */
  char *report_folder;
  struct ncclt_communicator *previous, *next; /* the open communicators of this process */
};

#endif
