"""Weights read from a folder of files, each rank its own boxes: ``safetensors`` of Hugging Face, or DCP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from meshwright.base import files
from meshwright.base.errors import InputError, MissingExtraError
from meshwright.runtime.job import slices
from meshwright.runtime.job.holdings import ModelNames, names_of, regions_of
from meshwright.runtime.job.slices import Slice, begin_overwriting, flat_parts, weight_parts

if TYPE_CHECKING:
    from meshwright.runtime.job.trainer import Trainer

__all__ = ["check", "read_weights", "read_whole"]


def read_weights(trainer: Trainer, folder: str) -> None:
    """Overwrite this rank's parts of weights and buffers by those of files; called in every process at once.

    Parameters
    ----------
    trainer : Trainer
        This process.
    folder : str
        Holds ``*.safetensors`` as ``save_pretrained`` writes them, or what ``torch.distributed.checkpoint`` writes of a
        ``state_dict()``, under the names of the model.

    Raises
    ------
    InputError
        When there are no such files, or a tensor is missing or of another shape.
    """
    begin_overwriting(trainer)
    regions = regions_of(trainer.weights.values(), trainer.holdings)
    _fill([*weight_parts(trainer, writing=False), *flat_parts(trainer, regions)], trainer.names, folder)


def read_whole(model: nn.Module, folder: str) -> None:
    """Overwrite the weights and buffers of a whole model, in one process; see `read_weights`."""
    names = names_of(model)
    held = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    pieces = {name: held[key].detach() for key, name in names.by_identity.items()}
    _fill([Slice((name,), names.shapes[name], (0,) * tensor.dim(), tensor) for name, tensor in pieces.items()], names, folder)


def check(names: ModelNames, folder: str) -> None:
    """Raise `InputError` when the files of a folder are not those of a model of these names."""
    _fill([], names, folder)


def _fill(pieces: Sequence[Slice], names: ModelNames, folder: str) -> None:
    """Read boxes of tensors; raises `InputError` as `read_weights` does, whatever the boxes."""
    path = Path(folder)
    with torch.no_grad():
        if (path / ".metadata").exists():
            stored = slices.metadata_of(path).state_dict_metadata
            shapes = {name: tuple(held.size) for name, held in stored.items() if isinstance(held, TensorStorageMetadata)}
            boxes = _named(names, pieces, shapes, folder)
            if boxes:
                slices.read(path, boxes)
        elif path.is_file() or any(path.glob("*.safetensors")):
            _read_safetensors(names, pieces, path)
        else:
            raise InputError(f"weights {folder}: holds neither *.safetensors nor what torch.distributed.checkpoint writes")


def _named(names: ModelNames, pieces: Sequence[Slice], shapes: Mapping[str, tuple[int, ...]], place: str) -> list[Slice]:
    """Return boxes under the names that files have for their tensors, which may be any of several.

    Every process looks for all tensors of the model, so that all refuse the same files.
    """
    known = {name: name for name in names.shapes}
    known |= {name: alias for alias, name in names.aliases.items() if alias in shapes and name not in shapes}
    for name, shape in names.shapes.items():
        if known[name] not in shapes:
            raise InputError(f"weights {place}: there is no '{name}'; are they of another model?")
        other = tuple(shapes[known[name]])
        if other != tuple(shape):
            raise InputError(f"weights {place}: '{name}' has shape {other}, but in the model {tuple(shape)}")
    return [Slice((known[piece.name],), piece.shape, piece.offset, piece.tensor) for piece in pieces]


def _read_safetensors(names: ModelNames, pieces: Sequence[Slice], path: Path) -> None:
    """Fill boxes from files of ``safetensors``, of which nothing else is read."""
    try:
        from safetensors import safe_open
    except ImportError:
        raise MissingExtraError("reading *.safetensors", "huggingface") from None
    index = path / "model.safetensors.index.json"
    listed = sorted(set(files.read_json(index)["weight_map"].values())) if index.exists() else []
    paths = [path] if path.is_file() else [path / name for name in listed] or sorted(path.glob("*.safetensors"))
    opened: list[Any] = [safe_open(file, "pt") for file in paths]
    holder = {name: file for file in opened for name in file.keys()}  # noqa: SIM118
    shapes = {name: tuple(file.get_slice(name).get_shape()) for name, file in holder.items()}
    for piece in _named(names, pieces, shapes, str(path)):
        box = tuple(slice(start, start + size) for start, size in zip(piece.offset, piece.tensor.shape, strict=True))
        if piece.tensor.numel():
            held = holder[piece.name]
            piece.tensor.copy_(held.get_slice(piece.name)[box] if box else held.get_tensor(piece.name))
