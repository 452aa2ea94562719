"""Why a call stays wrapped in a higher-order operator of AOTAutograd's, which no task can call."""

OBSTACLE = "nimble_obstacle"
"""The key in the `meta` of a node that wraps a call; the value says what keeps it wrapped."""
