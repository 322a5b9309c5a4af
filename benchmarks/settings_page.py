"""Writes the table of docs/settings.md: python benchmarks/settings_page.py"""

import docpage
from dafp.training.settings import settings_as_markdown


def main() -> None:
    """Replace the table; tests/cli/test_settings.py fails as long as it is out of date."""
    docpage.fill("settings.md", "settings", settings_as_markdown())


if __name__ == "__main__":
    main()
