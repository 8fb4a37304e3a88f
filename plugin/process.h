/* What the plugin keeps for the whole process: the open communicators, and the decision of the job's ranks. */
#ifndef NCCLT_PROCESS_H
#define NCCLT_PROCESS_H

#include "state.h"

/* The lock is held for a few instructions while communicators open and close, and by the report at exit. No call waits
 * for it. Forks wait for it, so that a child finds it free. */
void ncclt_process_lock(void);
void ncclt_process_unlock(void);

/* Add a communicator to the list of open ones and return its number, from 0; remove it again. */
int ncclt_process_add(struct ncclt_communicator *communicator);
void ncclt_process_remove(struct ncclt_communicator *communicator);

/* Return the first open communicator, with the process locked. */
struct ncclt_communicator *ncclt_process_open(void);

#endif
