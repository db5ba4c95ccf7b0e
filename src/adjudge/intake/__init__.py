"""A rollout becomes a :class:`~adjudge.types.Sample` here, whatever door it comes through.

A door (a file's row, a trainer's batch, a request of the service) says only where the parts of a
rollout are. What they mean is decided here, once: which words the policy wrote, where thinking
ends, which question was asked, what makes a group, and which column is the reference.
"""
