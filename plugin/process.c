#include "process.h"

#include <pthread.h>
#include <unistd.h>

#include "report.h"

static struct {
  pthread_mutex_t lock;
  int count;
  struct ncclt_communicator *open;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

void ncclt_process_lock(void) { pthread_mutex_lock(&process.lock); }

void ncclt_process_unlock(void) { pthread_mutex_unlock(&process.lock); }

int ncclt_process_add(struct ncclt_communicator *communicator) {
  ncclt_process_lock();
  int number = communicator->number = process.count++;
  communicator->next = process.open;
  if (process.open) process.open->previous = communicator;
  process.open = communicator;
  ncclt_process_unlock();
  return number;
}

void ncclt_process_remove(struct ncclt_communicator *communicator) {
  ncclt_process_lock();
  if (communicator->previous) communicator->previous->next = communicator->next;
  else process.open = communicator->next;
  if (communicator->next) communicator->next->previous = communicator->previous;
  ncclt_process_unlock();
}

struct ncclt_communicator *ncclt_process_open(void) { return process.open; }

__attribute__((constructor)) static void prepare_for_forks(void) {
  pthread_atfork(ncclt_process_lock, ncclt_process_unlock, ncclt_process_unlock);
}

/* Many jobs end without closing their communicators. Nothing is freed here: other threads may still be in a call. A
 * child that was forked with open communicators must not report its parent's calls again. */
__attribute__((destructor)) static void report_what_is_open(void) {
  long here = (long)getpid();
  ncclt_process_lock();
  for (struct ncclt_communicator *one = process.open; one; one = one->next)
    if (one->decisions && one->process == here) ncclt_report_write(one, 0);
  ncclt_process_unlock();
}
