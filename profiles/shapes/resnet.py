"""Parameter and buffer shapes of ResNets with bottleneck blocks, as torchvision builds them."""

from __future__ import annotations

from dataclasses import dataclass, field

Shapes = list[tuple[str, tuple[int, ...]]]

_EXPANSION = 4
_STAGE_WIDTHS = (64, 128, 256, 512)


@dataclass(slots=True, kw_only=True)
class ResNet:
    """Shapes of a ResNet.

    Attributes:
        parameters: in the order of `named_parameters()`.
        norm_widths: channels of every batch norm; each keeps a mean and a variance per channel and one counter.
    """

    parameters: Shapes = field(default_factory=list)
    norm_widths: list[int] = field(default_factory=list)

    def buffers(self) -> dict[str, int]:
        """Return dtype -> elements of all buffers."""
        return {"float32": 2 * sum(self.norm_widths), "int64": len(self.norm_widths)}

    def add_conv_norm(self, conv: str, norm: str, outputs: int, inputs: int, kernel: int) -> None:
        """Add a convolution without bias and its batch norm."""
        self.parameters.append((f"{conv}.weight", (outputs, inputs, kernel, kernel)))
        self.parameters += [(f"{norm}.weight", (outputs,)), (f"{norm}.bias", (outputs,))]
        self.norm_widths.append(outputs)


def resnet(*, blocks: tuple[int, int, int, int], classes: int = 1000) -> ResNet:
    """Return a ResNet with so many bottleneck blocks per stage: (3, 4, 23, 3) is ResNet-101."""
    model = ResNet()
    model.add_conv_norm("conv1", "bn1", 64, 3, 7)
    inputs = 64
    for stage, (width, count) in enumerate(zip(_STAGE_WIDTHS, blocks, strict=True), start=1):
        for number in range(count):
            block = f"layer{stage}.{number}"
            model.add_conv_norm(f"{block}.conv1", f"{block}.bn1", width, inputs, 1)
            model.add_conv_norm(f"{block}.conv2", f"{block}.bn2", width, width, 3)
            model.add_conv_norm(f"{block}.conv3", f"{block}.bn3", width * _EXPANSION, width, 1)
            if number == 0:
                model.add_conv_norm(f"{block}.downsample.0", f"{block}.downsample.1", width * _EXPANSION, inputs, 1)
            inputs = width * _EXPANSION
    model.parameters += [("fc.weight", (classes, inputs)), ("fc.bias", (classes,))]
    return model
