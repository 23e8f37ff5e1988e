"""Makes a checkpoint folder of a GGUF file, once, in the user's cache.

The folder has the file's configuration and tokenizer, which transformers reads. Its weights stay in the file, to which
the folder has a link, and are read as they are (lp/model/quantization/gguf_file.py). Where they are other tensors than
those of the model (transposed matrices), and where transformers is to read them itself, they are unpacked to
the folder, in the smallest of bfloat16, float16 and float32 that holds all of them exactly (float32 for quantised
blocks).
"""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from packaging.version import parse
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from lp.model.errors import CheckpointError, one_line
from lp.model.exactness import check_config
from lp.platform import disk_cache, host
from lp.platform.disk_cache import open_entry, trim

if TYPE_CHECKING:  # it needs the package gguf
    from lp.model.gguf_header import GgufHeader

log = logging.getLogger("lookahead")

# Counts the ways of making folders: a folder that was made in another way is not used.
WAY = 4
# The link to the file, in a folder without weights.
LINK = "model.gguf"
MANIFEST = "unpacked.json"
PART = re.compile(r"-\d{5}-of-\d{5}$")
# Samples of a file that its digest covers: their number and their length in bytes.
NUM_SAMPLES, SAMPLE = 64, 1 << 16
# How fast transformers unpacks, on one core of a server: strings of the vocabulary and weights.
STRINGS_PER_S, WEIGHTS_PER_S = 7e4, 6e7


def checkpoint_folder(path: str, begin: Callable[[GgufHeader], None] | None = None) -> str:
    """The folder that is made of a GGUF file; every other path is returned as it is.

    path: a GGUF file, a folder that holds one and no config.json, or any other checkpoint. The first call for a file
    makes it, in one process at a time; later calls read a few megabytes of the file. The name of the folder is that of
    the file without its ending. begin: is called before a folder is made, which takes seconds. Raises CheckpointError.
    """
    return _folder(path, False, begin)


def unpacked_folder(path: str) -> str:
    """The same with all weights unpacked to the folder, as transformers reads them."""
    return _folder(path, True)


def linked_file(folder: str) -> Path | None:
    """The GGUF file that has the weights of a checkpoint folder; None if the folder has weights of its own."""
    link = Path(folder) / LINK
    return link.resolve() if link.is_symlink() else None


def _folder(path: str, with_weights: bool, begin: Callable[[GgufHeader], None] | None = None) -> str:
    if (file := _find_file(path)) is None:
        return path
    try:
        folder = _cache_folder(file, with_weights)
    except OSError as error:
        raise CheckpointError(f"model.path={path!r} cannot be read: {error.strerror or error}") from error
    made = folder / file.stem
    try:
        if not _is_whole(made):
            with disk_cache.locked(folder, f"read {file.name}"):
                if not _is_whole(made):
                    _make(file, made, with_weights, begin)
                    trim()
        _link(made, file)
    except OSError as error:
        raise _not_written(file, folder, error) from error
    return str(made)


def _link(folder: Path, file: Path) -> None:
    """Lets the link of a folder without weights lead to the file, which may have been moved."""
    link = folder / LINK
    if any(folder.glob("*.safetensors")) or (link.is_symlink() and link.readlink() == file.resolve()):
        return
    fresh = folder / f"{LINK}-{os.getpid()}"
    fresh.symlink_to(file.resolve())
    fresh.replace(link)


def _find_file(path: str) -> Path | None:
    """The GGUF file that a path names, or None. Raises CheckpointError if it names none clearly."""
    file = Path(path)
    if file.is_dir():
        files = [] if (file / "config.json").is_file() else sorted(f for f in file.iterdir() if _is_named_gguf(f))
        if not files:
            return None
        if len(files) > 1 and not PART.search(files[0].stem):
            names = ", ".join(f.name for f in files[:3]) + (" ..." if len(files) > 3 else "")
            raise CheckpointError(
                f"model.path={path!r} holds {len(files)} GGUF files ({names}): name one, as in model.path={files[0]}"
            )
        file = files[0]
    elif not _is_named_gguf(file):
        return None
    if not file.is_file():
        raise CheckpointError(f"model.path={path!r}: there is no such file")
    if PART.search(file.stem):
        raise CheckpointError(
            f"{str(file)!r} is one part of a model in several files, which transformers cannot read: join them first, "
            "with llama-gguf-split --merge"
        )
    return file


def _is_named_gguf(file: Path) -> bool:
    return file.suffix.lower() == ".gguf"


def _cache_folder(file: Path, with_weights: bool) -> Path:
    """The folder of the cache for a file with this content. Raises OSError if the file cannot be read."""
    stat = file.stat()
    sampled = hashlib.sha256()
    with file.open("rb") as stream:
        for number in range(NUM_SAMPLES):
            stream.seek(max(0, stat.st_size - SAMPLE) * number // (NUM_SAMPLES - 1))
            sampled.update(stream.read(SAMPLE))
    facts = [WAY, with_weights, transformers.__version__, stat.st_size, stat.st_mtime_ns, sampled.hexdigest()]
    if (folder := open_entry("gguf", disk_cache.digest(facts))) is None:
        raise CheckpointError(
            f"{str(file)!r} cannot be read: the cache folder cannot be made; let the environment variable "
            f"{disk_cache.VARIABLE} name a folder that can be written"
        )
    return folder


def _is_whole(unpacked: Path) -> bool:
    """Whether a folder holds all files that were written to it, each of the size that it had then."""
    if not (unpacked / MANIFEST).is_file():
        return False
    sizes = disk_cache.read_json(unpacked / MANIFEST) or {}
    return bool(sizes) and all(
        (unpacked / name).is_file() and (unpacked / name).stat().st_size == size for name, size in sizes.items()
    )


def _make(file: Path, folder: Path, with_weights: bool, begin: Callable[[GgufHeader], None] | None) -> None:
    """Makes a folder whole or not at all. Raises CheckpointError."""
    header = _read_header(file)
    from lp.model.quantization.gguf_file import has_simple_tensors  # it needs the package gguf

    with_weights = with_weights or not has_simple_tensors(header.architecture)
    expected_s = 1 + header.num_strings / STRINGS_PER_S
    if with_weights:
        _check_space(file, folder.parent, 4 * header.num_elements)
        expected_s += header.num_elements / WEIGHTS_PER_S
    doing, done = ("unpacking", "unpacked") if with_weights else ("reading the vocabulary of", "read the vocabulary of")
    log.info("%s %s, once: about %.0f s", doing, file.name, expected_s)
    began = time.monotonic()
    partial = folder.with_name("partial")
    try:
        for leftover in (partial, folder):
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir()
        host.begin()
        if begin is not None:
            begin(header)
        _convert(file, partial, header, with_weights)
        sizes = {f.name: f.stat().st_size for f in partial.iterdir()}
        (partial / MANIFEST).write_text(json.dumps(sizes), encoding="utf-8")
        partial.rename(folder)
    except (OSError, SafetensorError) as error:
        raise _not_written(file, partial, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    log.info(
        "%s %s to %s (%.0f MB) in %.0f s",
        done,
        file.name,
        folder,
        sum(sizes.values()) / 1e6,
        time.monotonic() - began,
    )


def _read_header(file: Path) -> GgufHeader:
    """The header of a file that is whole. Raises CheckpointError."""
    if importlib.util.find_spec("gguf") is None:
        raise CheckpointError(f"{str(file)!r} cannot be read: the package gguf is missing; pip install 'gguf>=0.17'")
    from lp.model.gguf_header import read_header

    try:
        header = read_header(file)
    except (ValueError, OSError) as error:
        fix = "copy or download it again"
        raise CheckpointError(f"{str(file)!r} is not a GGUF file that can be read: {one_line(error)}; {fix}") from error
    if "rope_freqs.weight" in header.tensors:
        log.warning(
            "%s scales its rotary embeddings (rope_freqs), which transformers does not read: its texts will differ "
            "from those of the original checkpoint",
            file.name,
        )
    return header


def _check_space(file: Path, folder: Path, needed: int) -> None:
    if (free := shutil.disk_usage(folder).free) < needed:
        raise CheckpointError(
            f"{str(file)!r} cannot be unpacked to {folder}: this may need {needed / 1e9:.1f} GB, and "
            f"{free / 1e9:.1f} GB are free; make room, or let {disk_cache.VARIABLE} name a folder elsewhere"
        )


def _not_written(file: Path, folder: Path, error: Exception) -> CheckpointError:
    reason = disk_cache.why(error, folder) if isinstance(error, OSError) else one_line(error)
    return CheckpointError(
        f"{str(file)!r} cannot be unpacked to {folder}: {reason}; make room there, or let the environment "
        f"variable {disk_cache.VARIABLE} name a folder that can be written"
    )


def _convert(file: Path, folder: Path, header: GgufHeader, with_weights: bool) -> None:
    """Writes a file's configuration, tokenizer, chat template and generation defaults to a folder, and its weights if
    they are asked for.
    """
    from lp.model.quantization import gguf_gpt_oss  # it needs the package gguf

    where: dict[str, Any] = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    is_gpt_oss = header.architecture == gguf_gpt_oss.ARCHITECTURE
    with _parsing_once():
        with _reading("model", file):
            config = gguf_gpt_oss.read_config(header) if is_gpt_oss else AutoConfig.from_pretrained(**where)
        check_config(config)
        with _reading("tokenizer", file), _collecting_later():
            if is_gpt_oss:  # AutoTokenizer would let transformers read the configuration
                tokenizer = PreTrainedTokenizerFast.from_pretrained(**where)
            else:
                tokenizer = AutoTokenizer.from_pretrained(**where, config=config)
        if with_weights:
            _unpack(file, config).save_pretrained(folder)
        else:
            config.dtype = _widest_dtype(header)
            _check_names(file, config)
            config.save_pretrained(folder)
            GenerationConfig.from_model_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _ease_reading(folder, tokenizer)


def _ease_reading(folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Lets transformers read a folder's tokenizer as it is written, without parsing tokenizer.json in Python."""
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    settings["added_tokens_decoder"] = {number: token.__getstate__() for number, token in added.items()}
    settings["tokenizer_class"] = PreTrainedTokenizerFast.__name__
    file.write_text(json.dumps(settings), encoding="utf-8")


def _unpack(file: Path, config: PreTrainedConfig) -> PreTrainedModel:
    """The model of a file, unpacked. Raises CheckpointError."""
    with _reading("weights", file):
        # with output_loading_info it returns a pair
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(file.parent),
            gguf_file=file.name,
            config=config,
            dtype=torch.float32,
            quantization_config=transformers.GgufConfig(dequantize=True),
            output_loading_info=True,
        )
    model, found = loaded
    if missing := sorted(found["missing_keys"]):
        raise _lacking(file, missing)
    return model.to(_exact_dtype(model))


def _check_names(file: Path, config: PreTrainedConfig) -> None:
    """Raises CheckpointError if the file lacks a parameter of its model."""
    from lp.model.quantization.gguf_file import GgufFile
    from lp.model.quantization.model import empty_model, twins_of

    with _reading("weights", file):
        model = empty_model(config, torch.float32)
        names = GgufFile(file, config).names(model)
    twins = twins_of(model)
    if missing := sorted(name for name in model.state_dict() if name not in names and twins.get(name) not in names):
        raise _lacking(file, missing)


def _lacking(file: Path, missing: list[str]) -> CheckpointError:
    return CheckpointError(f"{str(file)!r} lacks weights of its model: {', '.join(missing[:3])} ...")


def _widest_dtype(header: GgufHeader) -> torch.dtype:
    """The dtype that holds the weights of a file, by those of its matrices; float32 for quantised blocks."""
    from lp.model.quantization.gguf_file import PLAIN

    kinds = {one.kind for one in header.tensors.values() if len(one.shape) > 1}
    return PLAIN.get(kinds.pop(), torch.float32) if len(kinds) == 1 else torch.float32


@contextmanager
def _parsing_once() -> Iterator[None]:
    """Lets transformers read a file briefly, and keeps what the package gguf makes of it, while the body runs.

    transformers parses the file for the configuration, the tokenizer and the weights each, seconds of work for a
    vocabulary that it does not use but before version 5.18, and makes the same map of tensor names for each module of
    the model.
    """
    import gguf

    from lp.model.gguf_header import BriefReader

    made = gguf.GGUFReader, gguf.get_tensor_name_map
    is_brief = parse(transformers.__version__) >= parse("5.18")
    reader = BriefReader if is_brief else gguf.GGUFReader
    gguf.GGUFReader, gguf.get_tensor_name_map = cache(reader), cache(gguf.get_tensor_name_map)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = made


@contextmanager
def _collecting_later() -> Iterator[None]:
    """Turns Python's garbage collection off while the body runs, which makes a million objects and no garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _reading(what: str, file: Path) -> Iterator[None]:
    """Turns whatever transformers raises in the body, where bytes are not as it expects, into a CheckpointError."""
    try:
        yield
    except Exception as error:
        raise CheckpointError(
            f"the {what} of {str(file)!r} cannot be read by transformers {transformers.__version__}: "
            f"{one_line(error)}; use the original checkpoint with safetensors, or a newer transformers"
        ) from error


def _exact_dtype(model: PreTrainedModel) -> torch.dtype:
    """The smallest dtype that holds every weight exactly."""
    for dtype in (torch.bfloat16, torch.float16):
        if all(torch.equal(weight, weight.to(dtype).to(weight.dtype)) for weight in model.parameters()):
            return dtype
    return torch.float32
