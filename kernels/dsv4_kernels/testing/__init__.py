"""Case generators, poisoned outputs and the comparison that all kernel tests share."""
