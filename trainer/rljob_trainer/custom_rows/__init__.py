"""Rows of data files, changed by a user's function or class (spec.data.custom) before anything else reads them."""
