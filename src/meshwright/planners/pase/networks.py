"""The five graphs that PaSE was published with, built for a batch and a width."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.base.errors import InputError, UnknownNameError
from meshwright.planners.pase.operators import NetworkBuilder, PaseGraph, Tensor

__all__ = ["NAMES", "build"]

NAMES = ("alexnet", "inception3", "resnet101", "rnnlm", "transformer")

_Width = Callable[[int], int]
_Pair = tuple[int, int]


def build(name: str, batch: int = 128, model: int = 128) -> PaseGraph:
    """Return one of the five graphs.

    `name`: one of `NAMES`.
    `batch`: samples per step.
    `model`: scales every hidden width (channels, hidden units, heads) by ``model / 128``, rounded, at least 1; classes,
    vocabulary, lengths and image sizes stay.
    Returns: operators in the order of the published program.
    Raises `UnknownNameError` when the name is none of these.
    Raises `InputError` when a number is below 1.

    References
    ----------
    .. [1] V. Elango, "PaSE: Parallelization Strategies for Efficient DNN Training", IPDPS 2021, section IV.

    Notes
    -----
    The published program accepts a model size and ignores it; ours scales the model.
    """
    if name not in NAMES:
        raise UnknownNameError("PaSE graph", name, NAMES)
    for value, what in ((batch, "batch"), (model, "model")):
        if value < 1:
            raise InputError(f"pase:{name}: {what} is {value}; must be at least 1")

    def width(size: int) -> int:
        return max(1, round(size * model / 128))

    builders = {"alexnet": _alexnet, "resnet101": _resnet101, "inception3": _inception3, "rnnlm": _rnnlm}
    builders["transformer"] = _transformer
    builder = NetworkBuilder(cutoff=1 if name in ("rnnlm", "transformer") else 4)
    builders[name](builder, batch, width)
    return PaseGraph(name, tuple(builder.operators))


def _alexnet(net: NetworkBuilder, batch: int, width: _Width) -> None:
    x = net.convolution(Tensor(-1, (batch, 3, 227, 227)), width(96), (11, 11), 4, pointwise=1)
    x = net.pooling(x, 3, 2)
    x = net.convolution(x, width(256), (5, 5), padding=(2, 2), pointwise=1)
    x = net.pooling(x, 3, 2)
    for n_filters in (384, 384, 256):
        x = net.convolution(x, width(n_filters), (3, 3), padding=(1, 1), pointwise=1)
    x = net.pooling(x, 3, 2)
    x = net.reshape(x, (batch, x.shape[1] * x.shape[2] * x.shape[3]))
    x = net.fully_connected(x, width(4096), pointwise=1)
    x = net.fully_connected(x, width(4096), pointwise=1)
    net.cross_entropy(net.fully_connected(x, 1024))


def _conv_norm(
    net: NetworkBuilder, x: Tensor, n_filters: int, window: _Pair, stride: int = 1, padding: _Pair = (0, 0)
) -> Tensor:
    """Convolution and batch normalisation."""
    return net.norm(net.convolution(x, n_filters, window, stride, padding), 0)


def _resnet101(net: NetworkBuilder, batch: int, width: _Width) -> None:
    x = _conv_norm(net, Tensor(-1, (batch, 3, 227, 227)), width(64), (7, 7), 2, (3, 3))
    x = net.pooling(x, 3, 2, 1)
    for planes, n_blocks, first_stride in ((64, 3, 1), (128, 4, 2), (256, 23, 2), (512, 3, 2)):
        inner, outer = width(planes), width(4 * planes)
        for block in range(n_blocks):
            stride = first_stride if block == 0 else 1
            y = _conv_norm(net, x, inner, (1, 1))
            y = _conv_norm(net, y, inner, (3, 3), stride, (1, 1))
            y = _conv_norm(net, y, outer, (1, 1))
            if block == 0:
                x = _conv_norm(net, x, outer, (1, 1), stride)
            x = net.elementwise(y, x, pointwise=1)
    net.cross_entropy(net.fully_connected(net.mean(x, (2, 3)), 1000))


def _inception3(net: NetworkBuilder, batch: int, width: _Width) -> None:
    x = _conv_norm(net, Tensor(-1, (batch, 3, 299, 299)), width(32), (3, 3), 2)
    x = _conv_norm(net, x, width(32), (3, 3))
    x = _conv_norm(net, x, width(64), (3, 3), 1, (1, 1))
    x = net.pooling(x, 3, 2)
    x = _conv_norm(net, x, width(80), (1, 1))
    x = _conv_norm(net, x, width(192), (3, 3))
    x = net.pooling(x, 3, 2)
    for pool_features in (32, 64, 64):
        x = _inception_a(net, x, width, pool_features)
    x = _inception_b(net, x, width)
    for channels in (128, 160, 160, 192):
        x = _inception_c(net, x, width, channels)
    x = _inception_d(net, x, width)
    for _ in range(2):
        x = _inception_e(net, x, width)
    net.cross_entropy(net.fully_connected(net.mean(x, (2, 3)), 1000))


def _branch(net: NetworkBuilder, x: Tensor, width: _Width, *layers: tuple[int, int, int, int]) -> Tensor:
    """Convolutions in a row, each (filters, window height, window width, stride); stride 1 keeps the image size."""
    for n_filters, height, wide, stride in layers:
        padding = (height // 2, wide // 2) if stride == 1 else (0, 0)
        x = _conv_norm(net, x, width(n_filters), (height, wide), stride, padding)
    return x


def _inception_a(net: NetworkBuilder, x: Tensor, width: _Width, pool_features: int) -> Tensor:
    one = _branch(net, x, width, (64, 1, 1, 1))
    five = _branch(net, x, width, (48, 1, 1, 1), (64, 5, 5, 1))
    double = _branch(net, x, width, (64, 1, 1, 1), (96, 3, 3, 1), (96, 3, 3, 1))
    pool = _branch(net, net.pooling(x, 3, 1, 1), width, (pool_features, 1, 1, 1))
    return net.concatenation((one, five, double, pool))


def _inception_b(net: NetworkBuilder, x: Tensor, width: _Width) -> Tensor:
    three = _branch(net, x, width, (384, 3, 3, 2))
    double = _branch(net, x, width, (64, 1, 1, 1), (96, 3, 3, 1), (96, 3, 3, 2))
    return net.concatenation((three, double, net.pooling(x, 3, 2)))


def _inception_c(net: NetworkBuilder, x: Tensor, width: _Width, c: int) -> Tensor:
    one = _branch(net, x, width, (192, 1, 1, 1))
    seven = _branch(net, x, width, (c, 1, 1, 1), (c, 1, 7, 1), (192, 7, 1, 1))
    double = _branch(net, x, width, (c, 1, 1, 1), (c, 7, 1, 1), (c, 1, 7, 1), (c, 7, 1, 1), (192, 1, 7, 1))
    pool = _branch(net, net.pooling(x, 3, 1, 1), width, (192, 1, 1, 1))
    return net.concatenation((one, seven, double, pool))


def _inception_d(net: NetworkBuilder, x: Tensor, width: _Width) -> Tensor:
    three = _branch(net, x, width, (192, 1, 1, 1), (320, 3, 3, 2))
    seven = _branch(net, x, width, (192, 1, 1, 1), (192, 1, 7, 1), (192, 7, 1, 1), (192, 3, 3, 2))
    return net.concatenation((three, seven, net.pooling(x, 3, 2)))


def _inception_e(net: NetworkBuilder, x: Tensor, width: _Width) -> Tensor:
    one = _branch(net, x, width, (320, 1, 1, 1))
    three = _branch(net, x, width, (384, 1, 1, 1))
    three = net.concatenation((_branch(net, three, width, (384, 1, 3, 1)), _branch(net, three, width, (384, 3, 1, 1))))
    double = _branch(net, x, width, (448, 1, 1, 1), (384, 3, 3, 1))
    double = net.concatenation((_branch(net, double, width, (384, 1, 3, 1)), _branch(net, double, width, (384, 3, 1, 1))))
    pool = _branch(net, net.pooling(x, 3, 1, 1), width, (192, 1, 1, 1))
    return net.concatenation((one, three, double, pool))


def _rnnlm(net: NetworkBuilder, batch: int, width: _Width) -> None:
    x = net.embedding(batch, 256, 100000, width(2048))
    net.cross_entropy(net.fully_connected(net.lstm(x, width(2048), 2), 100000))


def _attention(net: NetworkBuilder, x: Tensor, heads: int, encoded: Tensor | None = None) -> Tensor:
    """Multi-head attention of x to itself, or to the encoder's output."""
    e, k = x.shape[-1], 64
    weight = Tensor(-1, (3, heads, e, k))
    if encoded is None:
        projected = net.einsum("ble,shek->sbhlk", x, weight)
    else:
        projected = net.einsum("sble,shek->sbhlk", net.stack((x, encoded, encoded)), weight)
    query, key, value = net.unstack(projected)
    scores = net.softmax(net.einsum("bhlk,bhmk->bhlm", query, key), 3)
    mixed = net.einsum("bhlm,bhmk->bhlk", scores, value)
    mixed = net.einsum("bhlk,hek->ble", mixed, Tensor(-1, (heads, e, k)))
    return net.norm(net.elementwise(x, mixed), 2)


def _feed_forward(net: NetworkBuilder, x: Tensor, hidden: int) -> Tensor:
    e = x.shape[-1]
    y = net.einsum("ble,ef->blf", x, Tensor(-1, (e, hidden)), pointwise=2)
    y = net.einsum("blf,fe->ble", y, Tensor(-1, (hidden, e)))
    return net.norm(net.elementwise(x, y), 2)


def _transformer(net: NetworkBuilder, batch: int, width: _Width) -> None:
    length, vocabulary, heads, e, hidden = 256, 50000, width(8), width(512), width(2048)
    position = Tensor(-1, (batch, length, e))
    encoded = net.elementwise(net.embedding(batch, length, vocabulary, e), position)
    for _ in range(6):
        encoded = _feed_forward(net, _attention(net, encoded, heads), hidden)
    x = net.elementwise(net.embedding(batch, length, vocabulary, e), position)
    for _ in range(6):
        x = _attention(net, _attention(net, x, heads), heads, encoded)
        x = _feed_forward(net, x, hidden)
    net.cross_entropy(net.einsum("ble,ev->blv", x, Tensor(-1, (e, vocabulary))))
