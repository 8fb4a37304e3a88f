/* Another tuner behind the plugin: every pair of APIs, failures, threads. Usage: delegation FOLDER, which holds the
 * tuners api2.so to api7.so, incomplete.so and ours.so; or: delegation open, which prints what the plugin says. */
#include <dlfcn.h>
#include <pthread.h>

#include "played.h"

enum { THREADS = 4, CALLS = 5000, ENTRIES = NCCL_ALGORITHMS * NCCL_PROTOCOLS };

static const int RING_SIMPLE = NCCL_RING * NCCL_PROTOCOLS + NCCL_SIMPLE;

static union {
  struct nccl_constants_v5 v5;
  struct nccl_constants_v7 v7;
} constants;

/* Every newest capability's last bandwidth is 1, the rest of the constants 0: the other tuner knows that. */
static struct played open_expecting(int api, int wanted) {
  struct nccl_nvl_domain_v5 domain = {2, 8, 8};
  memset(&constants, 0, sizeof constants);
  if (api == 7) constants.v7.bandwidth[4][3][2] = constants.v7.bandwidth[4][4][2] = 1;
  else constants.v5.bandwidth[4][3][2] = 1;
  setenv("OTHER_IS_TOLD", api >= 5 ? "1" : "0", 1);
  return open_for(api, &constants, &domain, wanted);
}

static struct played open_telling(int api) { return open_expecting(api, NCCL_SUCCESS); }

static void check_constants(int api, int other, int works) {
  double first = 0, fourth = 1, fifth = 1;
  if (works && other >= 5) first = 1;
  if (works && (other == 5 || other == 6)) fourth = 3;
  if (works && other == 7) fifth = 3;
  if (api == 7) {
    CHECK(constants.v7.latency[0] == first && constants.v7.bandwidth[4][3][2] == fourth);
    CHECK(constants.v7.bandwidth[4][4][2] == fifth);
  } else if (api >= 5) {
    CHECK(constants.v5.latency[0] == first && constants.v5.bandwidth[4][3][2] == fourth);
  }
}

static void fill(float *costs) {
  for (int i = 0; i < ENTRIES; i++) costs[i] = (float)(10 + i);
  for (int collnet = NCCL_COLLNET_DIRECT; collnet <= NCCL_COLLNET_CHAIN; collnet++)
    for (int protocol = 0; protocol < NCCL_PROTOCOLS; protocol++) costs[collnet * NCCL_PROTOCOLS + protocol] = -1;
}

/* One call that no row covers, of NCCL from 2.22 on. `answered`: the other tuner makes ring and simple the cheapest. */
static void check_call(struct played played, int other, size_t bytes, int registered, int answered) {
  float costs[ENTRIES], before[ENTRIES];
  int channels = 0, seen = registered && played.api >= 4 && other >= 4;
  fill(costs), fill(before);
  CHECK(ask_with(played, NCCL_BROADCAST, bytes, costs, NCCL_ALGORITHMS, NCCL_PROTOCOLS, registered, &channels) == 0);
  for (int i = 0; i < ENTRIES; i++)
    CHECK(costs[i] == (answered && i == RING_SIMPLE ? (other == 2 ? 1e-6f : 0.5f) : before[i]));
  CHECK(channels == (answered ? 5 + seen : 0));
  fill(costs);
  CHECK(ask_with(played, NCCL_BROADCAST, bytes, costs, NCCL_ALGORITHMS, NCCL_PROTOCOLS, registered, NULL) == 0);
}

/* The same of NCCL 2.21. */
static void check_call_v2(struct played played, size_t bytes, int answered) {
  int algorithm = -1, protocol = -1, channels = 0;
  CHECK(ncclTunerPlugin_v2.get_coll_info(played.context, NCCL_BROADCAST, bytes, 0, 1, 1, &algorithm, &protocol,
                                         &channels) == 0);
  CHECK(algorithm == (answered ? NCCL_RING : -1) && protocol == (answered ? NCCL_SIMPLE : -1));
  CHECK(channels == (answered ? 5 : 0));
}

static void check_all_calls(struct played played, int other) {
  for (size_t size = 1000; size < 1008; size++) {
    int answered = other && size % 8 != 3 && size % 8 != 5 && size % 8 != 6;
    if (played.api == 2 && other == 2 && size % 8 == 6) continue; /* it names what it likes, and NCCL knows better */
    if (played.api == 2) check_call_v2(played, size, answered);
    else check_call(played, other, size, 0, answered), check_call(played, other, size, 1, answered);
  }
}

/* A row is not the other tuner's affair, unless NCCL does not offer what it says. */
static void check_rows(struct played played, int other) {
  float costs[ENTRIES];
  int channels = 0;
  fill(costs);
  CHECK(ask_with(played, NCCL_ALL_REDUCE, 64, costs, NCCL_ALGORITHMS, NCCL_PROTOCOLS, 0, &channels) == 0);
  CHECK(costs[NCCL_TREE] == 1e-6f && costs[RING_SIMPLE] == (float)(10 + RING_SIMPLE) && channels == 2);
  fill(costs);
  costs[NCCL_TREE] = -1, channels = 0;
  CHECK(ask_with(played, NCCL_ALL_REDUCE, 64, costs, NCCL_ALGORITHMS, NCCL_PROTOCOLS, 0, &channels) == 0);
  CHECK(costs[NCCL_TREE] == -1 && (costs[RING_SIMPLE] < 1) == (other > 0));
}

static void check_chunks(struct played played, int other) {
  int (*chunk)(void *, int, size_t, int, int, int, size_t *) =
      played.api == 6 ? ncclTunerPlugin_v6.get_chunk_size : ncclTunerPlugin_v7.get_chunk_size;
  if (other >= 6) CHECK(chunk != NULL);
  if (!chunk) return;
  for (size_t bytes = 1000; bytes < 1008; bytes++) {
    size_t size = 4096;
    CHECK(chunk(played.context, NCCL_ALL_REDUCE, bytes, NCCL_RING, NCCL_LL, 3, &size) == 0);
    CHECK(size == (other >= 6 && bytes % 8 != 3 && bytes % 8 != 5 ? 8192 : 4096));
  }
  size_t small = 8; /* a sixteenth of it is 0 */
  CHECK(chunk(played.context, NCCL_ALL_REDUCE, 1005, NCCL_RING, NCCL_LL, 3, &small) == 0 && small == 8);
  CHECK(chunk(played.context, NCCL_ALL_REDUCE, 1000, NCCL_RING, NCCL_LL, 3, NULL) == 0);
  CHECK(chunk(NULL, NCCL_ALL_REDUCE, 1000, NCCL_RING, NCCL_LL, 3, NULL) == 0);
}

/* `other`: API of the tuner that answers, 0 = none does. */
static void check_pair(int api, int other) {
  struct played played = open_telling(api);
  check_constants(api, other, other > 0);
  CHECK((strstr(last_line, "to the tuner other of") != NULL) == (other > 0));
  check_all_calls(played, other);
  if (api > 2) check_rows(played, other);
  if (api >= 6) check_chunks(played, other);
  close_communicator(played);
}

static void name(const char *folder, const char *file) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, file);
  setenv("NCCLT_DELEGATE", path, 1);
}

static void *many_calls(void *argument) {
  struct played *played = argument;
  for (size_t i = 0; i < CALLS; i++) {
    float costs[ENTRIES];
    int channels = 0;
    fill(costs);
    CHECK(ask_with(*played, NCCL_BROADCAST, i, costs, NCCL_ALGORITHMS, NCCL_PROTOCOLS, 0, &channels) == 0);
    CHECK((costs[RING_SIMPLE] < 1) == (i % 8 != 3 && i % 8 != 5 && i % 8 != 6));
  }
  struct nccl_nvl_domain_v5 domain = {2, 8, 8};
  union { struct nccl_constants_v7 v7; } own = {0};
  own.v7.bandwidth[4][3][2] = own.v7.bandwidth[4][4][2] = 1;
  close_communicator(open_with(7, &own, &domain));
  return NULL;
}

static void check_threads(void) {
  struct played shared = open_telling(7);
  unsetenv("KEEP_LAST_LINE"); /* from here on several threads write */
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, many_calls, &shared) == 0);
  for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  close_communicator(shared);
}

static int print_what_is_said(void) {
  const char *loaded = getenv("LOADED_BEFORE");
  if (loaded && !dlopen(loaded, RTLD_NOW | RTLD_LOCAL)) return 3;
  close_communicator(open_telling(6));
  puts(last_line);
  return 0;
}

int main(int count, char **arguments) {
  if (count != 2) return 2;
  setenv("KEEP_LAST_LINE", "1", 1);
  if (strcmp(arguments[1], "open") == 0) return print_what_is_said();
  char path[4096], file[32];
  snprintf(path, sizeof path, "%s/table.csv", arguments[1]);
  FILE *table = fopen(path, "w");
  CHECK(table && fputs("allreduce,0,65536,tree,ll,2,-1,-1\n", table) >= 0 && fclose(table) == 0);
  setenv("NCCLT_POLICY", path, 1);
  setenv("NCCLT_PLUGIN_REPORT", arguments[1], 1);
  for (int api = OLDEST_API; api <= NEWEST_API; api++) {
    for (int other = OLDEST_API; other <= NEWEST_API; other++) {
      snprintf(file, sizeof file, "api%d.so", other);
      name(arguments[1], file);
      check_pair(api, other);
      setenv("OTHER_BREAKS", "3", 1); /* its init fails */
      if (other > api) {
        check_pair(api, 0);
      } else { /* as NCCL itself would fail with that tuner */
        open_expecting(api, 3);
        check_constants(api, other, 0);
        CHECK(strstr(last_line, "could not begin: error 3; without this plugin") != NULL);
      }
      unsetenv("OTHER_BREAKS");
    }
    static const char *const USELESS[] = {"missing.so", "table.csv", "incomplete.so", "ours.so"};
    for (size_t i = 0; i < sizeof USELESS / sizeof *USELESS; i++) {
      name(arguments[1], USELESS[i]);
      check_pair(api, 0);
      CHECK(strstr(last_line, "no other tuner is asked: ") != NULL);
    }
    setenv("NCCLT_DELEGATE", "none", 1);
    check_pair(api, 0);
  }
  name(arguments[1], "api7.so");
  check_threads();
  printf("%ld checks\n", checks);
  return 0;
}
