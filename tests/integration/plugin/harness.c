/* Plays NCCL's part towards the plugin, in C, so that it runs under AddressSanitizer, UndefinedBehaviorSanitizer and
 * ThreadSanitizer. Usage: harness FOLDER; prints how many checks held, exits 1 at the first that does not. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <time.h>

#include "live.h"
#include "played.h"
#include "shared.h"
#include "table.h"

enum { THREADS = 4, CALLS = 20000 };

/* NCCL's constants: 7x3 + 3x7x3 + 5 times 4x3 doubles, from v7 on 5x3; the plugin has to leave them alone. */
static const double CONSTANT = 0.625;

static struct played open_communicator(int api) {
  double constants[159], before[159];
  for (int i = 0; i < 159; i++) constants[i] = before[i] = CONSTANT;
  struct nccl_nvl_domain_v5 domain = {2, 8, 8};
  struct played played = open_with(api, constants, &domain);
  CHECK(memcmp(constants, before, sizeof before) == 0 && domain.domains == 2);
  return played;
}

static int ask(struct played played, int function, size_t bytes, float *costs, int algorithms, int protocols,
               int *channels) {
  return ask_with(played, function, bytes, costs, algorithms, protocols, 0, channels);
}

/* NCCL up to 2.30: the first strict minimum among the entries that are not negative. */
static int selected_before_2_31(const float *costs, int count) {
  int best = -1;
  for (int i = 0; i < count; i++)
    if (costs[i] >= 0 && (best < 0 || costs[i] < costs[best])) best = i;
  return best;
}

/* NCCL from 2.31 on: candidates are the entries that were valid, in reversed order, and no sign is looked at. */
static int selected_since_2_31(const float *costs, const float *before, int count) {
  int best = -1;
  for (int i = count - 1; i >= 0; i--)
    if (before[i] >= 0 && (best < 0 || costs[i] < costs[best])) best = i;
  return best;
}

static unsigned long long state = 88172645463325252ull;

static unsigned long long random_number(void) { /* xorshift (Marsaglia 2003): equal in every run */
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

/* The rows of `write_table`, as NCCL numbers: the row for a size and what it asks for, -1 where there is none. */
static int wanted(int function, size_t bytes, int *channels) {
  *channels = 0;
  if (function == NCCL_ALL_REDUCE && bytes <= 65536) return *channels = 2, NCCL_TREE * 3 + NCCL_LL;
  if (function == NCCL_ALL_REDUCE && bytes <= 4294967295u) return NCCL_RING * 3 + NCCL_LL128;
  if (function == NCCL_ALL_REDUCE) return *channels = 64, NCCL_NVLS * 3 + NCCL_SIMPLE;
  if (function == NCCL_ALL_GATHER) return *channels = 8, NCCL_PAT * 3 + NCCL_SIMPLE;
  if (function == NCCL_REDUCE_SCATTER) return NCCL_COLLNET_DIRECT * 3 + NCCL_SIMPLE; /* its channels are not written */
  return -1;
}

static void write_table(const char *path) {
  FILE *file = fopen(path, "w");
  CHECK(file != NULL);
  fputs("# a comment\n\nallreduce,0,65536,tree,ll,2,-1,-1,-1,-1\nallreduce,0,4294967295,ring,ll128,-1,2,16\n"
        "allreduce,0,18446744073709551615,nvls,simple,200,2,-1\nallgather,0,18446744073709551615,pat,simple,8,-1,16,-1\n"
        "reducescatter,0,18446744073709551615,collnet_direct,simple,8,-1,-1\nbroadcast,0,100,ring,ll,1,4,-1\n",
        file);
  CHECK(fclose(file) == 0);
}

static void check_costs(struct played played, int algorithms) {
  static const size_t SIZES[] = {0, 1, 65536, 65537, 4194304, 4294967295u, 4294967296u, (size_t)1 << 45};
  for (int turn = 0; turn < 200; turn++) {
    float costs[NCCL_ALGORITHMS * NCCL_PROTOCOLS + 8], before[NCCL_ALGORITHMS * NCCL_PROTOCOLS + 8];
    int count = algorithms * NCCL_PROTOCOLS, channels = 0, asked, function = (int)(random_number() % 7) - 1;
    size_t bytes = SIZES[random_number() % (sizeof SIZES / sizeof *SIZES)];
    for (int i = 0; i < count + 8; i++)
      before[i] = costs[i] = random_number() % 4 ? (float)(1 + random_number() % 1000) : -1.0f;
    CHECK(ask(played, function, bytes, costs, algorithms, NCCL_PROTOCOLS, &channels) == NCCL_SUCCESS);
    int entry = wanted(function, bytes, &asked);
    int offered = entry >= 0 && entry < count && before[entry] >= 0;
    for (int i = 0; i < count + 8; i++) /* also behind the table */
      CHECK(costs[i] == (offered && i == entry ? 1e-6f : before[i]));
    if (!offered) CHECK(channels == 0);
    else CHECK(channels == (played.api == 3 && asked > 32 ? 32 : asked));
    if (offered) {
      CHECK(selected_before_2_31(costs, count) == entry);
      CHECK(selected_since_2_31(costs, before, count) == entry);
    } else {
      CHECK(selected_before_2_31(costs, count) == selected_before_2_31(before, count));
      CHECK(selected_since_2_31(costs, before, count) == selected_since_2_31(before, before, count));
    }
  }
}

static void check_strange_calls(struct played played) {
  float costs[21];
  int channels = 0;
  for (int i = 0; i < 21; i++) costs[i] = NAN;
  CHECK(ask(played, NCCL_ALL_REDUCE, 8, costs, 7, 3, &channels) == NCCL_SUCCESS && channels == 0 && isnan(costs[0]));
  costs[0] = 1;
  CHECK(ask(played, NCCL_ALL_REDUCE, 8, costs, 7, 3, NULL) == NCCL_SUCCESS && costs[0] < 1);
  CHECK(ask(played, NCCL_ALL_REDUCE, 8, NULL, 7, 3, &channels) == NCCL_SUCCESS);
  CHECK(ask(played, NCCL_ALL_REDUCE, 8, costs, 0, 0, &channels) == NCCL_SUCCESS);
  CHECK(ask(played, NCCL_ALL_REDUCE, 8, costs, -1, -1, &channels) == NCCL_SUCCESS);
  CHECK(ask(played, 5, 8, costs, 7, 3, &channels) == NCCL_SUCCESS && channels == 0);
  struct played nothing = {played.api, NULL};
  CHECK(ask(nothing, NCCL_ALL_REDUCE, 8, costs, 7, 3, &channels) == NCCL_SUCCESS && channels == 0);
  close_communicator(nothing);
}

static void check_v2(void) {
  struct played played = open_communicator(2);
  int algorithm = -1, protocol = -1, channels = 0;
#define ASK(function, bytes, collnet, nvls) \
  (algorithm = protocol = -1, channels = 0, \
   ncclTunerPlugin_v2.get_coll_info(played.context, function, bytes, collnet, nvls, 1, &algorithm, &protocol, &channels))
  CHECK(ASK(NCCL_ALL_REDUCE, 8, 0, 0) == 0 && algorithm == NCCL_TREE && protocol == NCCL_LL && channels == 2);
  CHECK(ASK(NCCL_ALL_REDUCE, 1 << 20, 1, 1) == 0 && algorithm == -1 && protocol == -1 && channels == 0); /* LL128 */
  CHECK(ASK(NCCL_ALL_REDUCE, (size_t)1 << 33, 0, 1) == 0 && algorithm == -1); /* NVLS on two nodes needs CollNet */
  CHECK(ASK(NCCL_ALL_REDUCE, (size_t)1 << 33, 1, 1) == 0 && algorithm == NCCL_NVLS && channels == 32);
  CHECK(ASK(NCCL_ALL_GATHER, 8, 1, 1) == 0 && algorithm == -1); /* PAT is younger */
  CHECK(ASK(NCCL_REDUCE_SCATTER, 8, 0, 1) == 0 && algorithm == -1);
  CHECK(ASK(NCCL_REDUCE_SCATTER, 8, 1, 1) == 0 && algorithm == NCCL_COLLNET_DIRECT && channels == 0);
  CHECK(ncclTunerPlugin_v2.get_coll_info(played.context, 4, 8, 0, 0, 1, NULL, NULL, NULL) == 0);
  CHECK(ncclTunerPlugin_v2.get_coll_info(NULL, 4, 8, 0, 0, 1, &algorithm, &protocol, NULL) == 0);
  close_communicator(played);
}

static _Atomic int waiting;

static void *many_calls(void *argument) {
  struct played *shared = argument, own = open_communicator(7);
  for (atomic_fetch_sub(&waiting, 1); atomic_load(&waiting);) { /* all at once */
  }
  for (int i = 0; i < CALLS; i++) {
    float costs[21], *table = costs;
    int channels = 0, asked;
    for (int k = 0; k < 21; k++) costs[k] = (float)(1 + k);
    size_t bytes = (size_t)(i / 2 % 14) * 10000; /* few sizes, so that threads meet at one counter */
    CHECK(ask(i % 2 ? own : *shared, NCCL_ALL_REDUCE, bytes, table, 7, 3, &channels) == NCCL_SUCCESS);
    CHECK(selected_before_2_31(costs, 21) == wanted(NCCL_ALL_REDUCE, bytes, &asked) && channels == asked);
  }
  close_communicator(own);
  return NULL;
}

static void check_threads(void) {
  struct played shared = open_communicator(5);
  pthread_t threads[THREADS];
  atomic_store(&waiting, THREADS);
  for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, many_calls, &shared) == 0);
  for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  close_communicator(shared);
}

static uint64_t checksum_of(uint64_t hash, uint64_t word) { /* FNV-1a, as plugin/shared.h tells */
  for (int i = 0; i < 8; i++) hash = (hash ^ (word >> (8 * i) & 255)) * UINT64_C(0x100000001b3);
  return hash;
}

static void put(_Atomic uint64_t *word, uint64_t value) { atomic_store_explicit(word, value, memory_order_relaxed); }

/* Publish rows of which one fits: the first or the last in turn, so that half of each table would have none or two. */
static void publish(struct ncclt_shared *shared, uint64_t generation) {
  struct ncclt_shared_slot *slot = &shared->slot[generation % 2];
  uint64_t hash = checksum_of(checksum_of(UINT64_C(0xcbf29ce484222325), generation), NCCLT_SHARED_ROWS);
  put(&slot->generation, generation);
  put(&slot->rows, NCCLT_SHARED_ROWS);
  for (int i = 0; i < NCCLT_SHARED_ROWS; i++) {
    int fitting = generation / 2 % 2 ? 0 : NCCLT_SHARED_ROWS - 1;
    uint64_t function = i == fitting ? NCCL_ALL_REDUCE : NCCL_REDUCE;
    uint64_t choice = function | NCCL_RING << 8 | (generation % 3) << 16 | (1 + generation % 3) << 24;
    put(&slot->row[i].first, 0);
    put(&slot->row[i].last, UINT64_MAX);
    put(&slot->row[i].shape, 0);
    put(&slot->row[i].choice, choice);
    hash = checksum_of(checksum_of(checksum_of(checksum_of(hash, 0), UINT64_MAX), 0), choice);
  }
  put(&slot->checksum, hash);
  atomic_store_explicit(&shared->generation, generation, memory_order_release);
}

static _Atomic int reading;

/* A controller without a barrier, faster than any real one: what is seen must still be one whole table. */
static void *switch_tables(void *argument) {
  for (uint64_t generation = 2; atomic_load(&reading); generation++) publish(argument, generation);
  return NULL;
}

static void *read_tables(void *argument) {
  const struct ncclt_shared *shared = argument;
  _Atomic uint64_t checked = 0;
  for (int i = 0; i < CALLS; i++) {
    struct ncclt_choice choice = {0, 0, 0};
    enum ncclt_shared_answer answer = ncclt_shared_find(shared, NCCL_ALL_REDUCE, 64, NODES, RANKS, &checked, &choice);
    CHECK(answer == NCCLT_SHARED_DAMAGED || /* never still for long enough */
          (answer == NCCLT_SHARED_FOUND && choice.algorithm == NCCL_RING && choice.channels == 1 + choice.protocol));
  }
  atomic_fetch_sub(&reading, 1);
  return NULL;
}

static void check_shared(void) {
  struct ncclt_shared *shared = calloc(1, sizeof *shared);
  CHECK(shared != NULL);
  pthread_t writer, readers[THREADS];
  publish(shared, 1);
  atomic_store(&reading, THREADS);
  CHECK(pthread_create(&writer, NULL, switch_tables, shared) == 0);
  for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&readers[i], NULL, read_tables, shared) == 0);
  for (int i = 0; i < THREADS; i++) CHECK(pthread_join(readers[i], NULL) == 0);
  CHECK(pthread_join(writer, NULL) == 0);
  free(shared);
}

/* Questions of one communicator, while another thread switches its plan. */
enum { LIVE_QUESTIONS = 20000 };

static const char *const PLANS[] = {"", "1:r:2.28.9:16.2:0.0A1sRS1:99338fd78e7e2aff",
                                    "1:r:2.28.9:16.2:0.0A1sRS2:562d0a9caf7af7d8"}; /* a ring of 0, 1 and 2 channels */

static struct {
  uint64_t begins;
  int plan;
} switched[LIVE_QUESTIONS];
static _Atomic uint64_t asked, switches;

static void *ask_live(void *argument) {
  for (uint64_t i = 0; i < LIVE_QUESTIONS; i++) {
    float costs[21];
    int channels = 0, plan = 0;
    for (int k = 0; k < 21; k++) costs[k] = 1;
    CHECK(ask(*(struct played *)argument, NCCL_ALL_REDUCE, 64, costs, 7, 3, &channels) == NCCL_SUCCESS);
    for (uint64_t one = atomic_load(&switches); one > 0; one--)
      if (switched[one - 1].begins <= i) {
        plan = switched[one - 1].plan;
        break;
      }
    CHECK(channels == plan && (costs[NCCL_RING * 3 + NCCL_SIMPLE] < 1) == (plan > 0));
    atomic_store(&asked, i + 1);
    if (i % 20 == 0) nanosleep(&(struct timespec){0, 100000}, NULL);
  }
  return NULL;
}

/* A question comes long after a plan is armed, just then, or waits for the decision. */
static void check_live(void) {
  setenv("NCCLT_LIVE", "1", 1);
  char *policy = strdup(getenv("NCCLT_POLICY")), text[4096], reason[NCCLT_REASON_SIZE];
  unsetenv("NCCLT_POLICY");
  struct played played = open_communicator(5);
  setenv("NCCLT_POLICY", policy, 1);
  unsetenv("NCCLT_LIVE");
  free(policy);
  pthread_t thread;
  struct ncclt_live_armed armed;
  long aborted = 0, refused = 0;
  CHECK(pthread_create(&thread, NULL, ask_live, &played) == 0);
  for (uint64_t proposal = 1; atomic_load(&asked) < LIVE_QUESTIONS; proposal++) {
    uint64_t number = atomic_load(&switches);
    int plan = (int)(random_number() % 3), commits = random_number() % 4 > 0;
    CHECK(ncclt_live_describe(text, sizeof text) > 0 && strstr(text, "ranks=16"));
    if (atomic_load(&asked) == 0) continue; /* the size must be known */
    if (ncclt_live_arm(proposal, COMMUNICATOR, PLANS[plan], 0, 30.0, &armed, reason)) {
      refused++;
      continue;
    }
    if (random_number() % 4 == 0) nanosleep(&(struct timespec){0, 200000}, NULL); /* the question may have to wait */
    if (commits) {
      switched[number].begins = armed.begins, switched[number].plan = plan;
      atomic_store(&switches, number + 1);
    }
    aborted += !commits;
    ncclt_live_decide(proposal, commits);
  }
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(atomic_load(&switches) > 10 && aborted > 0 && refused > 0);
  close_communicator(played);
}

/* Compare the compiled ranges with the plain reading of the rows: the first row that covers a size. */
static void check_ranges(void) {
  for (int turn = 0; turn < 300; turn++) {
    enum { ROWS = 12 };
    unsigned first[ROWS], last[ROWS];
    char text[4096], reason[NCCLT_REASON_SIZE];
    size_t length = 0;
    for (int i = 0; i < ROWS; i++) {
      first[i] = (unsigned)(random_number() % 60);
      last[i] = first[i] + (unsigned)(random_number() % 20);
      length += (size_t)snprintf(text + length, sizeof text - length, "reduce,%u,%u,ring,ll,%d,-1,-1\n", first[i],
                                 last[i], i + 1);
    }
    struct ncclt_table table;
    CHECK(ncclt_table_parse(&table, text, length, 1, 8, reason) == 0 && table.rows_here == ROWS);
    for (unsigned bytes = 0; bytes < 85; bytes++) {
      int row = 0;
      while (row < ROWS && !(first[row] <= bytes && bytes <= last[row])) row++;
      const struct ncclt_choice *found = ncclt_lane_find(&table.lanes[NCCL_REDUCE], bytes);
      CHECK(row == ROWS ? found == NULL : found && found->channels == row + 1);
    }
    ncclt_table_free(&table);
  }
}

int main(int count, char **arguments) {
  if (count != 2) return 2;
  char path[4096];
  snprintf(path, sizeof path, "%s/table.csv", arguments[1]);
  write_table(path);
  setenv("NCCLT_POLICY", path, 1);
  setenv("NCCLT_PLUGIN_REPORT", arguments[1], 1);
  int opened = 0;
  for (int api = 3; api <= NEWEST_API; api++) {
    struct played several[3];
    for (int i = 0; i < 3; i++, opened++) several[i] = open_communicator(api);
    check_costs(several[0], 7);
    close_communicator(several[0]);
    check_costs(several[2], 6); /* NCCL before 2.23 had six algorithms */
    check_strange_calls(several[1]);
    close_communicator(several[2]);
    close_communicator(several[1]);
  }
  check_v2();
  check_threads();
  check_shared();
  check_ranges();
  check_live();
  CHECK(lines == opened + 1 + THREADS + 1 + 1); /* one line per communicator */
  CHECK(ncclTunerPlugin_v6.get_chunk_size == NULL && ncclTunerPlugin_v7.get_chunk_size == NULL);
  CHECK(ncclTunerPlugin_v6.init(NULL, 0, 8, 1, NULL, NULL, NULL) == NCCL_SUCCESS);
  open_communicator(7); /* left open: reported when the process ends */
  printf("%ld checks\n", checks);
  return 0;
}
