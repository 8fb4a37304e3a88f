/* What the stand-ins of the CUDA driver and of NCCL share: a stream is a clock that only moves when work is put on it. */
#ifndef FAKE_GPU_H
#define FAKE_GPU_H

struct fake_stream {
  double now_us; /* when all that was put on the stream is done */
  int hung;      /* something on it never ends */
};

#endif
