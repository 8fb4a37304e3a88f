/* The report: the decisions in one communicator of one process, as JSON lines. Fields: docs/internals/tuner-plugin.md,
 * "The report". */
#ifndef NCCLT_REPORT_H
#define NCCLT_REPORT_H

#include "state.h"

enum { NCCLT_REPORT_FORMAT = 1 };

/* Write the report file as a whole, or not at all. Returns 0, or -1 where that is not possible.
 * `finished`: NCCL closed the communicator; otherwise the process ends with it open. */
int ncclt_report_write(const struct ncclt_communicator *communicator, int finished);

#endif
