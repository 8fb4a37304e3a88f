"""Write profiles/workloads/*.json from the shapes of the models' parameters, or check that they are up to date.

    python profiles/generate_workloads.py            write them
    python profiles/generate_workloads.py --check    exit 1 and name every file that differs

Needs `ncclt[models]`: PyTorch itself assigns the DDP buckets. No weights are loaded and nothing is fetched.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from shapes import nasnet, resnet, transformers

from ncclt.core.message import Collective, Message
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.profile.model.workload import FsdpUnit, buffer_messages, ddp_messages, fsdp_messages

WORKLOADS = Path(__file__).parent / "workloads"
CREATED = "2026-11-21"
"""A constant, so that the same shapes give the same files; change it with the shapes."""

BUCKET_CAP_MB, FIRST_BUCKET_MB = 25, 1
"""PyTorch's defaults (torch/nn/parallel/distributed.py)."""

Shapes = list[tuple[str, tuple[int, ...]]]


def _workload(name: str, messages: Iterable[MessageCalls], notes: Iterable[str] = (), **detail: str | int) -> Workload:
    return Workload(
        name=name,
        messages=tuple(messages),
        provenance=Provenance(
            source="model",
            created=CREATED,
            detail={
                key: str(value) for key, value in (*detail.items(), ("generator", "profiles/generate_workloads.py"))
            },
            notes=tuple(notes),
        ),
    )


def _elements(shapes: Shapes) -> int:
    return sum(math.prod(shape) for _name, shape in shapes)


def _ddp(name: str, model: str, framework: str, shapes: Shapes, buffers: dict[str, int]) -> Workload:
    """Return a model trained in float32 under DistributedDataParallel with its default options."""
    notes = ["one forward and one backward pass per step, no gradient accumulation"]
    if buffers:
        notes.append("buffers are broadcast before each forward pass (broadcast_buffers=True, the default)")
    return _workload(
        name,
        (*ddp_messages(shapes, "float32", BUCKET_CAP_MB, FIRST_BUCKET_MB), *buffer_messages(buffers)),
        notes,
        model=model,
        framework=framework,
        parameters=_elements(shapes),
        tensors=len(shapes),
        dtype="float32",
        sharding="none (DistributedDataParallel)",
        bucket_cap_mb=BUCKET_CAP_MB,
        first_bucket_mb=FIRST_BUCKET_MB,
    )


def _nasnet_unfused() -> Workload:
    shapes = nasnet.nasnet_mobile()
    return _workload(
        "nasnetmobile-unfused",
        _reduce_each(shapes),
        ["one all_reduce per tensor, as Horovod sends with HOROVOD_FUSION_THRESHOLD=0"],
        model="NASNetMobile",
        framework="Keras with Horovod",
        parameters=_elements(shapes),
        tensors=len(shapes),
        dtype="float32",
        sharding="none (Horovod, fusion off)",
    )


def _reduce_each(shapes: Shapes) -> tuple[MessageCalls, ...]:
    """Return one all_reduce of float32 per tensor, equal ones counted."""
    counts = Counter(4 * math.prod(shape) for _name, shape in shapes)
    return tuple(
        MessageCalls(
            message=Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size),
            calls_per_step=float(calls),
        )
        for size, calls in counts.items()
    )


def _llama_7b() -> Workload:
    layers, width = 32, 4096
    layer = _elements(transformers.llama_layer(width=width, hidden=11008, key_values=width))
    root = _elements(transformers.llama_root(width=width, vocabulary=32000))
    units = [
        FsdpUnit(name="layer", parameters=layer, count=layers),
        FsdpUnit(name="root", parameters=root, is_root=True),
    ]
    return _workload(
        "llama-7b",
        fsdp_messages(units, "bfloat16", "float32"),
        [
            "every decoder layer is a unit of its own",
            "parameters are gathered in bfloat16, gradients reduced in float32",
            "padding to a multiple of the world size is left out",
        ],
        model="Llama 7B",
        framework="PyTorch, transformers",
        parameters=layers * layer + root,
        dtype="bfloat16",
        reduce_dtype="float32",
        sharding="FSDP, full, one unit per layer",
    )


def workloads() -> tuple[Workload, ...]:
    """Return every shipped workload."""
    # BertEmbeddings keeps position_ids and token_type_ids, 512 int64 each.
    bert_buffers = {"int64": 2 * 512}
    # Each GPT2Attention keeps a causal mask of 1024 x 1024 bool and one float32 scalar.
    gpt2_buffers = {"bool": 12 * 1024 * 1024, "float32": 12}
    transformers_on_torch = "PyTorch, transformers"
    resnet101 = resnet.resnet(blocks=(3, 4, 23, 3))
    vit = transformers.vit(width=1024, layers=24, patch=32)
    return (
        _ddp(
            "bert",
            "bert-base-uncased (BertModel)",
            transformers_on_torch,
            transformers.bert(width=768, layers=12),
            bert_buffers,
        ),
        _ddp(
            "bert-large",
            "bert-large-uncased (BertModel)",
            transformers_on_torch,
            transformers.bert(width=1024, layers=24),
            bert_buffers,
        ),
        _ddp("gpt2", "gpt2 (GPT2LMHeadModel, tied head)", transformers_on_torch, transformers.gpt2(), gpt2_buffers),
        _ddp("vit-l-32", "vit_l_32", "PyTorch, torchvision", vit, {}),
        _ddp("resnet101", "resnet101", "PyTorch, torchvision", resnet101.parameters, resnet101.buffers()),
        _ddp("nasnetmobile", "NASNetMobile", "shapes of Keras, buckets of PyTorch", nasnet.nasnet_mobile(), {}),
        _nasnet_unfused(),
        _llama_7b(),
    )


def _text(workload: Workload) -> str:
    return json.dumps(workload.to_document(), indent=2) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write or check the files; return the exit status."""
    parser = argparse.ArgumentParser(description="Write profiles/workloads/*.json from parameter shapes.")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 where a file differs")
    options = parser.parse_args(arguments)
    texts = {WORKLOADS / f"{w.name}.json": _text(w) for w in workloads()}
    if not options.check:
        WORKLOADS.mkdir(exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.name}")
        return 0
    stale = [p.name for p, text in texts.items() if not p.exists() or p.read_text(encoding="utf-8") != text]
    stale += [path.name for path in sorted(WORKLOADS.glob("*.json")) if path not in texts]
    for name in stale:
        print(f"differs: {name}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
