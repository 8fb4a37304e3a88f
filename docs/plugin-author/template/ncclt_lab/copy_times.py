"""Program of the benchmark: times copies of each size in memory; a real one runs the collective."""

import sys
import time

for word in sys.argv[1:]:
    collective, dtype, size, group = word.split(":")
    buffer, samples_us = bytearray(int(size)), []
    for _ in range(4):
        started = time.perf_counter()
        bytes(buffer)
        samples_us.append(f"{(time.perf_counter() - started) * 1e6:.3f}")
    print("lab-copy", word, *samples_us, flush=True)
