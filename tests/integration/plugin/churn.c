/* Many threads open, ask and close communicators, while the process forks and ends. Usage: churn FOLDER ROUNDS.
 *
 * Each round: 16 threads hold 200 communicators between them, the main thread forks children that exit (with
 * -DCHILDREN_OPEN they open one of their own before), and at last it exits itself while the threads go on. A child must never wait for a lock that another thread
 * of its parent held. */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "played.h"

enum { THREADS = 16, COMMUNICATORS = 200, CHILDREN = 20, PATIENCE_S = 20 };

static _Atomic int opened;

static struct played open_one(void) {
  struct nccl_nvl_domain_v5 domain = {2, 8, 8};
  double constants[159] = {0};
  return open_with(5, constants, &domain);
}

static void ask_one(struct played played, size_t bytes) {
  float costs[NCCL_ALGORITHMS * NCCL_PROTOCOLS];
  int channels = 0;
  for (int i = 0; i < NCCL_ALGORITHMS * NCCL_PROTOCOLS; i++) costs[i] = (float)(10 + i);
  CHECK(ask_with(played, NCCL_ALL_REDUCE, bytes, costs, NCCL_ALGORITHMS, NCCL_PROTOCOLS, 0, &channels) == 0);
  CHECK(costs[NCCL_TREE] < 1 && channels == 2);
}

static void *churn(void *argument) {
  struct played held[COMMUNICATORS / THREADS + 1];
  int mine = COMMUNICATORS / THREADS + (*(int *)argument < COMMUNICATORS % THREADS);
  for (int turn = 0;; turn++) { /* until the process ends */
    for (int i = 0; i < mine; i++) held[i] = open_one();
    __atomic_add_fetch(&opened, mine, __ATOMIC_RELAXED);
    for (int i = 0; i < mine; i++) ask_one(held[i], (size_t)(turn + i) % 65536);
    for (int i = 0; i < mine; i++) close_communicator(held[i]);
  }
  return NULL;
}

static void have_child(void) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(PATIENCE_S); /* a lock that nobody frees */
#ifdef CHILDREN_OPEN /* the sanitizers' own locks, of memory and dlopen, hang in children of threads */
    ask_one(open_one(), 8);
#endif
    exit(0); /* with communicators open, and with exit handlers */
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void run_round(void) {
  static int numbers[THREADS];
  pthread_t thread;
  for (int i = 0; i < THREADS; i++) {
    numbers[i] = i;
    CHECK(pthread_create(&thread, NULL, churn, &numbers[i]) == 0);
  }
  while (__atomic_load_n(&opened, __ATOMIC_RELAXED) < COMMUNICATORS) nanosleep(&(struct timespec){0, 1000000}, NULL);
#ifndef __SANITIZE_THREAD__ /* its own locks hang in children of threads (gcc 12) */
  for (int i = 0; i < CHILDREN; i++) have_child();
#else
  (void)have_child;
  nanosleep(&(struct timespec){0, 500000000}, NULL);
#endif
  exit(0); /* while all threads open and close */
}

int main(int count, char **arguments) {
  if (count != 3) return 2;
  char path[4096];
  snprintf(path, sizeof path, "%s/table.csv", arguments[1]);
  FILE *table = fopen(path, "w");
  CHECK(table && fputs("allreduce,0,65536,tree,ll,2,-1,-1\n", table) >= 0 && fclose(table) == 0);
  setenv("NCCLT_POLICY", path, 1);
  setenv("NCCLT_DELEGATE", "none", 1);
  for (int round = atoi(arguments[2]); round > 0; round--) {
    pid_t process = fork();
    CHECK(process >= 0);
    if (process == 0) run_round();
    int status = -1;
    CHECK(waitpid(process, &status, 0) == process && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  puts("done");
  return 0;
}
