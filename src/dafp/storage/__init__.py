"""Files on disk: atomic writes, locks, digests, TOML, and the revision of the code."""
