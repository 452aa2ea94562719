"""Schedules of other systems, as policies: `options={"policy": Opara()}`.

Each is written from its paper or documentation. They only decide streams and launch order.
nimble_fx's own passes insert waits and frees, with the fewest waits that the streams allow, so that
no rival is at a disadvantage from this implementation.
"""

from importlib import import_module
from typing import get_args

from bench.policies.depth_round_robin import DepthRoundRobin
from bench.policies.opara import Opara
from bench.policies.static_weights import StaticWeights
from nimble_fx.options import PolicyName
from nimble_fx.pipeline import Policy

OWN = get_args(PolicyName)
RIVALS: dict[str, Policy] = {
    policy.name: policy for policy in (Opara(), DepthRoundRobin(), StaticWeights())
}
POLICIES: dict[str, PolicyName | Policy] = {**{name: name for name in OWN}, **RIVALS}
"""Every policy that can be compared, by its name on the command line."""


class UnknownPolicyError(ValueError):
    """There is no policy of that name; the message lists those that there are."""


def find_policy(name: str) -> PolicyName | Policy:
    """The policy with a name, or an instance of a class of yours: "my_module:MyPass".

    Raises:
        UnknownPolicyError: there is none.
    """
    if name in POLICIES:
        return POLICIES[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        known = ", ".join([*POLICIES, "and your own as module:Class"])
        raise UnknownPolicyError(f"no policy {name!r}; there are {known}")
    try:
        policy: Policy = getattr(import_module(module), attribute)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UnknownPolicyError(f"{name} cannot be made: {error}") from error
    return policy
