"""Where fitted constants hold: up to twice what was fitted, and not beyond the network or short of it."""

from ncclt.core.calibration import Calibration

KIB, MIB = 1 << 10, 1 << 20


def fitted(least_nodes, most_nodes, *, probed=True):
    return Calibration(
        constants=(),
        probed=probed,
        points=30,
        error=0.051,
        least_bytes=64 * KIB,
        most_bytes=64 * MIB,
        least_nodes=least_nodes,
        most_nodes=most_nodes,
    )


def test_sizes_of_half_the_smallest_to_twice_the_largest_are_within(subtests):
    for size, beyond in [(32 * KIB, ""), (32 * KIB - 1, "size"), (128 * MIB, ""), (128 * MIB + 1, "size"), (MIB, "")]:
        with subtests.test(size=size, beyond=beyond):
            assert fitted(2, 4).beyond(size, 4) == beyond


def test_one_node_says_nothing_of_several_nor_they_of_it(subtests):
    for least, most, within in [
        (2, 4, [2, 3, 4, 5, 6, 7, 8]),
        (4, 4, [2, 3, 4, 5, 6, 7, 8]),
        (1, 1, [1]),
        (1, 2, [1, 2, 3, 4]),
        (8, 8, [4, 5, 6, 7, 8, 9]),
    ]:
        with subtests.test(least=least, most=most, within=within):
            assert [nodes for nodes in range(1, 10) if not fitted(least, most).beyond(MIB, nodes)] == within
            assert fitted(least, most).beyond(1, 99) == "size and nodes"


def test_times_without_forced_settings_calibrate_no_ranking():
    assert fitted(1, 1).sentence == "times and ranking calibrated; 30 times, median error 5.1 %"
    assert "ranking not" in fitted(1, 1, probed=False).sentence
