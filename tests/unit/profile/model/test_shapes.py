"""What a built model would send."""

import pytest
import torch
from torch import nn

from ncclt.errors import UsageError
from ncclt.profile.model.named import buffer_elements, fsdp_units, trainable_shapes


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width, bias=False)


class Net(nn.Module):
    """Two blocks of 4, one of 3, a tied head, a frozen table, buffers of three kinds."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.table = nn.Embedding(6, 4)
        self.table.weight.requires_grad_(False)
        self.blocks = nn.ModuleList([Block(4), Block(4), Block(3)])
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(7, dtype=torch.bool))
        self.register_buffer("angles", torch.ones(2, dtype=torch.complex64))
        self.register_buffer("mean", torch.ones(3))


def _units(module, **kwargs):
    return {(u.name, u.parameters, u.count, u.is_root) for u in fsdp_units(module, **kwargs)}


def test_frozen_parameters_get_no_gradient_and_tied_ones_one():
    assert [shape for _, shape in trainable_shapes(Net())] == [(5, 4), (4, 4), (4, 4), (3, 3)]


def test_buffers_take_the_dtype_of_the_training():
    assert buffer_elements(Net(), "bfloat16") == {"bool": 7, "float32": 4, "bfloat16": 3}


def test_repeated_blocks_are_units_and_the_root_takes_the_rest():
    assert _units(Net(), trainable=True) == {("Block", 16, 2, False), ("Block", 9, 1, False), ("root", 20, 1, True)}
    assert ("root", 44, 1, True) in _units(Net(), trainable=False)


def test_a_model_that_names_its_blocks_is_believed():
    net = Net()
    net._no_split_modules = ["Embedding"]
    assert _units(net, trainable=True) == {("Embedding", 20, 1, False), ("root", 41, 1, True)}


def test_blocks_inside_of_blocks_belong_to_the_outer_one():
    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(Block(4), Block(4))

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.stages = nn.ModuleList([Stage(), Stage()])

    assert _units(Deep(), trainable=True) == {("Stage", 32, 2, False)}


def test_nothing_to_train_is_a_usage_error():
    with pytest.raises(UsageError):
        trainable_shapes(nn.ReLU())
