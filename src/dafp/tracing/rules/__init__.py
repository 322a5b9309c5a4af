"""One small function per ATen operator: how channel labels pass through it."""
