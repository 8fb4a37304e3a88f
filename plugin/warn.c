#include "warn.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void ncclt_warn(nccl_logger log, const char *format, ...) {
  char line[1200] = "TUNER/ncclt: ";
  size_t length = strlen(line);
  va_list values;
  va_start(values, format);
  vsnprintf(line + length, sizeof line - length, format, values);
  va_end(values);
  if (log) log(NCCL_LOG_WARN, NCCL_LOG_ALL, __FILE__, __LINE__, "%s", line);
}
