"""What several test files share: networks, tiny runs, pages, processes."""
