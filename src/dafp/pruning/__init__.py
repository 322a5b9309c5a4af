"""Making the smaller network, and verifying it against the masked one."""
