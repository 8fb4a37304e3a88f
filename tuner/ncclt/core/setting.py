"""One candidate: what a trial forces on NCCL."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from ncclt.core.algo_proto_text import BASE_ALGORITHMS, BASE_NEEDED_SINCE, BASE_PROTOCOLS
from ncclt.core.algorithms import Algorithm, Protocol, is_legal
from ncclt.core.documents import Documented, Shape
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.errors import SettingError

MAX_CHANNELS = 64
"""NCCL's MAXCHANNELS since 2.25 (32 before)."""


def max_channels(version: NcclVersion) -> int:
    """Return MAXCHANNELS of an NCCL version (src/include/device.h: 64 since 2.25, 32 before)."""
    return MAX_CHANNELS if version >= NcclVersion(2, 25) else 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Documented):
    """A forced choice and process-wide parameters; the empty setting is the NCCL default.

    Attributes:
        algorithm: forced where it is legal for a collective, None = NCCL chooses.
        protocol: likewise.
        channels: most channels to use of those that NCCL opens; None = NCCL chooses.
        parameters: process-wide parameters by catalogue name without `NCCL_`, sorted, for example
            (("BUFFSIZE", 8388608),).
        confined: NCCL chooses, but among fewer than all its choices; only set by `applied_to`, so never stored.
        spares_reductions: nothing but the parameters takes effect on reductions, whose order of additions stays.
    """

    SHAPE: ClassVar = Shape(
        error=SettingError,
        omitted=("algorithm", "protocol", "channels", "parameters", "spares_reductions"),
        hidden=("confined",),
        pairs=("parameters",),
    )

    algorithm: Algorithm | None = None
    protocol: Protocol | None = None
    channels: int | None = None
    parameters: tuple[tuple[str, int], ...] = ()
    confined: bool = False
    spares_reductions: bool = False

    def __post_init__(self) -> None:
        if self.channels is not None and not 1 <= self.channels <= MAX_CHANNELS:
            raise SettingError(f"channels must be 1 to {MAX_CHANNELS}, not {self.channels}")
        object.__setattr__(self, "parameters", tuple(sorted(self.parameters)))

    @property
    def is_default(self) -> bool:
        """Return True if nothing is forced."""
        return self == DEFAULT

    @property
    def label(self) -> str:
        """Return the setting as text: `ring/simple c=8 BUFFSIZE=8388608`, or `default`."""
        parts = []
        if self.algorithm or self.protocol:
            parts.append(f"{self.algorithm or 'auto'}/{self.protocol or 'auto'}")
        if self.confined:
            parts.append(f"auto among {', '.join((*BASE_ALGORITHMS, *BASE_PROTOCOLS))}")
        if self.channels is not None:
            parts.append(f"c={self.channels}")
        parts += [f"{name}={value}" for name, value in self.parameters]
        parts += ["(reductions left to NCCL)"] if self.spares_reductions else []
        return " ".join(parts) or "default"

    def reaches(self, collective: Collective, *, version: NcclVersion) -> bool:
        """Return True if algorithm and protocol take effect on a collective."""
        spared = self.spares_reductions and collective.is_reduction
        return not spared and is_legal(collective, self.algorithm, self.protocol, version=version)

    def applied_to(self, collective: Collective, *, version: NcclVersion) -> Setting:
        """Return the setting in effect for one collective: an illegal pair leaves algorithm and protocol to NCCL.

        From NCCL 2.31 not to all its choices: variables that force one collective confine every other one to the base
        lists (algo_proto_text.py), and a time measured so is not the default's. LL128 is never forced by variables.
        `send_recv` and `all_to_all` never pass NCCL's tuner: nothing is forced on them but process-wide parameters.
        """
        if not collective.is_tunable:
            return Setting(parameters=self.parameters)
        if self.reaches(collective, version=version):
            return replace(self, spares_reductions=False) if self.spares_reductions else self
        if self.spares_reductions:  # by a table, which confines nothing
            return Setting(parameters=self.parameters)
        confined = version >= BASE_NEEDED_SINCE and self.protocol is not Protocol.LL128
        return Setting(channels=self.channels, parameters=self.parameters, confined=confined)

    def digest(self) -> str:
        """Return the hash by which repeats of a setting are recognised."""
        canonical = json.dumps(self.to_document(), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


DEFAULT = Setting()
"""The NCCL default: nothing forced, no parameter set."""


def check_setting(setting: Setting, collectives: Iterable[Collective], *, version: NcclVersion) -> None:
    """Raise if a setting is not legal for any of the collectives.

    Raises:
        SettingError: the pair exists for none of them, or too many channels for this NCCL.
    """
    tunable = [c for c in collectives if c.is_tunable]
    forced = setting.algorithm is not None or setting.protocol is not None
    if forced and not any(setting.reaches(c, version=version) for c in tunable):
        raise SettingError(
            f"NCCL {version} has no {setting.label} for {', '.join(sorted(tunable)) or 'these collectives'}"
        )
    if setting.channels is not None and setting.channels > max_channels(version):
        raise SettingError(f"NCCL {version} has at most {max_channels(version)} channels, not {setting.channels}")
