"""Pure logic: no clock, environment, files, sockets, processes or pytest."""
