"""Policies: the wire that they are asked over, and the server. Needs `pip install 'actionpiece[serve]'`."""
