"""The unified KV pool: geometry, page and slot allocation, index streams."""
