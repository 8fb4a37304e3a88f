"""Times of the simulated cluster for the stand-in: one request as JSON, the times as JSON; starts slowly, so cached."""

import json
import sys

from ncclt.core.algo_proto_text import remaining_algo_protos
from ncclt.core.cluster import Cluster
from ncclt.core.message import Message, parse_dtype
from ncclt.core.setting import Setting
from ncclt.measure.benchmarks.nccl_tests.features import PROGRAMS
from ncclt.measure.simulated.runner import SimulatedRunner


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
    runner = SimulatedRunner(cluster, seed=0)
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
        found[size] = runner.expected_us(setting, message)
    return found


if __name__ == "__main__":
    print(json.dumps(times(json.loads(sys.argv[1]))))
