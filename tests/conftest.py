"""Settings that all tests share."""

from hypothesis import settings

# The same examples in every run, and no limit in seconds: a slow machine is not a wrong answer.
settings.register_profile("course", deadline=None, derandomize=True, max_examples=50, database=None)
settings.load_profile("course")
