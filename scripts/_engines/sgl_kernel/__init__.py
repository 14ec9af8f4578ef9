"""Stands in for SGLang's CUDA kernels on a machine without a GPU, where SGLang takes PyTorch's own operators.

Every name and submodule can be imported; calling anything says that there is no kernel.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn


class _Kernel:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> "_Kernel":
        return _kernel(self._name, name)

    def __call__(self, *_arguments: object, **_named: object) -> NoReturn:
        raise NotImplementedError(f"{self._name}: no GPU kernels here, this is a stand-in")


def _kernel(owner: str, name: str) -> _Kernel:
    # Python itself asks for such names to learn what a module or an object can do.
    if name.startswith("__"):
        raise AttributeError(f"{owner} has no attribute {name}")
    return _Kernel(f"{owner}.{name}")


class _Submodules(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        return ModuleSpec(fullname, self, is_package=True) if fullname.startswith(f"{__name__}.") else None

    def exec_module(self, module: ModuleType) -> None:
        _answer(module)


def _answer(module: ModuleType) -> None:
    vars(module)["__getattr__"] = lambda name: _kernel(module.__name__, name)


sys.meta_path.append(_Submodules())
_answer(sys.modules[__name__])
