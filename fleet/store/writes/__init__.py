"""The fenced, batched writes that end or move an attempt: one module a kind of transition.

Every statement names task, fence and owner. What does not come back from one was not written: a
later claim owns the task, or somebody has its row locked at the moment. Each statement also
writes the history and what the step enqueued, so that all of it happens or none of it.

Each also says ``id = any (…)`` of what its join says already: a plan that was cached while the
table was empty walks the whole table as the outer side of that join, and goes on doing so with a
million rows.
"""
