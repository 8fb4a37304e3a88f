#include "communicator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agreement.h"
#include "named_table.h"
#include "nccl_version.h"
#include "process.h"
#include "report.h"

/* Whether an unusable table must fail NCCL's init: not while the ranks have yet to agree, or have agreed to do without. */
static int must_fail(int agreement) {
  enum ncclt_agreed decision = ncclt_current_decision();
  if (decision == NCCLT_UNDECIDED) return agreement != NCCLT_BY_HOOK;
  return decision != NCCLT_KEEP_DEFAULT;
}

/* Load what the environment names, and write to `said` what to tell the user. Returns -1 where it cannot be used. */
static int load_table(struct ncclt_communicator *communicator, const struct ncclt_named_table *named, char *said,
                      size_t size) {
  struct ncclt_table *table = &communicator->table;
  char *reason = communicator->reason;
  if (named->source == NCCLT_NO_TABLE) {
    snprintf(reason, sizeof communicator->reason, "no table is named");
    snprintf(said, size, "no table: NCCLT_TABLE and NCCLT_POLICY are not set");
    atomic_store_explicit(&communicator->use, NCCLT_UNUSED, memory_order_relaxed);
    return 0;
  }
  int is_text = named->source == NCCLT_TABLE_TEXT;
  const char *place = is_text ? named->variable : named->value;
  communicator->policy = strdup(place);
  int failed = 0;
  if (communicator->agreement == NCCLT_UNKNOWN_AGREEMENT) {
    failed = -1;
    snprintf(reason, sizeof communicator->reason, "NCCLT_AGREEMENT is neither `hook` nor `none`");
  } else if (named->source == NCCLT_TABLE_SHARED) {
    communicator->shared = ncclt_shared_open(named->value, reason);
    failed = communicator->shared ? 0 : -1;
    snprintf(said, size, "table in shared memory %.900s", place);
  } else {
    failed = ncclt_load_table(table, named, communicator->nodes, communicator->ranks, communicator->nccl_version,
                              reason);
    if (!failed)
      snprintf(said, size, "table %s of %.500s, %u of %u rows for %llu ranks on %llu nodes, checksum %016llx",
               table->id[0] ? table->id : "without id", place, table->rows_here, table->rows,
               (unsigned long long)communicator->ranks, (unsigned long long)communicator->nodes,
               (unsigned long long)table->checksum);
    if (!failed && table->rows_here == 0) { /* the same on all ranks of this communicator */
      snprintf(reason, sizeof communicator->reason, "none of its %u rows is for %llu ranks on %llu nodes", table->rows,
               (unsigned long long)communicator->ranks, (unsigned long long)communicator->nodes);
      ncclt_table_free(table);
      atomic_store_explicit(&communicator->use, NCCLT_UNUSED, memory_order_relaxed);
    }
  }
  if (reason[0]) snprintf(said, size, "%.900s is not used: %s", place, reason);
  return failed;
}

/* Returns what to tell the user, empty if nothing. */
static const char *prepare_report(struct ncclt_communicator *communicator) {
  const char *folder = getenv("NCCLT_PLUGIN_REPORT");
  if (!folder || !*folder) return "";
  mkdir(folder, 0777); /* it may exist: other ranks make it too */
  if (access(folder, W_OK | X_OK)) return "; no report: the folder of NCCLT_PLUGIN_REPORT cannot be written to";
  communicator->report_folder = strdup(folder);
  communicator->decisions = communicator->report_folder ? ncclt_decisions_new() : NULL;
  return "";
}

static void say(const struct ncclt_communicator *communicator, const char *said, const char *lacking) {
  char line[2400], other[700] = "";
  const struct ncclt_delegate *delegate = communicator->delegate;
  const char *waiting = "";
  if (!communicator->reason[0] && ncclt_current_decision() == NCCLT_UNDECIDED &&
      communicator->agreement == NCCLT_BY_HOOK)
    waiting = "; used once all ranks have agreed";
  const char *therefore = communicator->reason[0] && !delegate ? "; keeping the NCCL default" : "";
  if (delegate)
    snprintf(other, sizeof other, "; %s to the tuner %s of %.300s (API v%d)",
             communicator->reason[0] ? "every call goes" : "calls without a row go", delegate->name,
             delegate->path ? delegate->path : "", delegate->api);
  else if (communicator->delegate_reason[0])
    snprintf(other, sizeof other, "; no other tuner is asked: %s", communicator->delegate_reason);
  snprintf(line, sizeof line, "TUNER/ncclt: %s%s%s%s%s", said, waiting, therefore, other, lacking);
  communicator->log(NCCL_LOG_INFO, NCCL_LOG_INIT | NCCL_LOG_TUNING, __FILE__, __LINE__, "%s", line);
}

/* Let the plan change, where the environment wants that and it can; `said` then tells it. */
static void open_live(struct ncclt_communicator *communicator, char *said, size_t size) {
  int wanted = 0;
  communicator->live = ncclt_live_open(communicator, &wanted, communicator->live_reason);
  if (!wanted) return;
  if (communicator->live) {
    communicator->reason[0] = 0;
    snprintf(said, size, "live tuning (experimental): plans can change while the job runs");
    atomic_store_explicit(&communicator->use, NCCLT_LIVE, memory_order_relaxed);
  } else {
    size_t length = strlen(said);
    snprintf(said + length, size - length, "; no live tuning: %s", communicator->live_reason);
  }
}

static void free_communicator(struct ncclt_communicator *communicator) {
  ncclt_delegate_close(communicator->delegate);
  ncclt_table_free(&communicator->table);
  ncclt_shared_close(communicator->shared);
  ncclt_live_close(communicator->live);
  free(communicator->decisions);
  free(communicator->report_folder);
  free(communicator->policy);
  free(communicator);
}

int ncclt_communicator_open(const struct ncclt_opening *opening, struct ncclt_communicator **opened) {
  struct ncclt_named_table named = ncclt_find_named_table();
  struct ncclt_communicator *communicator = calloc(1, sizeof *communicator);
  const char *why = "no memory is left";
  int agreement = ncclt_agreement(), failed = -1, code = NCCL_SUCCESS;
  char said[1200];
  *opened = NULL;
  if (communicator) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    communicator->api = opening->api;
    communicator->id = opening->id;
    communicator->ranks = opening->ranks;
    communicator->nodes = opening->nodes;
    communicator->log = opening->log;
    communicator->agreement = agreement;
    communicator->nccl_version = ncclt_nccl_version(opening->caller);
    communicator->process = (long)getpid();
    communicator->started_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    failed = load_table(communicator, &named, said, sizeof said);
    why = communicator->reason;
  }
  if (failed && (!communicator || must_fail(agreement))) {
    if (named.source == NCCLT_NO_TABLE) ncclt_warn(opening->log, "%s", why);
    else
      ncclt_warn(opening->log,
           "this rank cannot use the table of %s: %s. NCCL's init ends here, because ranks that choose differently hang "
           "or corrupt data; unset %s on all ranks to train without the table",
           named.variable, why, named.variable);
    code = NCCL_INVALID_USAGE;
  }
  if (code == NCCL_SUCCESS) {
    code = ncclt_delegate_open(opening, &communicator->delegate, communicator->delegate_reason);
    if (code) ncclt_warn(opening->log, "%s; without this plugin NCCL's init would fail as well", communicator->delegate_reason);
  }
  if (code) {
    if (communicator) free_communicator(communicator);
    return code;
  }
  open_live(communicator, said, sizeof said);
  const char *lacking = prepare_report(communicator);
  ncclt_process_add(communicator);
  if (communicator->log) say(communicator, said, lacking);
  *opened = communicator;
  return NCCL_SUCCESS;
}

enum ncclt_use ncclt_communicator_settle(struct ncclt_communicator *communicator) {
  enum ncclt_agreed decision = ncclt_current_decision();
  int use = NCCLT_USED, before = NCCLT_UNSETTLED;
  if (decision == NCCLT_IN_DOUBT) use = NCCLT_FAILS;
  else if (decision == NCCLT_KEEP_DEFAULT || (decision == NCCLT_UNDECIDED && communicator->agreement == NCCLT_BY_HOOK))
    use = NCCLT_UNUSED;
  else if (communicator->reason[0]) use = NCCLT_FAILS; /* it could be read when the ranks compared, and not before */
  if (!atomic_compare_exchange_strong(&communicator->use, &before, use)) return (enum ncclt_use)before;
  if (use == NCCLT_FAILS)
    ncclt_warn(communicator->log,
         "%s, while other ranks may use the table. This call fails, because ranks that choose differently hang or corrupt "
         "data",
         decision == NCCLT_IN_DOUBT ? "the job's store was lost before this rank knew the decision of all ranks"
                                    : communicator->reason);
  return (enum ncclt_use)use;
}

void ncclt_communicator_close(struct ncclt_communicator *communicator) {
  if (!communicator) return;
  ncclt_process_remove(communicator);
  /* A child that was forked with the communicator must not report its parent's calls again. */
  if (communicator->decisions && communicator->process == (long)getpid()) ncclt_report_write(communicator, 1);
  free_communicator(communicator);
}
