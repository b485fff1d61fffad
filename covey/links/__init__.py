"""The ways to cross a border between processes."""
