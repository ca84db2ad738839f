"""Image networks of the co-design studies: VGG-16, ResNet-50, AlexNet, Inception-v3, without normalisation layers."""

from __future__ import annotations

from meshwright.planners.topoopt.workloads.layers import LayerBuilder
from meshwright.planners.topoopt.workloads.workload import DATA

__all__ = ["alexnet", "inception3", "resnet50", "vgg16"]


def vgg16(layers: LayerBuilder) -> None:
    """Add VGG-16 on 229 x 229 images; every convolution pads by 2, so pictures grow before each pooling."""
    at = DATA
    for width, n_layers in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(n_layers):
            at = layers.conv(at, width, 3, pad=2, size=(3, 229, 229))
        at = layers.pool(at, 3, 2)
    _head(layers, at, (4096, 4096, 1000))


def resnet50(layers: LayerBuilder) -> None:
    """Add ResNet-50 on 229 x 229 images, ten classes."""
    at = layers.pool(layers.conv(DATA, 64, 7, stride=2, pad=3, size=(3, 229, 229)), 3, 2, 1)
    for width, n_blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(n_blocks):
            step = stride if block == 0 else 1
            inner = layers.conv(layers.conv(at, width, 1), width, 3, stride=step, pad=1)
            inner = layers.conv(inner, 4 * width, 1)
            # the projection, where there is one, is named first by the sum
            first = layers.conv(at, 4 * width, 1, stride=step) if block == 0 else at
            shape = layers.operations[inner].shape
            at = layers.add("add", "ElementBinary_31", (first, inner), shape)
            at = layers.add("relu", "ElementUnary_13", (at,), shape)
    _head(layers, layers.pool(at, 7, 1), (10,))


def alexnet(layers: LayerBuilder) -> None:
    """Add AlexNet on 229 x 229 images, ten classes."""
    at = layers.pool(layers.conv(DATA, 64, 11, stride=4, pad=2, size=(3, 229, 229)), 3, 2)
    at = layers.pool(layers.conv(at, 192, 5, pad=2), 3, 2)
    for width in (384, 256, 256):
        at = layers.conv(at, width, 3, pad=1)
    _head(layers, layers.pool(at, 3, 2), (4096, 4096, 10))


def _head(layers: LayerBuilder, at: int, classes: tuple[int, ...]) -> None:
    """Add fully connected layers and a softmax."""
    at = layers.flat(at)
    for width in classes:
        at = layers.dense(at, layers.operations[at].n_elements, width)
    layers.add("softmax", "Softmax", (at,), (classes[-1],))


def inception3(layers: LayerBuilder) -> None:
    """Add Inception-v3 on 299 x 299 images, ten classes.

    References
    ----------
    .. [1] Szegedy et al., "Rethinking the Inception architecture for computer vision", CVPR 2016.
    """
    at = layers.conv(DATA, 32, 3, stride=2, size=(3, 299, 299))
    at = layers.conv(layers.conv(at, 32, 3), 64, 3, pad=1)
    at = layers.conv(layers.conv(layers.pool(at, 3, 2), 80, 1), 192, 3)
    at = layers.pool(at, 3, 2)
    for width in (32, 64, 64):
        at = _block_a(layers, at, width)
    at = _block_b(layers, at)
    for width in (128, 160, 160, 192):
        at = _block_c(layers, at, width)
    at = _block_d(layers, at)
    for _ in range(2):
        at = _block_e(layers, at)
    _head(layers, layers.pool(at, 8, 1), (10,))


def _joined(layers: LayerBuilder, ends: list[int]) -> int:
    """Join channels."""
    shapes = [layers.operations[at].shape for at in ends]
    return layers.add("concat", "Concat_1", ends, (sum(shape[0] for shape in shapes), *shapes[0][1:]))


def _block_a(layers: LayerBuilder, at: int, width: int) -> int:
    one = layers.conv(at, 64, 1)
    five = layers.conv(layers.conv(at, 48, 1), 64, 5, pad=2)
    three = layers.conv(layers.conv(layers.conv(at, 64, 1), 96, 3, pad=1), 96, 3, pad=1)
    return _joined(layers, [one, five, three, layers.conv(layers.pool(at, 3, 1, 1), width, 1)])


def _block_b(layers: LayerBuilder, at: int) -> int:
    three = layers.conv(at, 384, 3, stride=2)
    double = layers.conv(layers.conv(layers.conv(at, 64, 1), 96, 3, pad=1), 96, 3, stride=2)
    return _joined(layers, [three, double, layers.pool(at, 3, 2)])


def _block_c(layers: LayerBuilder, at: int, width: int) -> int:
    one = layers.conv(at, 192, 1)
    seven = layers.conv(layers.conv(layers.conv(at, width, 1), width, (1, 7), pad=(0, 3)), 192, (7, 1), pad=(3, 0))
    double = layers.conv(at, width, 1)
    for out, kernel, pad in ((width, (7, 1), (3, 0)), (width, (1, 7), (0, 3)), (width, (7, 1), (3, 0)), (192, (1, 7), (0, 3))):
        double = layers.conv(double, out, kernel, pad=pad)
    return _joined(layers, [one, seven, double, layers.conv(layers.pool(at, 3, 1, 1), 192, 1)])


def _block_d(layers: LayerBuilder, at: int) -> int:
    three = layers.conv(layers.conv(at, 192, 1), 320, 3, stride=2)
    seven = layers.conv(layers.conv(layers.conv(at, 192, 1), 192, (1, 7), pad=(0, 3)), 192, (7, 1), pad=(3, 0))
    return _joined(layers, [three, layers.conv(seven, 192, 3, stride=2), layers.pool(at, 3, 2)])


def _block_e(layers: LayerBuilder, at: int) -> int:
    one = layers.conv(at, 320, 1)
    three = layers.conv(at, 384, 1)
    double = layers.conv(layers.conv(at, 448, 1), 384, 3, pad=1)
    ends = [one]
    for branch in (three, double):
        ends += [layers.conv(branch, 384, (1, 3), pad=(0, 1)), layers.conv(branch, 384, (3, 1), pad=(1, 0))]
    return _joined(layers, [*ends, layers.conv(layers.pool(at, 3, 1, 1), 192, 1)])
