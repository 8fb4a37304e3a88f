/* A CUDA driver without a GPU: memory of the host, streams that are clocks. Only what bench/gpu/device.py calls. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake_gpu.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_READY = 600 };

static double frozen; /* a stream that hung never answers, so its events are never done either */

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : SUCCESS; }
int cuDriverGetVersion(int *version) { return *version = 12080, SUCCESS; }
int cuDeviceGetCount(int *count) { return *count = 1, SUCCESS; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, ordinal ? 101 : SUCCESS; }
int cuDeviceGetName(char *name, int length, int device) {
  (void)device;
  snprintf(name, (size_t)length, "FAKE H200 (no GPU)");
  return SUCCESS;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  if (attribute == 75) *value = 9;       /* COMPUTE_CAPABILITY_MAJOR */
  else if (attribute == 76) *value = 0;  /* COMPUTE_CAPABILITY_MINOR */
  else if (attribute == 16) *value = 132; /* MULTIPROCESSOR_COUNT */
  else return INVALID_VALUE;
  return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return (void)device, *context = &frozen, SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int device) { return (void)device, SUCCESS; }
int cuCtxSetCurrent(void *context) { return context == &frozen ? SUCCESS : INVALID_VALUE; }

int cuMemAlloc_v2(uint64_t *address, size_t size) {
  void *made = malloc(size);
  *address = (uint64_t)(uintptr_t)made;
  return made ? SUCCESS : OUT_OF_MEMORY;
}
int cuMemFree_v2(uint64_t address) { return free((void *)(uintptr_t)address), SUCCESS; }
int cuMemGetInfo_v2(size_t *left, size_t *total) { return *left = (size_t)1 << 36, *total = (size_t)1 << 37, SUCCESS; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
  memcpy((void *)(uintptr_t)to, from, size);
  return SUCCESS;
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
  memcpy(to, (const void *)(uintptr_t)from, size);
  return SUCCESS;
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t size, void *stream) {
  (void)stream;
  memset((void *)(uintptr_t)to, value, size);
  return SUCCESS;
}

int cuStreamCreate(struct fake_stream **stream, unsigned flags) {
  if (flags != 1) return INVALID_VALUE; /* NON_BLOCKING: the legacy stream would make the ranks wait for each other */
  *stream = calloc(1, sizeof **stream);
  return *stream ? SUCCESS : OUT_OF_MEMORY;
}
int cuStreamQuery(struct fake_stream *stream) { return stream->hung ? NOT_READY : SUCCESS; }

int cuEventCreate(double **event, unsigned flags) {
  (void)flags;
  *event = calloc(1, sizeof **event);
  return *event ? SUCCESS : OUT_OF_MEMORY;
}
int cuEventRecord(double *event, struct fake_stream *stream) { return *event = stream->now_us, SUCCESS; }
int cuEventElapsedTime(float *milliseconds, double *start, double *stop) {
  *milliseconds = (float)((*stop - *start) / 1e3);
  return SUCCESS;
}
int cuGetErrorName(int code, const char **name) {
  *name = code == NOT_READY ? "CUDA_ERROR_NOT_READY" : code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
  return SUCCESS;
}
