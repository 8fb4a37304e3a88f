/* Sentences for the user: reasons, and warnings in NCCL's log. */
#ifndef NCCLT_WARN_H
#define NCCLT_WARN_H

#include "nccl_tuner_abi.h"

enum { NCCLT_REASON_SIZE = 200 };

/* Write a line at level WARN to NCCL's log. `log` NULL is allowed. */
void ncclt_warn(nccl_logger log, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
