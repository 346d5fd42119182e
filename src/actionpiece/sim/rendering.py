"""Pictures without a screen: which OpenGL draws them, and the renderer.

OpenGL comes in several forms on a machine without a display, and the choice must fall before mujoco is imported. That a
library is there says little; so a child process draws a picture with it, and only what was drawn counts.
"""

from __future__ import annotations

import ctypes.util
import functools
import importlib
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from actionpiece.errors import ActionPieceError

PACKAGES = "libegl1 libgl1-mesa-dri libosmesa6"
_TRIED = ("egl", "osmesa")
_NAMES = {"egl": "EGL", "osmesa": "OSMesa"}
_NO_DRAWING = "glx"  # lets robosuite be imported where there is no OpenGL at all; nothing can be drawn with it
_GEOMS = 2000  # of a scene; robosuite's own have about 100
_TEST_SCENE = """<mujoco><worldbody><light pos="0 0 3"/><geom type="box" size=".3 .3 .3" rgba="1 0 0 1"/>
<camera name="front" pos="0 -2 1" xyaxes="1 0 0 0 .5 1"/></worldbody></mujoco>"""


@dataclass(frozen=True)
class Backend:
    """The OpenGL that draws. name: as in MUJOCO_GL. line: one sentence about the choice, to print."""

    name: str
    line: str


def choose_backend() -> Backend:
    """Decide what draws and set MUJOCO_GL and PYOPENGL_PLATFORM accordingly; child processes inherit both.

    What the user set in MUJOCO_GL is taken. Otherwise EGL is tried, then OSMesa; where neither draws, the error names
    the packages to install. Call it before mujoco or robosuite is imported.
    """
    given = os.environ.get("MUJOCO_GL", "").strip().lower()
    if given and given != _NO_DRAWING:
        return Backend(given, f"Pictures are drawn with {_NAMES.get(given, given)}, as MUJOCO_GL says.")
    if platform.system() != "Linux":
        return Backend("", "Pictures are drawn with the OpenGL of this system.")
    found = _first_that_draws()
    os.environ["MUJOCO_GL"] = os.environ["PYOPENGL_PLATFORM"] = found
    return Backend(found, f"Pictures are drawn with {_NAMES[found]}, the first of EGL and OSMesa that draws here.")


def make_importable() -> None:
    """robosuite loads EGL when it is imported, even to draw nothing; where there is none, name something else."""
    if "MUJOCO_GL" not in os.environ and platform.system() == "Linux" and not ctypes.util.find_library("EGL"):
        os.environ["MUJOCO_GL"] = "osmesa" if ctypes.util.find_library("OSMesa") else _NO_DRAWING


@functools.cache
def _first_that_draws() -> str:
    reasons = []
    for name in _TRIED:
        failed = _try(name)
        if failed is None:
            return name
        reasons.append(f"{_NAMES[name]}: {failed}")
    raise ActionPieceError(
        f"no picture can be drawn on this machine ({'; '.join(reasons)}); on Debian: apt install {PACKAGES}"
    )


def _try(name: str) -> str | None:
    """None if a child process draws a picture with this backend, else why it does not."""
    environment = os.environ | {"MUJOCO_GL": name, "PYOPENGL_PLATFORM": name}
    code = "from actionpiece.sim.rendering import draw_test; draw_test()"
    try:
        child = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return "no picture after 60 seconds"
    if child.returncode == 0:
        return None
    lines = child.stderr.strip().splitlines()
    return lines[-1] if lines else f"the attempt ended with code {child.returncode}"


def draw_test() -> None:
    """Draw a red box with the backend that MUJOCO_GL names; an error where the picture is not one of a red box."""
    mujoco = _mujoco()
    model = mujoco.MjModel.from_xml_string(_TEST_SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    renderer = Renderer(model, 32)
    picture = renderer.draw(data, "front", 32)
    renderer.close()
    red, green, blue = picture[16, 16]
    if red < 50 or green or blue:
        raise RuntimeError(f"the picture is wrong: its middle is {picture[16, 16].tolist()}, not red")


def _mujoco() -> Any:
    import mujoco  # type: ignore[import-untyped]

    return mujoco


def _context(size: int) -> Any:
    name = os.environ.get("MUJOCO_GL", "").strip().lower()
    try:
        module = importlib.import_module(f"mujoco.{name}" if name in _NAMES else "mujoco")
        context = module.GLContext(size, size)
        context.make_current()
    except Exception as error:  # every backend has errors of its own, and all mean the same
        raise ActionPieceError(
            f"no picture can be drawn with MUJOCO_GL={name} ({type(error).__name__}: {error}); unset it, "
            f"or on Debian: apt install {PACKAGES}"
        ) from error
    return context


class Renderer:
    """Draws what cameras of one mujoco model see. It only reads the simulation: drawing changes no trajectory.

    Shadows, reflections and multisampling are off: in software they cost more than everything else.
    size: of the largest square picture, in pixels.
    """

    def __init__(self, model: Any, size: int) -> None:
        mujoco = _mujoco()
        self.model, self.size = model, size
        model.vis.global_.offwidth = model.vis.global_.offheight = size
        model.vis.quality.offsamples = model.vis.quality.shadowsize = 0
        self._gl = _context(size)
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene = mujoco.MjvScene(model, _GEOMS)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._scene.flags[flag] = 0
        self._options = mujoco.MjvOption()
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED

    def show_only(self, group: int) -> None:
        """Draw the geoms of one group; robosuite keeps what is seen in 1 and what is touched in 0."""
        self._options.geomgroup[:] = 0
        self._options.geomgroup[group] = 1

    def draw(self, data: Any, camera: str, size: int) -> np.ndarray:
        """An upright picture, uint8 (size, size, 3), of the scene as it is in `data` (mujoco's MjData)."""
        mujoco = _mujoco()
        index = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_CAMERA, camera)
        if index < 0:
            raise ActionPieceError(f"there is no camera '{camera}' in the simulation")
        self._camera.fixedcamid = index
        self._gl.make_current()
        mujoco.mjv_updateScene(
            self.model, data, self._options, None, self._camera, mujoco.mjtCatBit.mjCAT_ALL, self._scene
        )
        view = mujoco.MjrRect(0, 0, size, size)
        mujoco.mjr_render(view, self._scene, self._context)
        pixels = np.empty((size, size, 3), np.uint8)
        mujoco.mjr_readPixels(pixels, None, view, self._context)
        return np.ascontiguousarray(pixels[::-1])  # OpenGL begins at the bottom

    def close(self) -> None:
        """Give back what the graphics driver holds."""
        self._gl.make_current()
        self._context.free()
        self._gl.free()
