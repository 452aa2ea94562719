"""The parameters, buffers, submodules, modes and hooks of modules, and whether they changed."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from torch import Tensor, nn

from nimble_fx.ir.display import plural
from nimble_fx.torch_internals.names import global_module_hooks

_TABLES = ("_parameters", "_buffers", "_modules")
_FORWARD_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_HOOKS = (*_FORWARD_HOOKS, "_backward_pre_hooks", "_backward_hooks")
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
_is_training = itemgetter("training")


class ModelState:
    """What modules consist of, for calls that do not go through them.

    Parameters and buffers may be replaced by others (`refresh`). Submodules, modes, hooks, and
    which parameters are tied or None must be as they were. Other attributes of the modules, and
    their classes, are not looked at.

    Attributes:
        names: of the tensors, such as "layers.0.weight"; tied ones have one.
        tensors: the parameters and buffers.
    """

    def __init__(self, modules: Sequence[tuple[str, nn.Module]], training: bool) -> None:
        """Reads the state of modules by their names.

        Args:
            modules: the modules.
            training: whether hooks of the backward count.
        """
        pairs = [
            (path, table)
            for path, module in modules
            for table in (module.__dict__[name] for name in _TABLES)
            if table or isinstance(module, _CONTAINERS)
        ]
        self._tables: list[dict[str, Any]] = [table for _, table in pairs]
        self._paths = [f"{path}." if path else "" for path, _ in pairs]
        self._attributes = [module.__dict__ for _, module in modules]
        self._training = list(map(_is_training, self._attributes))
        hooks = _HOOKS if training else _FORWARD_HOOKS
        self._hooks = [module.__dict__[name] for _, module in modules for name in hooks]
        self._hooks += global_module_hooks()
        self._read()

    def why_not_checked(self) -> str | None:
        """Why changes of the modules could go unnoticed; None if they are noticed."""
        n_hooks = sum(map(len, self._hooks))
        return f"it has {plural(n_hooks, 'hook')}" if n_hooks else None

    def is_unchanged(self) -> bool:
        """Whether all is as it was when the state was read; parameters may have moved.

        Tables of more than one value are compared by Python's `==`, which is fast for values that
        are the same objects. For other tensors it is an error, or in a table with a tensor of one
        element a matter of values: these are compared one by one.
        """
        try:
            return (
                self._tables == self._saved
                and all(table[key] is value for table, key, value in self._single)
                and list(map(_is_training, self._attributes)) == self._training
                and not any(self._hooks)
            )
        except (KeyError, RuntimeError, TypeError):
            return False

    def refresh(self) -> str | None:
        """Reads the tensors again; returns what else has changed, as a sentence, or None."""
        if any(self._hooks):
            return "the model has hooks, and had none"
        if list(map(_is_training, self._attributes)) != self._training:
            return "the model, or a part of it, is in another mode (train or eval)"
        if self._structure() != self._shape:
            return "the model's submodules, or which of its parameters are tied or None, changed"
        self._read()
        return None

    def _structure(self) -> list[tuple[str, object]]:
        """Where tensors are, the same one where it is tied, and which values are none."""
        firsts: dict[int, str] = {}
        return [
            (path + key, firsts.setdefault(id(value), path + key))
            if isinstance(value, Tensor)
            else (path + key, id(value))
            for path, table in zip(self._paths, self._tables, strict=True)
            for key, value in table.items()
        ]

    def _read(self) -> None:
        self._single = [
            (table, key, value)
            for table in self._tables
            for key, value in table.items()
            if isinstance(value, Tensor) and value.numel() == 1
        ]
        self._shape = self._structure()
        values = [value for table in self._tables for value in table.values()]
        pairs = zip(self._shape, values, strict=True)
        firsts = {path: value for (path, first), value in pairs if path == first}
        self.names, self.tensors = list(firsts), list(firsts.values())
        self._saved = [dict(table) for table in self._tables]
