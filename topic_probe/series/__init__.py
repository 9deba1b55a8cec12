"""One measurement at many steps: how topics are learned.

`files` reads the tensors of a saved model one at a time, and never unpickles what is not a tensor. `checkpoints` says
which model there is at which step: folders, revisions or repositories of the hub, a manifest, a training of a toy.
`check` says which checkpoints of a series are not what their step says. `onsets` knows of curves alone when they leave
where they began, and in which order; `sums` keeps what makes curves that can be paired. `measured` has what is measured
at every step and the report of all of them; `probe` fills it while a model is trained, `whole` from checkpoints. A
module imports only from those before it:

    files, checkpoints, check, onsets, sums, measured, probe, whole

Where checkpoints come from somewhere else, that is a class method of `Checkpoints` that makes entries, each of
which can be opened and can hand out its tensors one by one.
"""
