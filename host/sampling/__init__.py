"""How samplers are driven: guidance in turns.

Which attention a model computes with is not here (attention), nor how its weights are stored (casting, offload).
"""
