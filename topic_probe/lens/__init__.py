"""The only code that knows the classes of TransformerLens and Hugging Face.

A model comes in through `opening`, which hooks it, and is read through `capture`, which hands out plain tensors.
What differs between kinds of hooked models stands in `adapters`, one class for each. In import order:

* `sites`: where a model attends, what goes into it, and what patterns and masks show of it, for every kind alike.
* `changes`: what is done to the heads of a site while they are edited.
* `running`: a forward pass by itself, from which a model comes back as it was.
* `huggingface`: reading attention inside a Hugging Face model, editing it there, and finding out on a few tokens what
  can be read of it.
* `heads`: where Hugging Face architectures keep the weights of heads.
* `points`: the hook points of this package's own host around one, and the pass that goes through them.
* `adapters`: Hugging Face models as they are, TransformerLens's bridge around them, TransformerLens's own layers.
* `capture`: attention, states, embeddings and weights of any hooked model; the trial that it has to pass first.
* `edit`: outputs of heads replaced, and edges of attention cut, for the length of a block; `editable`: its trial.
* `opening`: from a name, a folder or a model to a hooked model. `check`: what can be measured of one.

To add a kind of host, write its adapter and name it in `adapters.adapter`. Each silent failure of a host that is known
has a guard here and a test in `tests/lens/test_silent_failures.py`.
"""
