"""Trainable shapes of NASNet-A as keras.applications builds it (Zoph et al. 2018, arXiv:1707.07012).

Shapes are those of Keras: depthwise kernels (k, k, inputs, 1), pointwise (1, 1, inputs, outputs). Every batch norm
trains a scale and an offset. The order is that of construction; Keras lists layers by depth instead, which no message
here depends on: the first DDP bucket is the classifier alone and all the rest fits into the second.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Shapes = list[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Feature:
    """A feature map: its channels, and how often it was halved."""

    channels: int
    halvings: int


@dataclass(slots=True, kw_only=True)
class _Builder:
    """Collects shapes while the network is walked through."""

    shapes: Shapes = field(default_factory=list)

    def norm(self, name: str, width: int) -> None:
        self.shapes += [(f"{name}/gamma", (width,)), (f"{name}/beta", (width,))]

    def conv(self, name: str, kernel: int, inputs: int, outputs: int) -> None:
        self.shapes.append((f"{name}/kernel", (kernel, kernel, inputs, outputs)))

    def separable(self, name: str, kernel: int, inputs: int, outputs: int) -> None:
        """Two rounds of separable convolution and batch norm; only the first changes the channels."""
        for part, channels in (("1", inputs), ("2", outputs)):
            self.shapes += [
                (f"{name}_{part}/depthwise_kernel", (kernel, kernel, channels, 1)),
                (f"{name}_{part}/pointwise_kernel", (1, 1, channels, outputs)),
            ]
            self.norm(f"{name}_bn_{part}", outputs)

    def adjust(self, name: str, previous: _Feature | None, current: _Feature, filters: int) -> _Feature:
        """Bring the input of the cell before last to the size and width of this cell."""
        if previous is None:
            return current
        if previous.halvings != current.halvings:
            # Two shifted 1x1 paths of half the width each, so that no pixel is lost by the stride.
            self.conv(f"{name}_adjust_1", 1, previous.channels, filters // 2)
            self.conv(f"{name}_adjust_2", 1, previous.channels, filters // 2)
        elif previous.channels != filters:
            self.conv(f"{name}_adjust", 1, previous.channels, filters)
        else:
            return previous
        self.norm(f"{name}_adjust_bn", filters)
        return _Feature(channels=filters, halvings=current.halvings)

    def squeeze(self, name: str, current: _Feature, filters: int) -> None:
        self.conv(f"{name}_squeeze", 1, current.channels, filters)
        self.norm(f"{name}_squeeze_bn", filters)

    def normal_cell(self, name: str, current: _Feature, previous: _Feature | None, filters: int) -> _Feature:
        """Five pairs of branches, six maps side by side."""
        adjusted = self.adjust(name, previous, current, filters)
        self.squeeze(name, current, filters)
        self.separable(f"{name}_left1", 5, filters, filters)
        self.separable(f"{name}_right1", 3, adjusted.channels, filters)
        self.separable(f"{name}_left2", 5, adjusted.channels, filters)
        self.separable(f"{name}_right2", 3, adjusted.channels, filters)
        self.separable(f"{name}_left5", 3, filters, filters)
        return _Feature(channels=6 * filters, halvings=current.halvings)

    def reduction_cell(self, name: str, current: _Feature, previous: _Feature | None, filters: int) -> _Feature:
        """Halve the map: five pairs of branches, four maps side by side."""
        adjusted = self.adjust(name, previous, current, filters)
        self.squeeze(name, current, filters)
        self.separable(f"{name}_left1", 5, filters, filters)
        self.separable(f"{name}_right1", 7, adjusted.channels, filters)
        self.separable(f"{name}_right2", 7, adjusted.channels, filters)
        self.separable(f"{name}_right3", 5, adjusted.channels, filters)
        self.separable(f"{name}_left5", 3, filters, filters)
        return _Feature(channels=4 * filters, halvings=current.halvings + 1)


def nasnet_mobile(
    *, penultimate_filters: int = 1056, cells: int = 4, stem_filters: int = 32, classes: int = 1000
) -> Shapes:
    """Return the trainable shapes of NASNetMobile: 5,289,978 elements in 742 tensors."""
    filters = penultimate_filters // 24
    builder = _Builder()
    builder.conv("stem_conv1", 3, 3, stem_filters)
    builder.norm("stem_bn1", stem_filters)
    current, previous = _Feature(channels=stem_filters, halvings=1), None
    current, previous = builder.reduction_cell("stem_1", current, previous, filters // 4), current
    current, previous = builder.reduction_cell("stem_2", current, previous, filters // 2), current
    for stage, width in enumerate((filters, 2 * filters, 4 * filters)):
        if stage:
            # The cell after a reduction looks back at what came before it, as at any other place.
            current, previous = builder.reduction_cell(f"reduce_{stage}", current, previous, width), current
        for number in range(cells):
            current, previous = builder.normal_cell(f"{stage}_{number}", current, previous, width), current
    builder.shapes += [("predictions/kernel", (current.channels, classes)), ("predictions/bias", (classes,))]
    return builder.shapes
