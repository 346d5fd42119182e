"""A tokenizer's folder: `config.json` (what it is) and `model.safetensors` (what it learned). Never a pickle."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import typing
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save, save_file
from torch import Tensor, nn

from actionpiece.distance import PhysicalDistance
from actionpiece.errors import ActionPieceError
from actionpiece.files import check_replaceable, read_json, write_json, writing_folder
from actionpiece.normalize import Normalizer
from actionpiece.space import ActionSpace

FORMAT_VERSION = 1
CONFIG, TENSORS = "config.json", "model.safetensors"
TRAINED = Path(__file__).parents[1] / "trained"


def build_config(config_class: type, values: Any, what: str) -> Any:
    """A frozen configuration from plain data; unknown fields and wrong types are an error."""
    if not isinstance(values, dict):
        raise ActionPieceError(f"{what} must be a set of named values")
    fields = {field.name: field for field in dataclasses.fields(config_class)}
    for name in values:
        if name not in fields:
            raise ActionPieceError(f"{what} has no setting '{name}'; it has {', '.join(fields) or 'none'}")
    hints = typing.get_type_hints(config_class)
    nested = {n: hint for n, hint in hints.items() if isinstance(hint, type) and dataclasses.is_dataclass(hint)}
    values = {k: build_config(nested[k], v, f"{what}: {k}") if k in nested else v for k, v in values.items()}
    for name, value in values.items():
        if not _fits(value, hints[name]):
            raise ActionPieceError(f"{what}: {name} must be {_PLAIN[hints[name]]}, not {value!r}")
    try:
        return config_class(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    except TypeError as error:
        raise ActionPieceError(f"{what} does not fit: {error}") from None


_PLAIN = {int: "a whole number", float: "a number", bool: "True or False"}


def _fits(value: Any, hint: Any) -> bool:
    """Whether a plain value may be that of a setting; other types are left to the configuration itself."""
    if hint not in _PLAIN:
        return True
    if hint is bool or isinstance(value, bool):
        return hint is bool and isinstance(value, bool)
    return isinstance(value, (int, float) if hint is float else int)


def check_savable(folder: Path) -> None:
    """An error if a tokenizer cannot be saved there: it would cost something that is not a tokenizer of ours."""
    check_replaceable(folder, CONFIG)
    if (folder / CONFIG).exists():
        _head(folder)  # any model's folder has a config.json
        stray = sorted({file.name for file in folder.iterdir()} - {CONFIG, TENSORS})
        if stray:
            raise ActionPieceError(f"{folder} also holds {stray[0]}, so it is not replaced; move it away")


class SavedFolder(nn.Module):
    """Saving, loading and naming of tokenizers: the part of `ActionTokenizer` that touches files."""

    kind: ClassVar[str]
    config_class: ClassVar[type]

    def __init__(
        self, config: Any, *, space: ActionSpace, normalizer: Normalizer, distance: PhysicalDistance, horizon: int
    ) -> None:
        super().__init__()
        self.config = config
        self.space = space
        self.normalizer = normalizer
        self.distance = distance
        self.horizon = horizon
        self.provenance: dict[str, Any] = {}

    def _tensors(self) -> dict[str, Tensor]:
        """What is written to model.safetensors."""
        return self.state_dict()

    def _load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `_tensors`; a missing, unknown or misshapen tensor is an error."""
        expected = self._tensors()
        for name in sorted(expected.keys() ^ tensors.keys()):
            fault = "lacks" if name not in tensors else "has an unknown"
            raise ActionPieceError(f"{TENSORS} {fault} tensor '{name}'")
        for name in expected:
            if tensors[name].shape != expected[name].shape:
                got, want = tuple(tensors[name].shape), tuple(expected[name].shape)
                raise ActionPieceError(f"{TENSORS}: tensor '{name}' has shape {got}, not {want}")
        self.load_state_dict({k: v.to(expected[k].dtype) for k, v in tensors.items()})

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration as plain data."""
        return dataclasses.asdict(self.config)

    def _description(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "horizon": self.horizon,
            "config": self.settings,
            "space": self.space.to_dict(),
            "normalizer": self.normalizer.to_dict(),
            "physical_scales": self.distance.to_dict(),
        }

    def _contiguous(self) -> dict[str, Tensor]:
        return {name: tensor.detach().cpu().contiguous() for name, tensor in self._tensors().items()}

    def fingerprint(self) -> str:
        """A hash of everything that decides what this tokenizer encodes and decodes; how it was trained does not."""
        description = self._description()
        config = {name: value for name, value in description["config"].items() if name != "train"}
        digest = hashlib.sha256(json.dumps({**description, "config": config}, sort_keys=True).encode())
        digest.update(save(self._contiguous()))
        return digest.hexdigest()

    def save_pretrained(self, path: str | Path, *, half: bool = False) -> Path:
        """Write the tokenizer to a folder, whole or not at all; returns the folder.

        half: round its learned values to float16 first, here and in the file, which is then half as large.
        """
        from actionpiece import __version__

        folder = Path(path)
        if half:
            self._load_tensors({name: _halved(name, tensor) for name, tensor in self._contiguous().items()})
        head = {"format_version": FORMAT_VERSION, "actionpiece_version": __version__}
        rest = {"provenance": self.provenance, "fingerprint": self.fingerprint()}
        check_savable(folder)
        with writing_folder(folder, marker=CONFIG) as aside:
            tensors = self._contiguous()
            save_file(
                {name: _halved(name, tensor) if half else tensor for name, tensor in tensors.items()}, aside / TENSORS
            )
            write_json(aside / CONFIG, {**head, **self._description(), **rest})
        return folder

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """Read a tokenizer from a folder, or from the Hugging Face hub by its repository name."""
        folder = find_folder(path)
        description = read_description(folder)
        if description["kind"] != cls.kind:
            raise ActionPieceError(f"{folder} holds a '{description['kind']}' tokenizer, not '{cls.kind}'")
        try:
            space = ActionSpace.from_dict(description["space"])
            tokenizer = cls(
                build_config(cls.config_class, description["config"], f"{folder / CONFIG}: config"),
                space=space,
                normalizer=Normalizer.from_dict(description["normalizer"]),
                distance=PhysicalDistance.from_dict(space, description["physical_scales"]),
                horizon=description["horizon"],
            )
        except (KeyError, TypeError) as error:
            raise ActionPieceError(f"{folder / CONFIG} is missing or misuses {error}") from None
        if not isinstance(description.get("provenance", {}), dict):
            raise ActionPieceError(f"{folder / CONFIG}: provenance must be a set of named values")
        tokenizer._load_tensors(read_tensors(folder / TENSORS))
        if description.get("fingerprint", tokenizer.fingerprint()) != tokenizer.fingerprint():
            raise ActionPieceError(
                f"{folder} was changed after it was written: its ids would mean other commands than those of its"
                " fingerprint"
            )
        tokenizer.provenance = description.get("provenance", {})
        return tokenizer

    def push_to_hub(self, repo_id: str, *, private: bool = True, token: str | None = None) -> str:
        """Upload the folder to the Hugging Face hub (a model repository, private unless said otherwise)."""
        import tempfile

        from huggingface_hub import HfApi

        api = HfApi(token=token)
        api.create_repo(repo_id, private=private, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(Path(folder) / "tokenizer")
            answer = api.upload_folder(repo_id=repo_id, folder_path=Path(folder) / "tokenizer")
        return str(answer)


def _halved(name: str, tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    rounded = tensor.half()
    if not bool(torch.isfinite(rounded).all()):
        raise ActionPieceError(f"tensor '{name}' holds values too large for float16; save it whole")
    return rounded


def trained() -> dict[str, Path]:
    """The tokenizers that come with the package, by name."""
    return {folder.name: folder for folder in sorted(TRAINED.iterdir()) if (folder / CONFIG).is_file()}


def find_folder(path: str | Path) -> Path:
    """The local folder of a tokenizer, or the name of one that comes with the package, or of one on the hub."""
    folder, name = Path(path), str(path)
    if not (folder / CONFIG).is_file() and name in (shipped := trained()):
        return shipped[name]
    if folder.exists():
        return folder
    if name.count("/") != 1 or name.startswith((".", "/", "~")) or folder.parent.is_dir():
        from actionpiece.tokenizers import KINDS, RECIPES

        if name in KINDS or name in RECIPES:
            raise ActionPieceError(f"{name} is to be fitted first (actionpiece fit {name} …); give its folder here")
        raise ActionPieceError(f"there is no tokenizer at {path}, and none of that name comes with the package")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=[CONFIG, TENSORS]))
    except LocalEntryNotFoundError:
        raise ActionPieceError(f"there is no folder {path} here, and the Hugging Face hub cannot be reached") from None
    except (OSError, HfHubHTTPError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ActionPieceError(
            f"there is no folder {path} here, and the Hugging Face hub did not give one of that name: {reason}"
        ) from None


def read_description(folder: Path) -> dict[str, Any]:
    """The checked contents of a tokenizer folder's config.json."""
    if not (folder / CONFIG).is_file():
        raise ActionPieceError(f"{folder} is not a tokenizer folder: it has no {CONFIG}")
    description = _head(folder)
    version = description["format_version"]
    if version != FORMAT_VERSION:
        raise ActionPieceError(
            f"{folder / CONFIG} has format version {version}; this actionpiece reads {FORMAT_VERSION}"
        )
    return description


def _head(folder: Path) -> dict[str, Any]:
    """The contents of a config.json that actionpiece wrote, of whatever version."""
    description = read_json(folder / CONFIG)
    ours = isinstance(description, dict) and isinstance(description.get("kind"), str)
    if not ours or "format_version" not in description:
        raise ActionPieceError(f"{folder / CONFIG} was not written by actionpiece: it has no kind and format_version")
    checked: dict[str, Any] = description
    return checked


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; a missing, foreign or truncated one is an error that names it."""
    try:
        tensors = load_file(path)
    except FileNotFoundError:
        raise ActionPieceError(f"{path} does not exist") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise ActionPieceError(f"{path} is not a whole safetensors file: {error}") from None
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ActionPieceError(f"{path}: tensor '{name}' holds values that are not finite")
    return tensors
