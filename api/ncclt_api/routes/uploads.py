"""Uploaded profiles and traces: read by a process with limits of time and memory, then kept as workloads."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from ncclt.core.api_key import Role
from ncclt.core.name import NAME_PATTERN
from ncclt.core.revision import Actor
from ncclt.core.workload import Workload
from ncclt.errors import InputError, NotFoundError, StoreError, reason
from ncclt.store.store import Store
from ncclt_api.access import needs, who
from ncclt_api.dependencies import CurrentStore, StrictQuery
from ncclt_api.json_models import CatalogueWorkload
from ncclt_api.routes import PROBLEMS
from ncclt_api.routes.catalogue import show_workload

router = APIRouter(prefix="/v1/workloads", tags=["catalogue"], responses=PROBLEMS, dependencies=needs(Role.TUNE))

READ_S = 60.0
"""Longest time that reading an upload may take."""

READ_BYTES = 2 * 1024**3
"""Memory of the process that reads it."""

_MOST_READERS = 2
_LESS = "send less: one rank, a few steps; or use `ncclt profile import` where there is room"
_LONGEST_ANSWER_BYTES = 32 * 1024 * 1024
_reading = asyncio.Semaphore(_MOST_READERS)

_LIMITED = """
import json, os, resource, sys
memory, seconds, path, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (memory, memory))
found = None
if os.path.getsize(path) <= 32 * 1024 * 1024:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (ValueError, RecursionError):
        pass  # a trace of some other kind
if isinstance(found, dict) and "messages" in found and "provenance" in found:
    from ncclt.core.workload import Workload
    from ncclt.errors import NccltError
    try:
        print(json.dumps(Workload.from_document({**found, "name": name}).to_document()))
    except NccltError as error:
        sys.exit(f"ncclt: {error.message}\\n  hint: {error.hint}")
else:
    words = ["profile", "import", path, "--name", name, "--dry-run", "--json", *sys.argv[5:]]
    os.execv(sys.executable, [sys.executable, "-m", "ncclt", *words])
"""
"""Reads a workload of ours itself, and leaves anything else to `ncclt profile import`; prints the workload."""


class UploadQuery(StrictQuery):
    """Query of an upload."""

    name: str = Field(pattern=f"^{NAME_PATTERN}$", description="of the workload")
    source: str | None = Field(
        None, max_length=40, pattern=r"^[a-z_]+$", description="kind of trace; null = by content"
    )
    steps: int | None = Field(None, ge=1, le=10**9, description="training steps in it, if it marks none")


@router.post(
    "",
    operation_id="uploadWorkload",
    summary="Keep a workload, from a profile in JSON or a trace, as the body",
    status_code=201,
    openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": {}}}},
    responses={
        200: {"model": CatalogueWorkload, "description": "the same workload was kept before"},
        409: PROBLEMS[404] | {"description": "another workload has this name"},
        413: PROBLEMS[404] | {"description": "longer than any upload may be"},
    },
)
async def upload_workload(
    query: Annotated[UploadQuery, Query()], store: CurrentStore, request: Request, response: Response
) -> CatalogueWorkload:
    """Read the upload and store it as a workload under its name."""
    with _temporary_file() as file:
        async for chunk in request.stream():
            await run_in_threadpool(file.write, chunk)
        await run_in_threadpool(file.flush)
        options = [f"--source={query.source}"] if query.source is not None else []
        options += [f"--steps={query.steps}"] if query.steps is not None else []
        workload = await _read(Path(file.name), query.name, options)
    is_new = await run_in_threadpool(keep_workload, store, workload, Actor(who=who(request)))
    response.status_code = 201 if is_new else 200
    return await run_in_threadpool(show_workload, store, workload)


async def read_uploaded(content: bytes, *, name: str) -> Workload:
    """Return the workload in an uploaded profile.

    Raises:
        InputError: it is invalid.
        StoreError: there is no room for it.
    """
    with _temporary_file(suffix=".json") as file:
        file.write(content)
        file.flush()
        return await _read(Path(file.name), name, [])


def keep_workload(store: Store, workload: Workload, by: Actor) -> bool:
    """Keep an uploaded workload; False = the same one is known under its name.

    Raises:
        DuplicateError: another one has its name.
    """
    with suppress(NotFoundError):
        if store.workloads.get(workload.name).digest() == workload.digest():
            return False
    store.workloads.add(workload, by=by)
    return True


@contextmanager
def _temporary_file(*, suffix: str = "") -> Iterator[IO[bytes]]:
    """Open a file that is removed at the end of the block, for a process that reads it.

    Raises:
        StoreError: it cannot be written.
    """
    try:
        with tempfile.NamedTemporaryFile(prefix="ncclt-upload-", suffix=suffix) as file:
            yield file
    except OSError as error:
        raise StoreError(
            f"the service has no room for the upload: {reason(error)}",
            hint="make room in its folder for temporary files, or start it with another one (TMPDIR)",
        ) from error


async def _read(path: Path, name: str, options: list[str]) -> Workload:
    argv = [sys.executable, "-c", _LIMITED, str(READ_BYTES), str(round(READ_S)), str(path), name]
    passed_on = ("PATH", "HOME", "TMPDIR", "LANG", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name in passed_on}
    async with _reading:
        process = await asyncio.create_subprocess_exec(
            *argv,
            *options,
            env={**environment, "OPENBLAS_NUM_THREADS": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LONGEST_ANSWER_BYTES,
            start_new_session=True,
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(), READ_S + 5.0)
        except TimeoutError:
            raise InputError(
                f"it was not read within {READ_S:.0f} s", hint="send less: one rank, a few steps"
            ) from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        raise _build_refusal(process.returncode, errors.decode(errors="replace"), path)
    return Workload.from_document(json.loads(output))


def _build_refusal(code: int, output: str, path: Path) -> InputError:
    if code in (-signal.SIGXCPU, -signal.SIGKILL) or "MemoryError" in output:
        return InputError(f"reading it takes more than {READ_S:.0f} s or {READ_BYTES // 1024**3} GiB", hint=_LESS)
    lines = [line.replace(str(path), "the upload").replace(path.name, "the upload") for line in output.splitlines()]
    message = next((line.removeprefix("ncclt: ") for line in lines if line.startswith("ncclt: ")), "it cannot be read")
    hint = next(
        (line.partition("hint: ")[2] for line in lines if "hint: " in line), "GET /v1/openapi.json names the parameters"
    )
    return InputError(message[:500], hint=hint[:500])
