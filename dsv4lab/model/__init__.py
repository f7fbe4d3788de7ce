"""The model's layers as lists of ops with named resources."""
