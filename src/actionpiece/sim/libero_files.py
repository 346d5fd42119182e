"""LIBERO as installed: its package, its assets, its initial states. LIBERO's benchmark, which needs torch, stays out.

LIBERO is not on the list of our dependencies: it asks for exact versions of much that its simulator never imports.
`make libero` adds it without them.
"""

from __future__ import annotations

import codecs
import hashlib
import importlib
import importlib.util
import io
import json
import os
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from actionpiece.errors import ActionPieceError
from actionpiece.files import write_json
from actionpiece.sim.tasks import Task

ASSETS = "ACTIONPIECE_LIBERO_ASSETS"
_CONFIG = "LIBERO_CONFIG_PATH"
_HUB = "lerobot/libero-assets"  # where hf-libero has its assets, and the folder it puts them into
_HUB_FOLDER = Path("~/.cache/libero/assets")
_ASSET_FOLDERS = (
    "articulated_objects",
    "scenes",
    "stable_hope_objects",
    "stable_scanned_objects",
    "turbosquid_objects",
)


@dataclass(frozen=True)
class Libero:
    """The installed package. root: the folder with its bddl_files and init_files; problems: its environment classes."""

    root: Path
    problems: Mapping[str, Any]
    parser: Any


def package_folder() -> Path:
    """The folder of the inner `libero.libero` package, found without importing it."""
    spec = importlib.util.find_spec("libero")
    if spec is None or not spec.submodule_search_locations:
        raise ActionPieceError("LIBERO is not installed; `make libero` adds it to the environment")
    return Path(next(iter(spec.submodule_search_locations))) / "libero"


def assets_folder() -> Path:
    """Where meshes, textures and scenes are: what $ACTIONPIECE_LIBERO_ASSETS says, the package's own, or the hub's."""
    said = os.environ.get(ASSETS)
    if said:
        folder = Path(said).expanduser().resolve()
        missing = [name for name in _ASSET_FOLDERS if not (folder / name).is_dir()]
        if missing:
            raise ActionPieceError(f"${ASSETS} is '{said}', where there is no folder '{missing[0]}' of LIBERO's assets")
        return folder
    for folder in (package_folder() / "assets", _HUB_FOLDER.expanduser()):
        if all((folder / name).is_dir() for name in _ASSET_FOLDERS):
            return folder
    raise ActionPieceError(
        f"LIBERO's assets are not there; set ${ASSETS} to a folder with them, "
        f"or run `hf download {_HUB} --repo-type dataset --local-dir {_HUB_FOLDER}`"
    )


def stand_ins() -> bool:
    """Whether the assets in use are a trimmed set, whose largest meshes and textures are stand-ins."""
    bowl = assets_folder() / "stable_scanned_objects/akita_black_bowl/visual/akita_black_bowl_vis.msh"
    return not bowl.is_file() or bowl.stat().st_size < 1_000_000  # LIBERO's own has more than 4 MB


@cache
def libero() -> Libero:
    """Import LIBERO, once per process, without the question that its import asks on the terminal."""
    root, assets = package_folder(), assets_folder()
    _write_config(root, assets)
    try:
        outer = importlib.import_module("libero.libero")
        # The `assets` of its configuration are not read; this is.
        outer._assets_path_cache = str(assets)  # type: ignore[attr-defined]
        problems = importlib.import_module("libero.libero.envs").TASK_MAPPING
        parser = importlib.import_module("libero.libero.envs.bddl_utils")
    except ImportError as error:
        raise ActionPieceError(
            f"LIBERO is installed, but not what it needs ({error}); `make libero` adds that"
        ) from None
    return Libero(root, problems, parser)


def _write_config(root: Path, assets: Path) -> None:
    """A configuration where LIBERO looks for it. One of the user's own is left alone: we read nothing from it."""
    if (Path(os.environ.get(_CONFIG, "~/.libero")).expanduser() / "config.yaml").is_file():
        return
    paths = {
        "benchmark_root": root,
        "bddl_files": root / "bddl_files",
        "init_states": root / "init_files",
        "datasets": root.parent / "datasets",
        "assets": assets,
    }
    content = {key: str(path) for key, path in paths.items()}
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]  # environments do not share a configuration
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = cache_folder / "actionpiece" / f"libero-{digest}"
    try:
        write_json(folder / "config.yaml", content)  # JSON is YAML
    except OSError as error:
        raise ActionPieceError(
            f"LIBERO's configuration cannot be written to '{folder}' ({error.strerror}); "
            f"set {_CONFIG} to a folder that has one, or XDG_CACHE_HOME to one that can be written"
        ) from None
    os.environ[_CONFIG] = str(folder)


def problem_file(task: Task) -> Path:
    """LIBERO's description of a task."""
    return package_folder() / "bddl_files" / f"{task.environment}.bddl"


@cache
def initial_states(task_environment: str) -> np.ndarray:
    """The official initial states (count, time + positions + velocities) of a task, by its `environment`."""
    return read_states(package_folder() / "init_files" / f"{task_environment}.pruned_init")


def read_states(path: Path) -> np.ndarray:
    """A file of initial states. torch wrote it, but it holds one numpy array, for which torch is not needed."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            states = _ArrayReader(io.BytesIO(archive.read(name))).load()
    except (OSError, zipfile.BadZipFile, StopIteration, pickle.UnpicklingError, EOFError) as error:
        raise ActionPieceError(f"'{path.name}' cannot be read as LIBERO's initial states ({error})") from None
    if not isinstance(states, np.ndarray) or states.ndim != 2 or states.dtype.kind != "f" or not len(states):
        raise ActionPieceError(f"'{path.name}' does not hold an array of initial states")
    return states


class _ArrayReader(pickle.Unpickler):
    """Reads plain numpy arrays and nothing else: an ordinary unpickler runs whatever code the file names."""

    _allowed: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],  # numpy 1 wrote them
        ("numpy._core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): codecs.encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return self._allowed[module, name]
