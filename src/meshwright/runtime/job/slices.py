"""Boxes of named tensors: those of a rank, and how a folder of ``torch.distributed.checkpoint`` holds them."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state
from torch.distributed.checkpoint.storage import WriteResult

from meshwright.runtime.job.holdings import Region

if TYPE_CHECKING:
    from meshwright.runtime.job.trainer import Trainer

__all__ = ["Slice", "begin_overwriting", "flat_parts", "metadata_of", "read", "weight_parts", "write"]


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """A box of a tensor in a checkpoint.

    `path`: words that lead to the tensor in nested dictionaries, as plain PyTorch reads them; joined by dots they are its name.
    `shape`: of the whole tensor.
    `offset`: where the box begins in it.
    `tensor`: the box, as this rank holds it.
    """

    path: tuple[str, ...]
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    tensor: torch.Tensor

    @property
    def name(self) -> str:
        """The tensor's name."""
        return ".".join(self.path)


class _Writing(DefaultSavePlanner):
    """Tells which boxes this rank writes; of boxes that several ranks hold, each is written once, by any of them."""

    def __init__(self, slices: Sequence[Slice], objects: Mapping[tuple[str, ...], Any], aliases: Mapping[str, str]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.slices = {(piece.name, piece.offset): piece for piece in slices if piece.tensor.numel()}
        self.objects = {".".join(path): value for path, value in objects.items()}
        self.paths = {piece.name: piece.path for piece in slices} | {".".join(path): path for path in objects}
        self.aliases = aliases

    def create_local_plan(self) -> SavePlan:
        items = [_item(piece) for piece in self.slices.values()]
        items += [WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO) for name in self.objects if self.is_coordinator]
        self.plan = SavePlan(items, planner_data=self.paths)
        return self.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        plans, metadata = super().create_global_plan(all_plans)
        held = metadata.state_dict_metadata
        held |= {alias: held[name] for alias, name in self.aliases.items() if name in held}
        paths = {name: path for plan in all_plans for name, path in plan.planner_data.items()}
        paths |= {alias: (alias,) for alias in self.aliases}
        return plans, dataclasses.replace(metadata, planner_data=paths)

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        if write_item.type != WriteItemType.BYTE_IO:
            return self.slices[write_item.index.fqn, tuple(write_item.index.offset or ())].tensor
        stream = io.BytesIO()
        torch.save(self.objects[write_item.index.fqn], stream)
        return stream


def _item(piece: Slice) -> WriteItem:
    chunk = ChunkStorageMetadata(torch.Size(piece.offset), piece.tensor.size())
    told = TensorWriteData(chunk, TensorProperties.create_from_tensor(piece.tensor), torch.Size(piece.shape))
    return WriteItem(MetadataIndex(piece.name, piece.offset), WriteItemType.SHARD, tensor_data=told)


class _Writer(FileSystemWriter):
    """Writes weights that have several names once, to be read under each."""

    def __init__(self, folder: Path, aliases: Mapping[str, str]) -> None:
        super().__init__(folder)
        self.aliases = aliases

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        more = [
            dataclasses.replace(found, index=dataclasses.replace(found.index, fqn=alias))
            for alias, name in self.aliases.items()
            for part in results
            for found in part
            if found.index.fqn == name
        ]
        super().finish(metadata, [*results, more])


class _Reading(LoadPlanner):
    """Tells which boxes this rank reads, and where they go."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        self.slices: dict[str, list[Slice]] = {}
        for piece in slices:
            if piece.tensor.numel():
                self.slices.setdefault(piece.name, []).append(piece)
        self.metadata = Metadata({})

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        self.metadata = metadata or self.metadata

    def create_local_plan(self) -> LoadPlan:
        items: list[ReadItem] = []
        for name, pieces in self.slices.items():
            stored = self.metadata.state_dict_metadata[name]
            assert isinstance(stored, TensorStorageMetadata)
            wanted = [ChunkStorageMetadata(torch.Size(piece.offset), piece.tensor.size()) for piece in pieces]
            items += create_read_items_for_chunk_list(name, stored, wanted)
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        raise AssertionError(f"{read_item.dest_index.fqn} was not asked for")

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        index = read_item.dest_index
        assert index.index is not None
        tensor = self.slices[index.fqn][index.index].tensor
        for axis, (start, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            tensor = tensor.narrow(axis, start, length)
        return tensor

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Do nothing: the tensor read into is the one that was wanted."""


def write(folder: Path, slices: Sequence[Slice], objects: Mapping[tuple[str, ...], Any], aliases: Mapping[str, str]) -> None:
    """Write boxes of tensors, all ranks together; each writes its own, and the first one what lies where.

    Parameters
    ----------
    folder : Path
        Exists.
    slices : sequence of Slice
        Of this rank; boxes of one tensor are the same on two ranks or share nothing, and together all ranks hold it all.
    objects : mapping of tuple of str to object
        What else is kept, by path; of the first rank.
    aliases : mapping of str to str
        Further names of tensors, and the name that they are written under.
    """
    save_state({}, storage_writer=_Writer(folder, aliases), planner=_Writing(slices, objects, aliases))


def metadata_of(folder: Path) -> Metadata:
    """Return what a checkpoint holds, by name."""
    return FileSystemReader(folder).read_metadata()


def read(folder: Path, slices: Sequence[Slice]) -> None:
    """Fill this rank's boxes from a checkpoint, all ranks together.

    `slices`: their tensors are overwritten; names and shapes are those of the checkpoint.
    """
    load_state({}, storage_reader=FileSystemReader(folder), planner=_Reading(slices))


def weight_parts(trainer: Trainer, *, writing: bool) -> list[Slice]:
    """Return this rank's parts of weights and buffers; for writing, those that no earlier stage writes."""
    return [
        Slice((holding.name,), holding.shape, holding.offset, holding.part())
        for holding in trainer.holdings
        if holding.writes or not writing
    ]


def flat_parts(trainer: Trainer, regions: Mapping[nn.Parameter, Sequence[Region]]) -> list[Slice]:
    """Return the boxes of weights that this rank updates for others too (ZeRO-1 and 2), where it does.

    `regions`: see `meshwright.runtime.job.holdings.regions_of`.
    """
    return [
        Slice((region.holding.name,), region.holding.shape, region.offset, region.of(parameter))
        for weights in trainer.weights.values()
        for parameter in weights.parts()
        for region in regions[parameter]
    ]


def begin_overwriting(trainer: Trainer) -> None:
    """Forget gradients, and what fully sharded layers gathered before: it would be used instead of what is written now."""
    for weights in trainer.weights.values():
        weights.reshard()
        weights.zero()
