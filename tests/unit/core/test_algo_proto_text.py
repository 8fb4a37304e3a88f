"""What NCCL_ALGO and NCCL_PROTO leave enabled."""

import pytest

from ncclt.core.algo_proto_text import remaining_algo_protos
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.errors import SettingError


@pytest.mark.parametrize(("listed", "first"), [("ring,^tree,best", "^tree"), ("Best", "Best"), ("", "")])
def test_the_first_word_that_is_never_written_is_named(listed, first):
    with pytest.raises(SettingError, match="must never contain") as refused:
        remaining_algo_protos({"NCCL_ALGO": listed}, Collective.ALL_REDUCE, NcclVersion(2, 28, 9))
    assert refused.value.message == f"NCCL_ALGO must never contain {first!r}"
