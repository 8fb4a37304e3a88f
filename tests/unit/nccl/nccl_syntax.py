"""An oracle: what NCCL makes of NCCL_ALGO and NCCL_PROTO, written from a description of its parser alone.

It shares no code and no table with ncclt. Sources: parseList and ncclTopoTuneModel of NCCL's src/graph/tuning.cc
(2.19 to 2.30) and src/tuning/tuning.cc (2.31); algos_of_coll of src/device/generate.py.
"""

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
PROTOCOLS = ("LL", "LL128", "Simple")
SIMPLE_ONLY = ("CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
IMPLEMENTED = {
    "Broadcast": ("Ring",),
    "Reduce": ("Ring",),
    "AllGather": ("Ring", "CollNetDirect", "NVLS", "PAT"),
    "ReduceScatter": ("Ring", "CollNetDirect", "NVLS", "PAT"),
    "AllReduce": ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree"),
}
AUTOMATIC = 2


class InvalidUsageError(Exception):
    """NCCL would refuse to start."""


def algorithms(version):
    """Name NCCL's algorithms in its order."""
    names = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree")
    return (*names, "PAT") if version >= (2, 23) else names


def _index(names, word):
    folded = [name.casefold() for name in names]
    return folded.index(word.casefold()) if word.casefold() in folded else None


def _one_list(text, names, row):
    """Apply one comma list to one row: the classic grammar, in which ^ inverts and writes 1 for all the others."""
    inverted = text.startswith("^")
    row[:] = [1 if inverted else 0] * len(names)
    for word in text.removeprefix("^").split(","):
        index = _index(names, word)
        if index is None:
            yield word
        else:
            row[index] = 0 if inverted else 1


def _rows(text, names, default, version):
    rows = {function: list(default) for function in FUNCTIONS}
    if text is None:
        return rows
    if version < (2, 24):
        row = list(default)
        list(_one_list(text, names, row))  # unknown words are ignored
        return {function: list(row) for function in FUNCTIONS}
    if version >= (2, 31):
        rows = {function: [0] * len(names) for function in FUNCTIONS}
    for position, entry in enumerate(text.split(";")):
        prefix, colon, listed = entry.partition(":")
        if not colon:
            if position:
                raise InvalidUsageError("all entries except the first must have a prefix")
            targets, listed = FUNCTIONS, entry
        else:
            index = _index(FUNCTIONS, prefix)
            if index is None:
                raise InvalidUsageError(f"prefix {prefix}")
            targets = (FUNCTIONS[index],)
        for function in targets:
            for unknown in _one_list(listed, names, rows[function]):
                raise InvalidUsageError(f"element {unknown}")
    return rows


def enabled(variables, version):
    """Return function -> set of (algorithm, protocol) that NCCL may choose; an empty set fails the call."""
    names = algorithms(version)
    algo = _rows(variables.get("NCCL_ALGO"), names, [1] * len(names), version)
    proto = _rows(variables.get("NCCL_PROTO"), PROTOCOLS, [1, AUTOMATIC, 1], version)
    result = {}
    for function in FUNCTIONS:
        result[function] = set()
        for a, name in enumerate(names):
            # Before 2.24 Ring is never taken away from anything but all_reduce.
            rescued = version < (2, 24) and name == "Ring" and function != "AllReduce"
            if name not in IMPLEMENTED[function] or not (algo[function][a] or rescued):
                continue
            for p, protocol in enumerate(PROTOCOLS):
                if proto[function][p] and (protocol == "Simple" or name not in SIMPLE_ONLY):
                    result[function].add((name, protocol))
    return result


def forces_ll128(variables, version):
    """Tell whether LL128 is on for some function without NCCL's own check."""
    rows = _rows(variables.get("NCCL_PROTO"), PROTOCOLS, [1, AUTOMATIC, 1], version)
    return any(row[1] == 1 for row in rows.values())
