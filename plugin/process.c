#include "process.h"

#include <unistd.h>

#include "communicator.h"
#include "report.h"

static struct {
  pthread_mutex_t lock;
  int count;
  struct ncclt_communicator *open;
  struct ncclt_opener *openers;
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

int ncclt_opener_enter(struct ncclt_opener *opener) {
  int is_new = 1;
  opener->thread = pthread_self();
  ncclt_process_lock();
  for (const struct ncclt_opener *one = process.openers; one; one = one->next)
    if (pthread_equal(one->thread, opener->thread)) is_new = 0;
  if (is_new) {
    opener->next = process.openers;
    process.openers = opener;
  }
  ncclt_process_unlock();
  return is_new;
}

void ncclt_opener_leave(struct ncclt_opener *opener) {
  ncclt_process_lock();
  for (struct ncclt_opener **one = &process.openers; *one; one = &(*one)->next)
    if (*one == opener) {
      *one = opener->next;
      break;
    }
  ncclt_process_unlock();
}

/* Only the thread that forked exists in a child, and whatever number a later thread gets, it opens nothing yet. */
static void free_lock_in_child(void) {
  process.openers = NULL;
  ncclt_process_unlock();
}

__attribute__((constructor)) static void prepare_for_forks(void) {
  pthread_atfork(ncclt_process_lock, ncclt_process_unlock, free_lock_in_child);
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
