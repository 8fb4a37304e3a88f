"""Which settings are worth a thought now: all of the plain ones, and of those with parameters the next steps."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ncclt.core.setting import DEFAULT, Setting
from ncclt.search.observations import Observations

_MOST_PLAIN = 400
"""Settings without parameters that are thought about; of more, every second, third ... is left out."""

_BASES = 6
"""Pairs and channels with which a step along a parameter is tried: the default's own and the best ones."""

Parameters = tuple[tuple[str, int], ...]


def candidate_settings(
    space: Collection[Setting], observations: Observations, running: Collection[Setting]
) -> tuple[Setting, ...]:
    """Return the settings of interest in a fixed order.

    A space with several process-wide parameters has tens of thousands of points. Parameters are climbed one at a time:
    from the groups (values of all parameters) that were measured, one parameter is changed.

    Args:
        space: all settings that may be proposed, each once, in a fixed order.
        observations: so far.
        running: settings that are being launched.
    """
    known = [s for s in dict.fromkeys([*observations.ratios, *observations.failures, *running]) if not s.is_default]
    plain = [s for s in space if not s.parameters and not s.is_default]
    thinned = plain[:: -(-len(plain) // _MOST_PLAIN)] if plain else []
    allowed = space if isinstance(space, dict) else dict.fromkeys(space)
    steps = [s for s in _steps(allowed, observations) if s in allowed]
    return tuple(dict.fromkeys([*thinned, *known, *steps]))


def _steps(space: Collection[Setting], observations: Observations) -> Iterator[Setting]:
    groups = list(dict.fromkeys(s.parameters for s in space if s.parameters))
    if not groups:
        return
    ranked = sorted(observations.ratios, key=lambda s: (float(observations.ratios[s].min()), s.digest()))
    bases = [DEFAULT, *ranked][:_BASES]
    measured = {DEFAULT.parameters, *(s.parameters for s in ranked[:_BASES])}
    near = [g for g in groups if any(_differences(g, m) <= 1 for m in measured)]
    for parameters in near:
        for base in bases:
            yield Setting(
                algorithm=base.algorithm, protocol=base.protocol, channels=base.channels, parameters=parameters
            )
    if not any(not s.parameters and not s.is_default for s in space):
        # Nothing can be chosen but parameters; then all of them are looked at from the start.
        yield from (s for s in space if not s.is_default)


def _differences(one: Parameters, other: Parameters) -> int:
    mine, theirs = dict(one), dict(other)
    return sum(mine.get(name) != theirs.get(name) for name in {*mine, *theirs})
