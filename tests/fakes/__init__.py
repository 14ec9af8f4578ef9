"""Stand-ins for machines, libraries and servers."""
