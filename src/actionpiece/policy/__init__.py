"""Policies: the wire that they are asked over, and the server. Needs the extra `serve`."""
