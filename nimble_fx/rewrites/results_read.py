"""Which results of an operator with several an ATen graph reads."""

import operator

from torch.fx import Node


def is_only_first_read(node: Node) -> bool:
    """Whether nothing reads another result of a call than the first."""
    read = [user for user in node.users if user.users or user.op == "output"]
    return all(user.target is operator.getitem and user.args[1:] == (0,) for user in read)
