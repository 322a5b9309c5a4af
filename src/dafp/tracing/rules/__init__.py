"""One function per ATen operator: what it does to channel labels. table.py lists them."""
