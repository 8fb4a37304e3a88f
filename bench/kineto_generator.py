"""Writes a synthetic Kineto trace of any size, laid out as torch 2.8 writes them.

    python bench/kineto_generator.py trace.json [--size-mb 1000] [--seed 1]

One rank of eight trains a transformer under DDP, profiled with shapes and stacks: CPU operators, Python functions,
CUDA calls, kernels, flow arrows, steps, and for each layer an all_reduce in its four guises (`c10d::` operator,
`record_param_comms`, annotation, kernel). One kernel per step has no metadata, as where NCCL batches calls, so that
a reader must look for the CUDA call that launched it. As in real files all of the CPU comes before all of the GPU.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

LAYERS = 24
BUCKET_ELEMENTS = 6_553_600
"""Elements of the float all_reduce that follows each layer: DDP's default bucket of 25 MiB."""

EMBEDDING_ELEMENTS = 1_048_576
"""Elements of the float all_reduce at the end of each step."""

STEP_US = 180_000.0
_PID, _MAIN, _BACKWARD = 4711, 4711, 4802
_OPERATORS = (
    "aten::mm",
    "aten::addmm",
    "aten::native_layer_norm",
    "aten::add",
    "aten::_softmax",
    "aten::view",
    "aten::transpose",
    "autograd::engine::evaluate_function: AddmmBackward0",
)
_FUNCTIONS = (
    "torch/nn/modules/module.py({}): _wrapped_call_impl",
    "torch/nn/modules/linear.py({}): forward",
    'train.py({}): \\"step\\"',
    "torch/autograd/function.py({}): apply",
    "<built-in {}>",
)
_KERNELS = (
    "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda"
    "(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(float)#1}>(at::TensorIteratorBase&)>(int)",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, true>(float*, float const*, int)",
)
_HEAD = """
  {{
    "schemaVersion": 1,
    "deviceProperties": [
{devices}
    ],
      "distributedInfo": {{"backend": "nccl", "rank": 0, "world_size": 8, "pg_count": 1, "nccl_version": "2.27.3", \
"pg_config": [{{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 8, \
"ranks": [0, 1, 2, 3, 4, 5, 6, 7]}}]}},
      "record_shapes": 1,
      "with_stack": 1,
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1750000000000000000,
  "traceEvents": ["""
_DEVICE = """    {{
      "id": {}, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 84943110144,
      "computeMajor": 9, "computeMinor": 0, "warpSize": 32, "numSms": 132
    }}"""
_TAIL = """
  {{
    "name": "process_name", "ph": "M", "ts": 0.000, "pid": {pid}, "tid": 0,
    "args": {{
      "name": "python3.12"
    }}
  }},
  {{
    "name": "Record Window End", "ph": "i", "s": "g",
    "pid": "", "tid": "", "ts": {end:.3f}
  }}
  ],
  "traceName": "trace.json"
}}"""


def write_trace(path: Path, *, size_mb: int, seed: int = 1) -> int:
    """Write a trace of about `size_mb` million bytes, at least one step; return its steps."""
    one_step = sum(len(event) for part in (_cpu_events, _gpu_events) for event in part(0, random.Random(seed)))
    steps = max(1, round(size_mb * 1_000_000 / one_step))
    with path.open("w", encoding="utf-8", newline="\n", buffering=1 << 20) as file:
        file.write(_HEAD.format(devices=",\n".join(_DEVICE.format(number) for number in range(8))))
        for part in (_cpu_events, _gpu_events):
            randomness = random.Random(seed)
            for step in range(steps):
                file.writelines(part(step, randomness))
        file.write(_TAIL.format(pid=_PID, end=steps * STEP_US))
    return steps


def expected_calls_per_step() -> dict[int, float]:
    """Return bytes of an all_reduce -> its calls per step, which a reader must find."""
    return {BUCKET_ELEMENTS * 4: LAYERS, EMBEDDING_ELEMENTS * 4: 1}


def _buckets() -> list[int]:
    return [BUCKET_ELEMENTS] * LAYERS + [EMBEDDING_ELEMENTS]


def _cpu_events(step: int, randomness: random.Random) -> Iterator[str]:
    begin = step * STEP_US
    yield _event(
        "user_annotation", f"ProfilerStep#{step + 10}", begin, STEP_US - 50, f'"External id": {step}, "Ev Idx": 0'
    )
    for number, elements in enumerate(_buckets()):
        at = begin + 100 + number * STEP_US / (LAYERS + 2)
        for index in range(110):
            name = _FUNCTIONS[index % len(_FUNCTIONS)].format(randomness.randrange(2000))
            ids = f'"Python parent id": {index + 7}, "Python id": {index + 8}, "Ev Idx": {number * 300 + index}'
            yield _event("python_function", name, at + index, 250.0 - index, ids)
        for index in range(70):
            shape = [randomness.choice((1, 8, 1024)), randomness.choice((1024, 4096))]
            args = (
                f'"External id": {_identity(step, number, index)},"Record function id": {index}, '
                f'"Concrete Inputs": ["", "", "", "1"], "Input type": ["float", "c10::BFloat16", "Scalar", "Scalar"], '
                f'"Input Strides": [[{shape[1]}, 1], [1], [], []], "Input Dims": [{shape}, [{shape[1]}], [], []], '
                f'"Ev Idx": {number * 300 + index}'
            )
            yield _event("cpu_op", _OPERATORS[index % len(_OPERATORS)], at + 250 + 4 * index, 3.5, args)
        yield from _call(step, number, elements, at + 600)


def _call(step: int, number: int, elements: int, at: float) -> Iterator[str]:
    """Yield one all_reduce as the CPU shows it: three events, each inside the one before."""
    shapes = f'"Input type": ["float"], "Input Strides": [[1]], "Input Dims": [[{elements}]]'
    own = f'"External id": {_identity(step, number, 200)},"Record function id": 0'
    tid = _BACKWARD
    yield _event("cpu_op", "c10d::allreduce_", at, 90, '"External id": 0, "Input type": ["TensorList"]', tid=tid)
    yield _event("cpu_op", "record_param_comms", at + 5, 80, f"{own}, {_metadata(elements)}", tid=tid)
    yield _event("user_annotation", "nccl:all_reduce", at + 10, 70, f'"External id": 1, {shapes}', tid=tid)


def _gpu_events(step: int, randomness: random.Random) -> Iterator[str]:
    begin = step * STEP_US
    for number, elements in enumerate(_buckets()):
        at = begin + 100 + number * STEP_US / (LAYERS + 2)
        for index in range(35):
            name, start = _KERNELS[index % len(_KERNELS)], at + 260 + 8 * index
            identity, took = _identity(step, number, index), randomness.uniform(2, 90)
            yield from _launched(name, identity, start, start + 900, took, tid=_MAIN)
        own, start = _identity(step, number, 200), at + 620
        # The last call of a step lost its metadata.
        known = number < LAYERS
        name = (
            f"ncclDevKernel_{'AllReduce_Sum_f32_RING_LL' if known else 'Generic_1'}(ncclDevKernelArgsStorage<4096ul>)"
        )
        metadata = _metadata(elements) if known else ""
        yield from _launched(name, own, start, start + 900, 1500.0, tid=_BACKWARD, stream=40, metadata=metadata)


def _launched(
    name: str,
    identity: int,
    cpu_us: float,
    gpu_us: float,
    took_us: float,
    *,
    tid: int,
    stream: int = 7,
    metadata: str = "",
) -> Iterator[str]:
    """Yield a CUDA call, its kernel, and the arrow between them."""
    correlation = identity + 50_000_000
    ids = f'"External id": {identity if metadata or stream == 7 else correlation}'
    yield _event(
        "cuda_runtime", "cudaLaunchKernelExC", cpu_us, 4.2, f'{ids}, "cbid": 430, "correlation": {correlation}', tid=tid
    )
    args = (
        f'{ids},"queued": 0, "device": 0, "context": 1,\n      "stream": {stream}, "correlation": {correlation},\n'
        f'      "registers per thread": 96, "shared memory": 40000, "blocks per SM": 1.939394,\n'
        f'      "grid": [256, 1, 1],\n      "block": [128, 1, 1],\n      "est. achieved occupancy %": 12'
        + (f",\n      {metadata}" if metadata else "")
    )
    yield _event("kernel", name, gpu_us, took_us, args, pid=0, tid=stream)
    for phase, pid, thread, at in (("s", _PID, tid, cpu_us), ("f", 0, stream, gpu_us)):
        end = ', "bp": "e"' if phase == "f" else ""
        yield (
            f'\n  {{\n    "ph": "{phase}", "id": {correlation}, "pid": {pid}, "tid": {thread}, "ts": {at:.3f},\n'
            f'    "cat": "ac2g", "name": "ac2g"{end}\n  }},'
        )


def _identity(step: int, number: int, index: int) -> int:
    return (step * (LAYERS + 1) + number) * 256 + index + 2


def _metadata(elements: int) -> str:
    facts = {
        "Collective name": "allreduce",
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": 8,
        "dtype": "Float",
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
        "Global rank start": 0,
        "Global rank stride": 1,
        "Rank": 0,
    }
    return json.dumps(facts)[1:-1]


def _event(category: str, name: str, at: float, took_us: float, args: str, *, pid: int = _PID, tid: int = _MAIN) -> str:
    return (
        f'\n  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {at:.3f}, "dur": {took_us:.3f},\n    "args": {{\n      {args}\n    }}\n  }},'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--size-mb", type=int, default=1000, help="million bytes")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    steps = write_trace(arguments.path, size_mb=arguments.size_mb, seed=arguments.seed)
    print(f"{arguments.path}: {arguments.path.stat().st_size / 1e6:.0f} MB, {steps} steps")


if __name__ == "__main__":
    main()
