/* NCCL's part towards the plugin under every tuner API, for the programs of this folder. */
#ifndef PLAYED_H
#define PLAYED_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_tuner_abi.h"

extern const struct nccl_tuner_v2 ncclTunerPlugin_v2;
extern const struct nccl_tuner_v3 ncclTunerPlugin_v3;
extern const struct nccl_tuner_v4 ncclTunerPlugin_v4;
extern const struct nccl_tuner_v5 ncclTunerPlugin_v5;
extern struct nccl_tuner_v6 ncclTunerPlugin_v6;
extern struct nccl_tuner_v7 ncclTunerPlugin_v7;

enum { RANKS = 16, NODES = 2, COMMUNICATOR = 7, OLDEST_API = 2, NEWEST_API = 7 };

static long checks;

#define CHECK(condition) \
  (__atomic_add_fetch(&checks, 1, __ATOMIC_RELAXED), \
   (condition) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition), exit(1)))

static int lines;
static char last_line[2048]; /* of the thread that opened the last communicator */

__attribute__((format(printf, 5, 6))) static void log_line(int level, unsigned long subsystems, const char *file,
                                                           int line, const char *format, ...) {
  (void)file, (void)line;
  va_list values;
  char text[2048];
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  CHECK((level == NCCL_LOG_INFO || level == NCCL_LOG_WARN) && subsystems && strncmp(text, "TUNER/ncclt: ", 13) == 0);
  if (__atomic_add_fetch(&lines, 1, __ATOMIC_RELAXED) == 1 || getenv("KEEP_LAST_LINE"))
    memcpy(last_line, text, sizeof last_line);
}

/* One communicator under any API. */
struct played {
  int api;
  void *context;
};

/* Open one with these constants, of the size of its API; they are given from v5 on. `wanted`: what init returns. */
static struct played open_for(int api, void *model, struct nccl_nvl_domain_v5 *domain, int wanted) {
  struct played played = {api, NULL};
  int code = -1;
  if (api == 2) code = ncclTunerPlugin_v2.init(RANKS, NODES, log_line, &played.context);
  if (api == 3) code = ncclTunerPlugin_v3.init(RANKS, NODES, log_line, &played.context);
  if (api == 4) code = ncclTunerPlugin_v4.init(RANKS, NODES, log_line, &played.context);
  if (api == 5) code = ncclTunerPlugin_v5.init(&played.context, COMMUNICATOR, RANKS, NODES, log_line, domain, model);
  if (api == 6) code = ncclTunerPlugin_v6.init(&played.context, COMMUNICATOR, RANKS, NODES, log_line, domain, model);
  if (api == 7) code = ncclTunerPlugin_v7.init(&played.context, COMMUNICATOR, RANKS, NODES, log_line, domain, model);
  CHECK(code == wanted && (played.context == NULL) == (wanted != NCCL_SUCCESS));
  return played;
}

__attribute__((unused)) static struct played open_with(int api, void *model, struct nccl_nvl_domain_v5 *domain) {
  return open_for(api, model, domain, NCCL_SUCCESS);
}

static void close_communicator(struct played played) {
  int code = -1;
  if (played.api == 2) code = ncclTunerPlugin_v2.destroy(played.context);
  if (played.api == 3) code = ncclTunerPlugin_v3.destroy(played.context);
  if (played.api == 4) code = ncclTunerPlugin_v4.destroy(played.context);
  if (played.api == 5) code = ncclTunerPlugin_v5.finalize(played.context);
  if (played.api == 6) code = ncclTunerPlugin_v6.finalize(played.context);
  if (played.api == 7) code = ncclTunerPlugin_v7.finalize(played.context);
  CHECK(code == NCCL_SUCCESS);
}

static int ask_with(struct played played, int function, size_t bytes, float *costs, int algorithms, int protocols,
                    int registered, int *channels) {
  float **table = (float **)(void *)costs;
  if (played.api == 3)
    return ncclTunerPlugin_v3.get_coll_info(played.context, function, bytes, 1, table, algorithms, protocols, channels);
  if (played.api == 4)
    return ncclTunerPlugin_v4.get_coll_info(played.context, function, bytes, 1, table, algorithms, protocols,
                                            registered, channels);
  if (played.api == 5)
    return ncclTunerPlugin_v5.get_coll_info(played.context, function, bytes, 1, table, algorithms, protocols,
                                            registered, channels);
  if (played.api == 6)
    return ncclTunerPlugin_v6.get_coll_info(played.context, function, bytes, 1, table, algorithms, protocols,
                                            registered, channels);
  return ncclTunerPlugin_v7.get_coll_info(played.context, function, bytes, 1, table, algorithms, protocols, registered,
                                          channels);
}

#endif
