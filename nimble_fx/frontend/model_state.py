"""The parameters, buffers, submodules, modes and hooks of modules, and whether they changed."""

from collections.abc import Iterable, Sequence
from operator import getitem, is_, itemgetter
from typing import Any

from torch import Tensor, nn

from nimble_fx.ir.arguments import items_at
from nimble_fx.ir.display import plural
from nimble_fx.torch_internals.names import global_module_hooks

_TABLES = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
_is_training = itemgetter("training")


class ModelState:
    """What modules consist of, for a call that does not go through them.

    Parameters and buffers may be replaced by others: they are read anew in each call. Submodules,
    modes, hooks, and which parameters are tied or None must be as they were. Other attributes of
    the modules, and their classes, are not looked at.

    Attributes:
        names: of the tensors, such as "layers.0.weight".
    """

    def __init__(self, modules: Iterable[tuple[str, nn.Module]]) -> None:
        """Reads the state of modules by their names."""
        pairs = list(modules)
        self._tables: list[dict[str, Any]] = []
        self._keys: list[str] = []
        paths: list[str] = []
        for path, module in pairs:
            for table in (module.__dict__[name] for name in _TABLES):
                for key in table:
                    self._tables.append(table)
                    self._keys.append(key)
                    paths.append(f"{path}.{key}" if path else key)
        self._whole = [
            table
            for _, module in pairs
            for table in (module.__dict__[name] for name in _TABLES)
            if table or isinstance(module, _CONTAINERS)
        ]
        self._lengths = list(map(len, self._whole))
        self._attributes = [module.__dict__ for _, module in pairs]
        self._training = list(map(_is_training, self._attributes))
        self._hooks = [module.__dict__[name] for _, module in pairs for name in _HOOKS]
        self._hooks += global_module_hooks()
        self._set_values(list(map(getitem, self._tables, self._keys)), paths)

    def _set_values(self, values: Sequence[Any], paths: Sequence[str]) -> None:
        firsts: dict[int, int] = {}
        ties: list[tuple[int, int]] = []
        others: list[int] = []
        for i, value in enumerate(values):
            if not isinstance(value, Tensor):
                others.append(i)
            elif firsts.setdefault(id(value), i) != i:
                ties.append((firsts[id(value)], i))
        positions = list(firsts.values())
        self.names = [paths[i] for i in positions]
        self._others, self._ties, self._paths = [values[i] for i in others], ties, paths
        self._pick_tensors = items_at(positions)
        self._pick_others = items_at(others)

    def why_not_checked(self) -> str | None:
        """Why changes of the modules could go unnoticed; None if they are noticed."""
        n_hooks = sum(map(len, self._hooks))
        return f"it has {plural(n_hooks, 'hook')}" if n_hooks else None

    def tensors(self) -> Sequence[Any] | None:
        """The parameters and buffers as they are now, tied ones once; None if the rest changed."""
        try:
            values = list(map(getitem, self._tables, self._keys))
        except KeyError:
            return None
        same = (
            list(map(_is_training, self._attributes)) == self._training
            and not any(self._hooks)
            and list(map(len, self._whole)) == self._lengths
            and all(map(is_, self._pick_others(values), self._others))
            and all([values[i] is values[k] for i, k in self._ties])
        )
        return self._pick_tensors(values) if same else None

    def difference(self) -> str | None:
        """What has changed besides the tensors, as a sentence; None if nothing has."""
        if any(self._hooks):
            return "the model has hooks, and had none"
        if list(map(_is_training, self._attributes)) != self._training:
            return "the model, or a part of it, is in another mode (train or eval)"
        for table, key, path in zip(self._tables, self._keys, self._paths, strict=True):
            if key not in table:
                return f"the model has no {path} any more"
        if self.tensors() is None:
            return "the model's submodules, or which of its parameters are tied or None, changed"
        return None
