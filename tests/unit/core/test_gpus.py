"""GPUs by name: what they are is known for those of the table and for no other."""

from ncclt.core.gpus import find_gpu


def test_a_gpu_is_found_in_a_name(subtests):
    for text, found in [
        ("8xA100-SXM4-80GB", ("A100-SXM4-80GB", 80, 300.0)),
        ("NVIDIA H100 80GB HBM3", ("H100", 90, 450.0)),
        ("L40S server", ("L40S", 89, 0.0)),
        ("4x rtx_4090", ("RTX-4090", 89, 0.0)),
        ("AMD MI355X x8", ("MI355X", 95, 538.0)),
        ("9x Q9", None),
        ("XA1000", None),
    ]:
        with subtests.test(text=text, found=found):
            assert find_gpu(text) == found
