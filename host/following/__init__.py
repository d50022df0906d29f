"""How a dry run follows one node: by the host's own code on tensors without data.

:mod:`.kinds` says what is done with which class of node, a module beside it does it; :mod:`.findings` is what they
share while a workflow is gone through. A function that follows takes the findings, the node's class and its inputs, and
gives the node's outputs; or it raises :class:`.inputs.NotFollowed` with the reason.
"""
