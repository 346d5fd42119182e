"""The commands: each parses, calls one function and prints. `actionpiece.cli` puts them together."""
