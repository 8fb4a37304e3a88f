#include "communicator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "report.h"

/* Of the NCCL that loads us; NULL where it is hidden, for example in a program that NCCL is linked into. */
extern int ncclGetVersion(int *version) __attribute__((weak));

static struct {
  atomic_flag busy;
  int count;
  struct ncclt_communicator *open;
} process = {.busy = ATOMIC_FLAG_INIT};

/* Held for a few instructions, and only while communicators open and close: no call ever waits here. */
static void enter(void) {
  while (atomic_flag_test_and_set_explicit(&process.busy, memory_order_acquire)) {
  }
}

static void leave(void) { atomic_flag_clear_explicit(&process.busy, memory_order_release); }

static const char *variable(const char *name) {
  const char *value = getenv(name);
  return value && *value ? value : NULL;
}

static int version_of_nccl(void) {
  int version = 0;
  return ncclGetVersion && ncclGetVersion(&version) == NCCL_SUCCESS && version > 0 ? version : 0;
}

/* Load what the environment names; returns what to tell the user. */
static void load_policy(struct ncclt_communicator *communicator, char *said, size_t size) {
  char reason[NCCLT_REASON_SIZE] = "";
  const char *path = variable("NCCLT_POLICY_SHM");
  struct ncclt_table *table = &communicator->table;
  if (path) {
    communicator->policy = strdup(path);
    communicator->shared = ncclt_shared_open(path, communicator->reason);
    if (communicator->shared) snprintf(said, size, "table in shared memory %s", path);
    else snprintf(said, size, "%s is not used: %s", path, communicator->reason);
    return;
  }
  path = variable("NCCLT_POLICY");
  if (!path) path = variable("NCCL_TUNER_CONFIG_FILE");
  if (!path) {
    snprintf(communicator->reason, sizeof communicator->reason, "no table is named");
    snprintf(said, size, "no table: NCCLT_POLICY is not set");
    return;
  }
  communicator->policy = strdup(path);
  int failed = ncclt_table_read(table, path, communicator->nodes, communicator->ranks, reason);
  if (!failed && table->nccl_version && communicator->nccl_version &&
      table->nccl_version != communicator->nccl_version) {
    failed = 1;
    char wanted[32], here[32];
    ncclt_version_text(table->nccl_version, wanted);
    ncclt_version_text(communicator->nccl_version, here);
    snprintf(reason, sizeof reason, "it was measured with NCCL %s, this is %s", wanted, here);
  } else if (!failed && table->rows_here == 0) {
    failed = 1;
    snprintf(reason, sizeof reason, "none of its %u rows is for %llu ranks on %llu nodes", table->rows,
             (unsigned long long)communicator->ranks, (unsigned long long)communicator->nodes);
  }
  if (!failed) {
    snprintf(said, size, "table %s of %s, %u of %u rows for %llu ranks on %llu nodes, checksum %016llx",
             table->id[0] ? table->id : "without id", path, table->rows_here, table->rows,
             (unsigned long long)communicator->ranks, (unsigned long long)communicator->nodes,
             (unsigned long long)table->checksum);
    return;
  }
  ncclt_table_free(table);
  snprintf(communicator->reason, sizeof communicator->reason, "%s", reason);
  snprintf(said, size, "%s is not used: %s", path, reason);
}

/* Returns what to tell the user, empty if nothing. */
static const char *prepare_report(struct ncclt_communicator *communicator) {
  const char *folder = variable("NCCLT_PLUGIN_REPORT");
  if (!folder) return "";
  mkdir(folder, 0777); /* it may exist: other ranks make it too */
  if (access(folder, W_OK | X_OK)) return "; no report: the folder of NCCLT_PLUGIN_REPORT cannot be written to";
  communicator->report_folder = strdup(folder);
  communicator->decisions = communicator->report_folder ? ncclt_decisions_new() : NULL;
  return "";
}

static void say(const struct ncclt_communicator *communicator, nccl_logger log, const char *said, const char *lacking) {
  char line[2400], other[700] = "";
  const struct ncclt_delegate *delegate = communicator->delegate;
  const char *therefore = communicator->reason[0] && !delegate ? "; NCCL's own choice stays" : "";
  if (delegate)
    snprintf(other, sizeof other, "; %s to the tuner %s of %.300s (API v%d)",
             communicator->reason[0] ? "every call goes" : "calls without a row go", delegate->name,
             delegate->path ? delegate->path : "", delegate->api);
  else if (communicator->delegate_reason[0])
    snprintf(other, sizeof other, "; no other tuner is asked: %s", communicator->delegate_reason);
  snprintf(line, sizeof line, "TUNER/ncclt: %s%s%s%s", said, therefore, other, lacking);
  log(NCCL_LOG_INFO, NCCL_LOG_INIT | NCCL_LOG_TUNING, __FILE__, __LINE__, "%s", line);
}

struct ncclt_communicator *ncclt_communicator_open(const struct ncclt_opening *opening) {
  struct ncclt_communicator *communicator = calloc(1, sizeof *communicator);
  if (!communicator) return NULL;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  communicator->api = opening->api;
  communicator->id = opening->id;
  communicator->ranks = opening->ranks;
  communicator->nodes = opening->nodes;
  communicator->nccl_version = version_of_nccl();
  communicator->process = (long)getpid();
  communicator->started_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
  char said[1024];
  load_policy(communicator, said, sizeof said);
  const char *lacking = prepare_report(communicator);
  communicator->delegate = ncclt_delegate_open(opening, communicator->delegate_reason);
  enter();
  communicator->number = process.count++;
  communicator->next = process.open;
  if (process.open) process.open->previous = communicator;
  process.open = communicator;
  leave();
  if (opening->log) say(communicator, opening->log, said, lacking);
  return communicator;
}

int ncclt_communicator_find(struct ncclt_communicator *communicator, int function, uint64_t bytes, int registered,
                            struct ncclt_choice *choice) {
  if (communicator->shared)
    return ncclt_shared_find(communicator->shared, function, bytes, communicator->nodes, communicator->ranks,
                             &communicator->checked, choice) == NCCLT_SHARED_FOUND;
  const struct ncclt_choice *found = ncclt_lane_find(&communicator->table.lanes[function][!!registered], bytes);
  if (!found) return 0;
  *choice = *found;
  return 1;
}

void ncclt_communicator_close(struct ncclt_communicator *communicator) {
  if (!communicator) return;
  enter();
  if (communicator->previous) communicator->previous->next = communicator->next;
  else process.open = communicator->next;
  if (communicator->next) communicator->next->previous = communicator->previous;
  leave();
  /* A child that was forked with the communicator must not report its parent's calls again. */
  if (communicator->decisions && communicator->process == (long)getpid()) ncclt_report_write(communicator, 1);
  ncclt_delegate_close(communicator->delegate);
  ncclt_table_free(&communicator->table);
  ncclt_shared_close(communicator->shared);
  free(communicator->decisions);
  free(communicator->report_folder);
  free((char *)(uintptr_t)communicator->policy);
  free(communicator);
}

/* Many jobs end without closing their communicators. Nothing is freed here: other threads may still be in a call.
 * A forked child must not wait for a flag that another thread of its parent held. */
__attribute__((destructor)) static void report_what_is_open(void) {
  if (!process.open || process.open->process != (long)getpid()) return;
  enter();
  for (struct ncclt_communicator *one = process.open; one; one = one->next)
    if (one->decisions && one->process == (long)getpid()) ncclt_report_write(one, 0);
  leave();
}
