#include "table.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trusted.h"

static const char *const FUNCTION_NAMES[NCCL_FUNCTIONS] = {"broadcast", "reduce", "allgather", "reducescatter",
                                                           "allreduce"};
static const char *const ALGORITHM_NAMES[NCCL_ALGORITHMS] = {"tree", "ring",      "collnet_direct", "collnet_chain",
                                                             "nvls", "nvls_tree", "pat"};
static const char *const PROTOCOL_NAMES[NCCL_PROTOCOLS] = {"ll", "ll128", "simple"};

/* Of the compact text, in the order of the names. */
static const char FUNCTION_LETTERS[] = "BRGSA", ALGORITHM_LETTERS[] = "TRDCNVP", PROTOCOL_LETTERS[] = "LHS";

static const char HEADER[] = "# ncclt-table ";

const char *ncclt_algorithm_name(int algorithm) {
  return algorithm >= 0 && algorithm < NCCL_ALGORITHMS ? ALGORITHM_NAMES[algorithm] : NULL;
}

const char *ncclt_protocol_name(int protocol) {
  return protocol >= 0 && protocol < NCCL_PROTOCOLS ? PROTOCOL_NAMES[protocol] : NULL;
}

/* NCCL_VERSION of nccl.h: X*1000+Y*100+Z up to 2.8, X*10000+Y*100+Z since. */
static int is_old_version(uint64_t major, uint64_t minor) { return major <= 2 && minor <= 8; }

void ncclt_version_text(int version, char text[32]) {
  int old = version < 10000;
  if (version <= 0) text[0] = 0;
  else snprintf(text, 32, "%d.%d.%d", version / (old ? 1000 : 10000), version / 100 % (old ? 10 : 100), version % 100);
}

/* A piece of the text; not terminated. */
struct span {
  const char *at;
  size_t length;
};

/* One row, still with its conditions; -1 = any. */
struct row {
  uint64_t first, last;
  int64_t nodes, ranks;
  int function;
  struct ncclt_choice choice;
};

__attribute__((format(printf, 2, 3))) static int refuse(char *reason, const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(reason, NCCLT_REASON_SIZE, format, values);
  va_end(values);
  return -1;
}

static struct span trimmed(struct span text) {
  while (text.length && (text.at[0] == ' ' || text.at[0] == '\t')) text.at++, text.length--;
  while (text.length && strchr(" \t\r", text.at[text.length - 1]) && text.at[text.length - 1]) text.length--;
  return text;
}

/* Cut the text off before the next `separator` and move the rest behind it. */
static struct span next_piece(struct span *rest, char separator) {
  const char *end = memchr(rest->at, separator, rest->length);
  struct span piece = {rest->at, end ? (size_t)(end - rest->at) : rest->length};
  size_t used = piece.length + (end ? 1 : 0);
  rest->at += used;
  rest->length -= used;
  return piece;
}

static int position_in(const char *const *names, int count, struct span word) {
  for (int i = 0; i < count; i++)
    if (strlen(names[i]) == word.length && memcmp(names[i], word.at, word.length) == 0) return i;
  return -1;
}

/* Read a plain decimal number of 64 bits: no sign, no blank, no suffix. */
static int read_size(struct span word, uint64_t *value) {
  uint64_t number = 0;
  if (word.length == 0) return -1;
  for (size_t i = 0; i < word.length; i++) {
    unsigned digit = (unsigned char)word.at[i] - (unsigned)'0';
    if (digit > 9 || number > (UINT64_MAX - digit) / 10) return -1;
    number = number * 10 + digit;
  }
  *value = number;
  return 0;
}

/* Read -1 or a number up to `most`. */
static int read_condition(struct span word, uint64_t most, int64_t *value) {
  uint64_t number;
  if (word.length == 2 && memcmp(word.at, "-1", 2) == 0) {
    *value = -1;
    return 0;
  }
  if (read_size(word, &number) || number > most) return -1;
  *value = (int64_t)number;
  return 0;
}

static uint8_t limited_channels(uint64_t channels) {
  return (uint8_t)(channels > NCCLT_MOST_CHANNELS ? NCCLT_MOST_CHANNELS : channels);
}

/* Read one row; returns what is wrong with it, NULL if nothing is. */
static const char *read_row(struct span line, struct row *row) {
  struct span fields[10], rest = line;
  int count = 0, whole;
  int64_t channels, any;
  do {
    if (count == 10) return "it has more than 10 fields";
    whole = memchr(rest.at, ',', rest.length) != NULL;
    fields[count++] = trimmed(next_piece(&rest, ','));
  } while (whole);
  if (count < 8) return "it has fewer than 8 fields";
  row->function = position_in(FUNCTION_NAMES, NCCL_FUNCTIONS, fields[0]);
  int algorithm = position_in(ALGORITHM_NAMES, NCCL_ALGORITHMS, fields[3]);
  int protocol = position_in(PROTOCOL_NAMES, NCCL_PROTOCOLS, fields[4]);
  if (row->function < 0) return "its collective is not known";
  if (read_size(fields[1], &row->first) || read_size(fields[2], &row->last)) return "a size is no decimal number";
  if (row->first > row->last) return "min_bytes is above max_bytes";
  if (algorithm < 0) return "its algorithm is not known";
  if (protocol < 0) return "its protocol is not known";
  if (read_condition(fields[5], UINT32_MAX, &channels) || channels == 0) return "channels is neither -1 nor above 0";
  if (read_condition(fields[6], UINT32_MAX, &row->nodes)) return "nNodes is neither -1 nor a number";
  if (read_condition(fields[7], UINT32_MAX, &row->ranks)) return "nRanks is neither -1 nor a number";
  for (int i = 8; i < count; i++) /* numPipeOps, which ncclt never tunes on, and regBuff, which differs between ranks */
    if (read_condition(fields[i], 0, &any) || any != -1) return "numPipeOps and regBuff can only be -1";
  row->choice.algorithm = (uint8_t)algorithm;
  row->choice.protocol = (uint8_t)protocol;
  row->choice.channels = limited_channels(channels < 0 ? 0 : (uint64_t)channels);
  return NULL;
}

static void keep_id(struct ncclt_table *table, struct span word) {
  size_t length = word.length < sizeof table->id ? word.length : sizeof table->id - 1;
  memcpy(table->id, word.at, length);
  table->id[length] = 0;
}

/* What the first line says about the table. */
struct header {
  int seen, has_rows, has_checksum;
  uint64_t rows, checksum;
};

static int read_version(struct span word, int *version) {
  uint64_t part[3] = {0, 0, 0};
  for (int i = 0; i < 3 && word.length; i++)
    if (read_size(next_piece(&word, '.'), &part[i]) || part[i] > 99) return -1;
  if (word.length) return -1;
  *version = (int)(part[0] * (is_old_version(part[0], part[1]) ? 1000 : 10000) + part[1] * 100 + part[2]);
  return 0;
}

static int read_hexadecimal(struct span word, uint64_t *value) {
  static const char DIGITS[] = "0123456789abcdef";
  if (word.length != 16) return -1;
  *value = 0;
  for (size_t i = 0; i < word.length; i++) {
    const char *digit = memchr(DIGITS, word.at[i], 16);
    if (!digit) return -1;
    *value = *value << 4 | (uint64_t)(digit - DIGITS);
  }
  return 0;
}

/* Read `1 id=r-1f3c nccl=2.28.9 nodes=2 ranks=8 rows=3 fnv1a=0123456789abcdef`; words that are not known are for people
 * or for later versions of the plugin. */
static int read_header(struct span text, struct header *header, struct ncclt_table *table, char *reason) {
  uint64_t format;
  text = trimmed(text);
  struct span word = next_piece(&text, ' ');
  if (read_size(word, &format) || format != NCCLT_TABLE_FORMAT)
    return refuse(reason, "its format is not %d, the one that this plugin reads", NCCLT_TABLE_FORMAT);
  while (text.length) {
    word = next_piece(&text, ' ');
    struct span key = next_piece(&word, '=');
    int wrong = 0;
    if (key.length == 2 && memcmp(key.at, "id", 2) == 0) {
      keep_id(table, word);
    } else if (key.length == 4 && memcmp(key.at, "nccl", 4) == 0) {
      wrong = read_version(word, &table->nccl_version);
    } else if (key.length == 4 && memcmp(key.at, "rows", 4) == 0) {
      wrong = read_size(word, &header->rows);
      header->has_rows = 1;
    } else if (key.length == 5 && memcmp(key.at, "fnv1a", 5) == 0) {
      wrong = read_hexadecimal(word, &header->checksum);
      header->has_checksum = 1;
    }
    if (wrong) return refuse(reason, "a value in its first line is damaged");
  }
  header->seen = 1;
  return 0;
}

/* Read header and rows; returns how many rows, -1 with a reason. */
static int read_rows(struct row *rows, struct ncclt_table *table, const char *text, size_t length, char *reason) {
  struct header header = {0};
  struct span rest = {text, length};
  int count = 0;
  table->checksum = NCCLT_FNV1A_BASIS;
  for (int number = 1; rest.length; number++) {
    struct span line = trimmed(next_piece(&rest, '\n'));
    if (line.length == 0) continue;
    if (line.at[0] == '#') {
      size_t mark = sizeof HEADER - 1;
      if (!header.seen && count == 0 && line.length > mark && memcmp(line.at, HEADER, mark) == 0)
        if (read_header((struct span){line.at + mark, line.length - mark}, &header, table, reason)) return -1;
      continue;
    }
    if (line.length > NCCLT_MOST_ROW_CHARACTERS)
      return refuse(reason, "line %d has more than %d characters", number, NCCLT_MOST_ROW_CHARACTERS);
    if (count == NCCLT_MOST_ROWS) return refuse(reason, "it has more than %d rows", NCCLT_MOST_ROWS);
    const char *wrong = read_row(line, &rows[count]);
    if (wrong) return refuse(reason, "line %d: %s", number, wrong);
    table->checksum = ncclt_fnv1a(ncclt_fnv1a(table->checksum, line.at, line.length), "\n", 1);
    count++;
  }
  if (header.has_rows && header.rows != (uint64_t)count)
    return refuse(reason, "it has %d rows and should have %" PRIu64 ": it is cut off or was edited", count, header.rows);
  if (header.has_checksum && header.checksum != table->checksum)
    return refuse(reason, "its rows do not fit its checksum: it is damaged or was edited");
  if (count == 0 && !header.has_rows) return refuse(reason, "it has no rows");
  table->rows = (uint32_t)count;
  return count;
}

/* Read a number in base 36 and move behind it; returns 1, 0 where there is none, -1 where it is above 64 bits. */
static int read_base36(struct span *text, uint64_t *value) {
  static const char DIGITS[] = "0123456789abcdefghijklmnopqrstuvwxyz";
  const char *start = text->at, *digit;
  *value = 0;
  for (; text->length && (digit = memchr(DIGITS, *text->at, 36)); text->at++, text->length--) {
    uint64_t next = (uint64_t)(digit - DIGITS);
    if (*value > (UINT64_MAX - next) / 36) return -1;
    *value = *value * 36 + next;
  }
  return text->at > start;
}

/* Return the position of the next letter and move behind it, -1 where it is not one of these. */
static int read_letter(struct span *text, const char *letters) {
  const char *found = text->length && *text->at ? strchr(letters, *text->at) : NULL;
  if (!found) return -1;
  text->at++, text->length--;
  return (int)(found - letters);
}

/* The largest size that every reader of the table for people takes; stands for "no upper end". */
static const uint64_t NO_UPPER_END = INT64_MAX;

/* Decode one row behind `before`, the last size of the row before it (NULL = it is the first); returns 0, -1 if damaged.
 * The checksum is taken over the row as people read it. */
static int decode_row(struct span text, const uint64_t *before, struct row *row, uint64_t *checksum) {
  uint64_t number, channels;
  int has_number = read_base36(&text, &number), has_start = 0;
  if (has_number > 0 && text.length && *text.at == '-') {
    row->first = number;
    text.at++, text.length--;
    has_start = 1;
    has_number = read_base36(&text, &number);
  }
  int algorithm = read_letter(&text, ALGORITHM_LETTERS), protocol = read_letter(&text, PROTOCOL_LETTERS);
  int has_channels = read_base36(&text, &channels);
  if (has_number < 0 || algorithm < 0 || protocol < 0 || has_channels < 0 || text.length) return -1;
  if (has_channels && (channels == 0 || channels > UINT32_MAX)) return -1;
  if (!has_start && before && *before == UINT64_MAX) return -1;
  if (!has_start) row->first = before ? *before + 1 : 0;
  row->last = has_number ? number : NO_UPPER_END;
  if (row->first > row->last) return -1;
  row->choice = (struct ncclt_choice){(uint8_t)algorithm, (uint8_t)protocol, limited_channels(channels)};
  char line[NCCLT_MOST_ROW_CHARACTERS + 2], channels_text[24] = "-1";
  if (has_channels) snprintf(channels_text, sizeof channels_text, "%" PRIu64, channels);
  int length = snprintf(line, sizeof line, "%s,%" PRIu64 ",%" PRIu64 ",%s,%s,%s,%" PRId64 ",%" PRId64 "\n",
                        FUNCTION_NAMES[row->function], row->first, row->last, ALGORITHM_NAMES[algorithm],
                        PROTOCOL_NAMES[protocol], channels_text, row->nodes, row->ranks);
  *checksum = ncclt_fnv1a(*checksum, line, (size_t)length);
  return 0;
}

/* Read `RANKS.NODES`, 0 = any, up to the next character that belongs to neither. */
static int read_shape(struct span *text, int64_t *ranks, int64_t *nodes) {
  uint64_t part[2];
  for (int i = 0; i < 2; i++) {
    size_t length = 0;
    while (length < text->length && text->at[length] >= '0' && text->at[length] <= '9') length++;
    if (read_size((struct span){text->at, length}, &part[i]) || part[i] > UINT32_MAX) return -1;
    text->at += length, text->length -= length;
    if (i == 0 && (!text->length || *text->at != '.')) return -1;
    if (i == 0) text->at++, text->length--;
  }
  *ranks = part[0] ? (int64_t)part[0] : -1;
  *nodes = part[1] ? (int64_t)part[1] : -1;
  return 0;
}

/* Decode the compact text; returns how many rows, -1 with a reason. */
static int decode_rows(struct row *rows, struct ncclt_table *table, const char *text, size_t length, char *reason) {
  struct span rest = {text, length};
  uint64_t format, checksum;
  int64_t ranks, nodes;
  int count = 0;
  if (length > NCCLT_MOST_COMPACT_BYTES)
    return refuse(reason, "it has more than %d bytes", NCCLT_MOST_COMPACT_BYTES);
  if (read_size(next_piece(&rest, ':'), &format) || format != NCCLT_TABLE_FORMAT)
    return refuse(reason, "its format is not %d, the one that this plugin reads", NCCLT_TABLE_FORMAT);
  keep_id(table, next_piece(&rest, ':'));
  int wrong = read_version(next_piece(&rest, ':'), &table->nccl_version);
  struct span job = next_piece(&rest, ':'), sections = next_piece(&rest, ':');
  if (wrong || read_shape(&job, &ranks, &nodes) || job.length || read_hexadecimal(rest, &checksum))
    return refuse(reason, "it is damaged or was cut off");
  table->checksum = NCCLT_FNV1A_BASIS;
  for (int number = 1; sections.length; number++) {
    struct span section = next_piece(&sections, '_');
    wrong = read_shape(&section, &ranks, &nodes);
    int function = wrong ? -1 : read_letter(&section, FUNCTION_LETTERS);
    if (function < 0 || !section.length) return refuse(reason, "section %d is damaged", number);
    const uint64_t *before = NULL;
    while (section.length) {
      if (count == NCCLT_MOST_ROWS) return refuse(reason, "it has more than %d rows", NCCLT_MOST_ROWS);
      struct row *row = &rows[count++];
      row->nodes = nodes, row->ranks = ranks, row->function = function;
      if (decode_row(next_piece(&section, '+'), before, row, &table->checksum))
        return refuse(reason, "row %d is damaged", count);
      before = &row->last;
    }
  }
  if (count == 0) return refuse(reason, "it has no rows");
  if (checksum != table->checksum) return refuse(reason, "its rows do not fit its checksum: it is damaged");
  table->rows = (uint32_t)count;
  return count;
}

static int by_value(const void *left, const void *right) {
  uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
  return (a > b) - (a < b);
}

static uint32_t position_of(const uint64_t *sorted, uint32_t count, uint64_t value) {
  const uint64_t *found = bsearch(&value, sorted, count, sizeof *sorted, by_value);
  return (uint32_t)(found - sorted);
}

/* Return the first piece from `at` on that no earlier row owns, shortening the way for the next search. */
static uint32_t next_free(uint32_t *next, uint32_t at) {
  while (next[at] != at) at = next[at] = next[next[at]];
  return at;
}

/* Turn rows, first one first, into disjoint ranges: every piece between two ends belongs to the first row over it. */
static int compile_lane(struct ncclt_lane *lane, const struct row **rows, uint32_t count) {
  if (count == 0) return 0;
  uint32_t most = 2 * count, starts = 0;
  uint64_t *start = malloc((most + 1) * sizeof *start);
  uint32_t *next = malloc((most + 1) * sizeof *next);
  const struct row **owner = calloc(most + 1, sizeof *owner);
  lane->first = malloc(most * sizeof *lane->first);
  lane->last = malloc(most * sizeof *lane->last);
  lane->choice = malloc(most * sizeof *lane->choice);
  int lacking = !start || !next || !owner || !lane->first || !lane->last || !lane->choice;
  for (uint32_t i = 0; !lacking && i < count; i++) {
    start[starts++] = rows[i]->first;
    if (rows[i]->last != UINT64_MAX) start[starts++] = rows[i]->last + 1;
  }
  if (!lacking) {
    uint32_t pieces = 0;
    qsort(start, starts, sizeof *start, by_value);
    for (uint32_t i = 0; i < starts; i++)
      if (i == 0 || start[i] != start[pieces - 1]) start[pieces++] = start[i];
    for (uint32_t i = 0; i <= pieces; i++) next[i] = i;
    for (uint32_t i = 0; i < count; i++) {
      uint32_t end = rows[i]->last == UINT64_MAX ? pieces : position_of(start, pieces, rows[i]->last + 1);
      uint32_t piece = next_free(next, position_of(start, pieces, rows[i]->first));
      for (; piece < end; piece = next_free(next, piece)) {
        owner[piece] = rows[i];
        next[piece] = piece + 1;
      }
    }
    for (uint32_t i = 0; i < pieces; i++) {
      if (!owner[i]) continue;
      uint64_t last = i + 1 < pieces ? start[i + 1] - 1 : UINT64_MAX;
      if (i && owner[i - 1] == owner[i]) {
        lane->last[lane->ranges - 1] = last;
        continue;
      }
      lane->first[lane->ranges] = start[i];
      lane->last[lane->ranges] = last;
      lane->choice[lane->ranges++] = owner[i]->choice;
    }
  }
  free(start);
  free(next);
  free(owner);
  return lacking ? -1 : 0;
}

static int is_for(const struct row *row, uint64_t nodes, uint64_t ranks) {
  return (row->nodes < 0 || (uint64_t)row->nodes == nodes) && (row->ranks < 0 || (uint64_t)row->ranks == ranks);
}

static int compile(struct ncclt_table *table, const struct row *rows, uint32_t count, const struct row **chosen,
                   uint64_t nodes, uint64_t ranks) {
  for (int function = 0; function < NCCL_FUNCTIONS; function++) {
    uint32_t fitting = 0;
    for (uint32_t i = 0; i < count; i++)
      if (rows[i].function == function && is_for(&rows[i], nodes, ranks)) chosen[fitting++] = &rows[i];
    table->rows_here += fitting;
    if (compile_lane(&table->lanes[function], chosen, fitting)) return -1;
  }
  return 0;
}

typedef int row_reader(struct row *rows, struct ncclt_table *table, const char *text, size_t length, char *reason);

static int read_table(row_reader *reader, struct ncclt_table *table, const char *text, size_t length, uint64_t nodes,
                      uint64_t ranks, char *reason) {
  memset(table, 0, sizeof *table);
  struct row *rows = malloc(NCCLT_MOST_ROWS * sizeof *rows);
  const struct row **chosen = malloc(NCCLT_MOST_ROWS * sizeof *chosen);
  int count = rows && chosen ? reader(rows, table, text, length, reason) : refuse(reason, "no memory is left");
  int failed = count < 0;
  if (!failed && compile(table, rows, (uint32_t)count, chosen, nodes, ranks))
    failed = refuse(reason, "no memory is left") != 0;
  free(rows);
  free(chosen);
  if (failed) ncclt_table_free(table);
  return failed ? -1 : 0;
}

int ncclt_table_parse(struct ncclt_table *table, const char *text, size_t length, uint64_t nodes, uint64_t ranks,
                      char reason[NCCLT_REASON_SIZE]) {
  return read_table(read_rows, table, text, length, nodes, ranks, reason);
}

int ncclt_table_decode(struct ncclt_table *table, const char *text, uint64_t nodes, uint64_t ranks,
                       char reason[NCCLT_REASON_SIZE]) {
  return read_table(decode_rows, table, text, strlen(text), nodes, ranks, reason);
}

int ncclt_table_read(struct ncclt_table *table, const char *path, const char *checksum, uint64_t nodes, uint64_t ranks,
                     char reason[NCCLT_REASON_SIZE]) {
  memset(table, 0, sizeof *table);
  int file = ncclt_open_trusted(path, reason);
  if (file < 0) return -1;
  char *text = malloc(NCCLT_MOST_TABLE_BYTES + 1);
  size_t length = 0;
  ssize_t got = text ? 1 : 0;
  while (got > 0 && length <= NCCLT_MOST_TABLE_BYTES) {
    got = read(file, text + length, NCCLT_MOST_TABLE_BYTES + 1 - length);
    if (got < 0 && errno == EINTR) got = 1;
    else if (got > 0) length += (size_t)got;
  }
  int failed;
  uint64_t wanted;
  if (!text) failed = refuse(reason, "no memory is left");
  else if (got < 0) failed = refuse(reason, "it cannot be read: %s", strerror(errno));
  else if (length > NCCLT_MOST_TABLE_BYTES) failed = refuse(reason, "it has more than %d bytes", NCCLT_MOST_TABLE_BYTES);
  else failed = ncclt_table_parse(table, text, length, nodes, ranks, reason);
  if (!failed && checksum &&
      (read_hexadecimal((struct span){checksum, strlen(checksum)}, &wanted) || wanted != table->checksum)) {
    failed = refuse(reason, "its checksum is %016" PRIx64 ", and %.40s was announced", table->checksum, checksum);
    ncclt_table_free(table);
  }
  free(text);
  close(file);
  return failed;
}

void ncclt_table_free(struct ncclt_table *table) {
  for (int function = 0; function < NCCL_FUNCTIONS; function++) {
    struct ncclt_lane *lane = &table->lanes[function];
    free(lane->first);
    free(lane->last);
    free(lane->choice);
  }
  memset(table, 0, sizeof *table);
}
