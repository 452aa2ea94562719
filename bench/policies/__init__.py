"""Schedules of other systems, as policies: `options={"policy": Opara()}`.

Each is written from its paper or documentation. They decide streams and launch order alone: waits
and frees are put in by nimble_fx's own passes, with the fewest waits that their streams allow, so
that a rival loses nothing to how it was written down here.
"""

from bench.policies.depth_round_robin import DepthRoundRobin
from bench.policies.opara import Opara
from bench.policies.static_weights import StaticWeights
from nimble_fx.pipeline import Policy

POLICIES: dict[str, Policy] = {
    "nimble": "nimble",
    "serial": "serial",
    **{policy.name: policy for policy in (Opara(), DepthRoundRobin(), StaticWeights())},
}
"""Every policy that can be compared, by the name that it has on a command line."""
