"""States of GPUs from nvidia-smi -q -x."""

import contextlib
import io
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.errors import InputError
from ncclt.health.doctor import gpu_report
from ncclt.health.doctor.gpu_report import parse_gpu_report

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "doctor"


def _report(text):
    return parse_gpu_report(io.BytesIO(text if isinstance(text, bytes) else text.encode()), "gpus.xml")


def test_states_are_read():
    report = _report((GOLDEN / "old_pcie_box" / "gpus.xml").read_bytes())

    assert (report.driver, report.cuda, len(report.gpus)) == ("450.80.02", "11.0", 4)
    resting, narrow, hot, broken = report.gpus
    assert (resting.idle, resting.link_gen, resting.max_link_gen, resting.persistence) == (True, 1, 3, False)
    assert (narrow.link_width, narrow.max_link_width) == (8, 16)
    assert (hot.idle, hot.slowdowns) == (False, ("hw_thermal_slowdown",))
    assert (broken.uncorrected_errors, broken.mig, broken.recovery) == (3, True, "")


def test_names_of_old_drivers():
    """Clocks event reasons were throttle reasons until driver 530."""
    report = _report(
        "<nvidia_smi_log><gpu><product_name>Tesla V100</product_name><clocks_throttle_reasons>"
        "<clocks_throttle_reason_hw_slowdown>Active</clocks_throttle_reason_hw_slowdown></clocks_throttle_reasons>"
        "<ecc_errors><volatile><double_bit><total>2</total></double_bit></volatile></ecc_errors></gpu></nvidia_smi_log>"
    )

    assert report.gpus[0].slowdowns == ("hw_slowdown",)
    assert report.gpus[0].uncorrected_errors == 2
    assert report.gpus[0].persistence is None


ENTITIES = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><nvidia_smi_log><gpu>&b;</gpu></nvidia_smi_log>'


def test_other_files_are_refused(subtests, monkeypatch):
    for text, said in [
        ((GOLDEN / "healthy_h100" / "gpus.xml").read_text()[:3000], "cut off"),
        ("<nvidia_smi_log><attached_gpus>0</attached_gpus></nvidia_smi_log>", "no GPU"),
        ("not xml", "not XML"),
        (ENTITIES, "entities"),
        *((ENTITIES.encode(encoding), "not UTF-8") for encoding in ("utf-16", "utf-16-le", "utf-16-be")),
    ]:
        with subtests.test(text=text, said=said), pytest.raises(InputError, match=said):
            _report(text)
    monkeypatch.setattr(gpu_report, "_CHUNK_BYTES", 5)
    with pytest.raises(InputError, match="entities"):  # also where a chunk ends inside a definition
        _report(ENTITIES)
    monkeypatch.setattr(gpu_report, "MOST_BYTES", 1000)
    with pytest.raises(InputError, match="longer"):
        _report((GOLDEN / "healthy_h100" / "gpus.xml").read_bytes())


def test_six_megabytes_take_no_memory(subtests):
    """What is kept of a file is bounded, whatever it repeats."""
    for text in [
        "<nvidia_smi_log>" + "<a>" * 2_000_000,
        "<nvidia_smi_log><gpu>" + "<clock/>" * 750_000,
        "<nvidia_smi_log>" + "<gpu/>" * 1_000_000,
        "<nvidia_smi_log><gpu " + " ".join(f'a{n}=""' for n in range(700_000)) + "/></nvidia_smi_log>",
        "<nvidia_smi_log><driver_version>" + "5" * 6_000_000,
    ]:
        with subtests.test(text=text):
            content = io.BytesIO(text.encode())
            tracemalloc.start()
            try:
                with pytest.raises(InputError, match=r"deeper or longer|longer than|longer between|no GPU"):
                    parse_gpu_report(content, "gpus.xml")
                _, peak_bytes = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak_bytes < 50e6


def test_four_chunks_may_hold_no_tag_and_a_fifth_may_not(monkeypatch):
    monkeypatch.setattr(gpu_report, "_CHUNK_BYTES", 100)

    def read(chunks):
        head = "<nvidia_smi_log><gpu/><driver_version>"
        digits = "5" * (100 * (chunks + 1) - len(head))
        return _report(f"{head}{digits}</driver_version></nvidia_smi_log>")

    assert len(read(4).gpus) == 1
    with pytest.raises(InputError, match="longer between two tags"):
        read(5)


def test_more_children_than_one_gpu_may_have():
    """They are counted for each child of the root."""
    clocks = "<supported_clocks>" + "<clock>1</clock>" * 20_000 + "</supported_clocks>"
    text = f"<nvidia_smi_log>{f'<gpu>{clocks}</gpu>' * 5}</nvidia_smi_log>"

    assert len(_report(text).gpus) == 5


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(content):
    for text in (content, b"<nvidia_smi_log><gpu>" + content + b"</gpu></nvidia_smi_log>"):
        with contextlib.suppress(InputError):
            assert _report(text).gpus
