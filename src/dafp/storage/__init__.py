"""Files on disk: written atomically, locked, told apart by their content."""
