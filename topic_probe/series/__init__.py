"""One measurement at many steps: how topics are learned.

`checkpoints` says which model there is at which step, and which of them are not what their step says; `curves` knows
when curves leave where they began, and in which order; `measured` has what is measured at every step, the report of all
steps, and the loop over checkpoints; `probe` does the same while a model is trained. Each imports only from those
before it.
"""
