"""Writing the mixture-of-experts file of a dense model: piece by piece, hashed on the way, whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import math
import mmap
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_moegpu.core.units import format_bytes
from pytest_moegpu.core.upcycle import Action, DenseTensor, Order, Plan, PlannedTensor, plan, router, sliced
from pytest_moegpu.errors import ModelFileError, UserError
from pytest_moegpu.host.checksum import remember_sha256, sha256_of
from pytest_moegpu.host.ggufheader import read_header
from pytest_moegpu.host.ggufparts import is_part
from pytest_moegpu.host.ggufraw import RawEntry, RawGguf, RawTensor, entry_number, pieces, read_raw, tensor_type
from pytest_moegpu.host.modelfile import read_gguf

__all__ = ["Upcycled", "upcycle"]

_F32 = 0
_CHUNK = 2**22


@dataclass(frozen=True, kw_only=True)
class Upcycled:
    """Sizes in bytes and checksums of the dense file and of the new one."""

    dense_bytes: int
    dense_sha256: str
    size_bytes: int
    sha256: str


def upcycle(dense: Path, out: Path, order: Order, *, force: bool = False) -> Upcycled:
    """Write the mixture of `order` to `out`. Needs the memory of one projection, whatever the size of the model.

    Raises:
        ModelFileError: `dense` is not a whole GGUF file of a dense model that this is known for.
        UserError: The order does not fit the model, `out` is there and `force` is not given, or it does not fit the
            disk; nothing is left of it then.
    """
    _free(dense, out, force)
    facts = read_gguf(dense)
    if is_part(dense):
        raise ModelFileError(f"model file {dense}: it is a part of a split model: make it one file first")
    try:
        raw = read_raw(dense)
        todo = plan(order, read_header(dense).metadata, _tensors(raw), tensor_type(_F32, "router"))
        digest, size = _write(dense, out, raw, todo, order)
    except ModelFileError as error:
        raise ModelFileError(f"model file {dense}: {error}") from error
    remember_sha256(out, digest)
    return Upcycled(dense_bytes=facts.size_bytes, dense_sha256=sha256_of(dense), size_bytes=size, sha256=digest)


def _free(dense: Path, out: Path, force: bool) -> None:
    """Make sure that `out` may be written."""
    if out.exists() and dense.exists() and out.samefile(dense):
        raise UserError(f"{out} is the dense model itself: name another file")
    if out.is_dir():
        raise UserError(f"{out} is a folder: name a file in it, e.g. {out / 'moe.gguf'}")
    if out.exists() and not force:
        raise UserError(f"{out} is there already: name another file, or give --force to replace it")
    if not out.parent.is_dir():
        raise UserError(f"{out.parent}, the folder of {out.name}, does not exist")


def _tensors(raw: RawGguf) -> tuple[DenseTensor, ...]:
    return tuple(DenseTensor(name=t.name, shape=t.shape, type=tensor_type(t.type, t.name)) for t in raw.tensors)


def _entries(raw: RawGguf, todo: Plan) -> list[RawEntry]:
    """Return the metadata of the dense file with the plan's numbers in it, in place or at the end."""
    new = dict(todo.numbers)
    kept = [entry_number(e.key, new.pop(e.key)) if e.key in new else e for e in raw.entries]
    return kept + [entry_number(key, number) for key, number in new.items()]


def _write(dense: Path, out: Path, raw: RawGguf, todo: Plan, order: Order) -> tuple[str, int]:
    """Return checksum and size of the file that was written."""
    sources = {tensor.name: tensor for tensor in raw.tensors}
    infos = [(t.name, t.shape, sources[t.source].type if t.source else _F32) for t in todo.tensors]
    needed = sum(math.prod(t.shape) // t.type.elements * t.type.size for t in todo.tensors)
    free = shutil.disk_usage(out.parent).free
    if needed > free:
        raise _full(out, needed, free)
    temporary = out.with_name(f".{out.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    digest, size = hashlib.sha256(), 0
    try:
        with dense.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            parts = (_parts(data, tensor, sources.get(tensor.source), order) for tensor in todo.tensors)
            with temporary.open("xb") as target:
                for piece in pieces(_entries(raw, todo), infos, parts, raw.alignment):
                    target.write(piece)
                    digest.update(piece)
                    size += len(piece)
                target.flush()
                os.fsync(target.fileno())
        temporary.replace(out)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise _full(out, needed, shutil.disk_usage(out.parent).free) from error
        raise
    return digest.hexdigest(), size


def _parts(data: mmap.mmap, tensor: PlannedTensor, source: RawTensor | None, order: Order) -> Iterator[bytes]:
    """Give the bytes of one tensor of the new file."""
    if source is None:
        yield router(order, tensor.layer, tensor.shape[0])
        return
    end = source.offset + source.size
    if tensor.action is Action.SLICE:
        yield sliced(data[source.offset : end], tensor)
        return
    for _ in range(order.experts if tensor.action is Action.REPEAT else 1):
        for start in range(source.offset, end, _CHUNK):
            yield data[start : min(start + _CHUNK, end)]


def _full(out: Path, needed: int, free: int) -> UserError:
    return UserError(
        f"{out} needs {format_bytes(needed)} and its disk has {format_bytes(free)} free: make room, or take fewer "
        "experts; slices need no more than the dense model"
    )
