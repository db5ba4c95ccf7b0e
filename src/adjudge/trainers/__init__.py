"""A reward spec inside other people's trainers: their shapes in and out, no logic of their own.

Nothing here imports a trainer before it is used.
"""
