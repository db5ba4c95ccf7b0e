"""How properties are searched for."""

from hypothesis import settings

# How long an example takes says more about who else uses the machine; pytest has a timeout.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
