"""The hardware-queue model: how streams map to queues."""
