"""The systems whose configurations are read, each a table of keys and rules over several keys; `choice.py` lists them."""
