"""Policies: so far the wire that they are asked over. Needs `pip install 'actionpiece[serve]'`."""
