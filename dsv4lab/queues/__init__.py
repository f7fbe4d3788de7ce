"""The hardware-queue model: which queue a stream gets. Never imports torch."""
