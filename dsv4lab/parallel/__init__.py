"""Several ranks: who holds which part of the model, the groups that exchange tensors, the order of collectives."""
