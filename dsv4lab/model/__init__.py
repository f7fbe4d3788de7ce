"""The DeepSeek-V4 model as op lists: each file lists the ops of one part of a layer."""
