"""Rules: functions that say what an ATen operator does to labels. table.py lists them."""
