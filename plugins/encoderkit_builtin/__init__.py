"""Every built-in part, added through the same hook as a stranger's: catalogue.py lists them."""
