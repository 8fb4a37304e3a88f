"""The simulated launcher with times that leave a gain to find: NCCL's own choice is slower by a known factor.

NCCL picks the fastest setting of its cost model, so by its times the default always wins. Here every tunable
message of a size in `WRONG_BYTES` takes `GAIN` times as long while the choice is NCCL's own; who forces the same
algorithm and protocol gains just that.

As a program, for the stand-in of nccl-tests: one request as JSON, the times as JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from ncclt.core.algo_proto_text import remaining_algo_protos
from ncclt.core.cluster import Cluster
from ncclt.core.message import Message, parse_dtype
from ncclt.core.setting import Setting
from ncclt.measure import simulated
from ncclt.measure.benchmarks.nccl_tests.features import PROGRAMS

GAIN = 1.25
WRONG_BYTES = range(1, 1 << 28)

_model_us = simulated.model_us


def known_us(cluster: Cluster, setting: Setting, message: Message) -> float:
    """Return the time of a call without noise, µs."""
    time_us = _model_us(cluster, replace(setting, parameters=()), message)
    forced = setting.applied_to(message.collective, version=cluster.version)
    is_own_choice = forced.algorithm is None and forced.protocol is None
    is_wrong = message.collective.is_tunable and is_own_choice and message.size_bytes in WRONG_BYTES
    return time_us * GAIN if is_wrong else time_us


def install() -> None:
    """Give these times to every simulated runner of this process."""
    simulated.model_us = known_us  # type: ignore[assignment]


def uninstall() -> None:
    """Give simulated runners the times of NCCL's cost model back."""
    simulated.model_us = _model_us


def setting_for(forced, collective, version):
    """The setting that variables force on one collective."""
    variables = dict(word.split("=", 1) for word in forced.split())
    left = remaining_algo_protos(variables, collective, version)
    algorithms, protocols = {algorithm for algorithm, _ in left}, {protocol for _, protocol in left}
    channels = next((int(v) for k, v in variables.items() if k in ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS")), None)
    return Setting(
        algorithm=algorithms.pop() if "NCCL_ALGO" in variables and len(algorithms) == 1 else None,
        protocol=protocols.pop() if "NCCL_PROTO" in variables and len(protocols) == 1 else None,
        channels=channels,
        parameters=tuple((k[5:], int(v)) for k, v in variables.items() if k in ("NCCL_BUFFSIZE", "NCCL_NTHREADS")),
    )


def times(request):
    cluster = Cluster(**request["cluster"] | {"sources": (), "site_variables": ()})
    collective = next(collective for collective, program in PROGRAMS.items() if program == request["program"])
    setting = setting_for(request["forced"], collective, cluster.version)
    found = {}
    for size in request["sizes"]:
        message = Message(
            collective=collective,
            dtype=parse_dtype(request["dtype"]),
            size_bytes=size,
            group_size=request["ranks"],
            spans_nodes=request["spans"],
        )
        found[size] = known_us(cluster, setting, message)
    return found


if __name__ == "__main__":
    print(json.dumps(times(json.loads(sys.argv[1]))))
