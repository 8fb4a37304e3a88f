/* The plugin's readers of tables against any input: libFuzzer's target, and without libFuzzer a driver of its own.
 *
 *   clang -std=c11 -D_POSIX_C_SOURCE=200809L -g -O1 -fsanitize=fuzzer,address,undefined -Iplugin \
 *     plugin/table.c plugin/trusted.c tests/fuzz/fuzz_table.c -o fuzz_table && ./fuzz_table -max_total_time=600 corpus/
 *   gcc   ... -fsanitize=address,undefined -DNCCLT_FUZZ_DRIVER ... && ./fuzz_table ROUNDS SEEDFILE...
 *
 * The driver changes bytes, cuts, joins and repeats the seeds. It knows nothing of coverage: use clang to search long. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "table.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

/* What was read must be in order, disjoint, and found at both ends. */
static void check(struct ncclt_table *table, int failed, const char *reason) {
  if (failed) {
    if (!reason[0] || strlen(reason) >= NCCLT_REASON_SIZE || table->rows) abort();
    return;
  }
  for (int function = 0; function < NCCL_FUNCTIONS; function++) {
    const struct ncclt_lane *lane = &table->lanes[function];
    for (uint32_t i = 0; i < lane->ranges; i++) {
      if (lane->first[i] > lane->last[i] || (i && lane->first[i] <= lane->last[i - 1])) abort();
      if (lane->choice[i].algorithm >= NCCL_ALGORITHMS || lane->choice[i].protocol >= NCCL_PROTOCOLS) abort();
      if (lane->choice[i].channels > NCCLT_MOST_CHANNELS) abort();
      if (ncclt_lane_find(lane, lane->first[i]) != &lane->choice[i]) abort();
      if (ncclt_lane_find(lane, lane->last[i]) != &lane->choice[i]) abort();
    }
  }
  ncclt_table_free(table);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
  struct ncclt_table table;
  char reason[NCCLT_REASON_SIZE] = "", *text = malloc(size + 1); /* exact, so that reading behind it is seen */
  if (!text) abort();
  memcpy(text, data, size);
  text[size] = 0; /* as getenv gives it */
  check(&table, ncclt_table_parse(&table, (const char *)data, size, 2, 16, reason), reason);
  reason[0] = 0;
  check(&table, ncclt_table_decode(&table, text, 2, 16, reason), reason);
  free(text);
  return 0;
}

#ifdef NCCLT_FUZZ_DRIVER
enum { MOST = 8192, SEEDS = 64 };

static unsigned long long state = 88172645463325252ull;

static size_t below(size_t limit) { /* xorshift (Marsaglia 2003): equal in every run */
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return limit ? (size_t)(state % limit) : 0;
}

int main(int count, char **arguments) {
  static const char WORDS[] = "\n,#- \t\r\00019allreducetreering18446744073709551616-1=.ncclt-table ";
  static unsigned char seed[SEEDS][MOST];
  size_t length[SEEDS] = {0};
  int seeds = 0;
  for (int i = 2; i < count && seeds < SEEDS; i++, seeds++) {
    FILE *file = fopen(arguments[i], "rb");
    if (!file) return 2;
    length[seeds] = fread(seed[seeds], 1, MOST, file);
    fclose(file);
    LLVMFuzzerTestOneInput(seed[seeds], length[seeds]);
  }
  if (!seeds) return 2;
  long rounds = atol(arguments[1]);
  for (long round = 0; round < rounds; round++) {
    size_t from = below((size_t)seeds), size = length[from];
    unsigned char *input = malloc(2 * MOST); /* exact in the end, so that reading behind it is seen */
    if (!input) return 2;
    memcpy(input, seed[from], size);
    for (size_t change = 1 + below(4); change--;) switch (below(5)) {
        case 0: if (size) input[below(size)] = (unsigned char)below(256); break;
        case 1: if (size) input[below(size)] = (unsigned char)WORDS[below(sizeof WORDS - 1)]; break;
        case 2: size = below(size + 1); break;
        case 3: {
          size_t other = below((size_t)seeds), at = below(length[other]), more = below(length[other] - at + 1);
          if (size + more > 2 * MOST) more = 2 * MOST - size;
          memcpy(input + size, seed[other] + at, more);
          size += more;
          break;
        }
        default:
          if (size) {
            size_t at = below(size), gone = below(size - at + 1);
            memmove(input + at, input + at + gone, size - at - gone);
            size -= gone;
          }
      }
    unsigned char *exact = malloc(size ? size : 1);
    if (!exact) return 2;
    memcpy(exact, input, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    free(input);
  }
  printf("%ld rounds\n", rounds);
  return 0;
}
#endif
